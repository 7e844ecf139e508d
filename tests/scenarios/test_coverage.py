"""Which story holds which row: C1 to C22 of the decisions, D1 to D8 of waiting, and what users asked for (8 to 21)."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent

#: What users ask for of other schedulers, by number, and the stories that show it here.
ASKED_FOR = {
    "8 budgets over time": ("field08_*",),
    "9 lend without losing the guarantee": ("field09_*", "c16_*"),
    "10 caps on what runs of a queue": ("field10_*",),
    "11 fairness between users of one queue": ("field11_*",),
    "12 reservation and backfill for large gangs": ("field12_*", "c11_a_large_gang_gathers_nodes_as_they_come_free"),
    "13 age per job": ("field13_*", "c26_*"),
    "14 real order without blocking strangers": ("field14_*",),
    "15 a minimum run time": ("n15_*",),
    "16 checkpoints when choosing victims": ("n16_*",),
    "17 no wasteful evictions": ("n17_*", "c09_*"),
    "18 a gang is preempted as a unit": ("n18_*",),
    "19 the victim is told who and why": ("field19_*",),
    "20 GPUs in pieces": ("field20_*", "04_four_gpus_free_in_pieces"),
    "21 what cannot be placed holds nothing": ("field21_*",),
}  # fmt: skip
#: Gangs: what a running one may become; how one starts is C11.
GANGS = {"G4": ("g4_*",)}
QUEUES = {
    "running jobs of a queue are capped, whoever plans it": ("queue_*",),
    "pending jobs of a queue are capped at the door": ("queues/*",),
}
DECISIONS = {f"C{number}": (f"c{number:02}_*",) for number in range(1, 23)}
WAITS = {f"D{number}": (f"dependencies/d{number}_*",) for number in range(1, 9)}


@pytest.mark.parametrize(("row", "patterns"), (ASKED_FOR | DECISIONS | WAITS | GANGS | QUEUES).items())
def test_every_row_has_a_story(row: str, patterns: tuple[str, ...]) -> None:
    for pattern in patterns:
        found = list(HERE.glob(f"{pattern}.yaml"))
        assert found, f"no story {pattern}.yaml for {row}"
        for path in found:
            assert path.read_text().startswith("# "), f"{path.name} does not say what it shows"
