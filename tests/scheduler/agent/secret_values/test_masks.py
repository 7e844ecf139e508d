"""Values of secrets are masked byte by byte, however the output is cut into pieces."""

from __future__ import annotations

import os
import random
import stat
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.agent.secret_values.masks import Mask
from scheduler.agent.secret_values.store import SecretStore

SECRET = "wandb-5f2c91aa"
KEY = "-----BEGIN KEY-----\nMIIEvQIBADAN\nBgkqhkiG9w0B\nab\n-----END KEY-----\n"


def read_in_pieces(path: Path, mask: Mask, size: int, *, grows_by: int = 0) -> bytes:
    """What a reader gets who asks for `size` bytes at a time, of a file that grows in between."""
    whole, shown = path.read_bytes(), b""
    path.write_bytes(whole[:grows_by] if grows_by else whole)
    file = os.open(path, os.O_RDONLY)
    try:
        while True:
            there = os.fstat(file).st_size
            ended = there == len(whole)
            piece = mask.read(file, len(shown), size, ended=ended)
            shown += piece
            if not piece:
                if ended:
                    return shown
                with path.open("ab") as more:
                    more.write(whole[there : there + grows_by])
    finally:
        os.close(file)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 13, 14, 15, 64, 4096])
@pytest.mark.parametrize("grows_by", [0, 1, 5, 13, 40])
def test_a_value_is_masked_wherever_pieces_are_cut(tmp_path: Path, size: int, grows_by: int) -> None:
    file = tmp_path / "stdout"
    file.write_bytes(f"key={SECRET}{SECRET};wandb-5f2 {SECRET[:-1]}x\n{SECRET}".encode())

    shown = read_in_pieces(file, Mask([SECRET]), size, grows_by=grows_by)

    stars = b"*" * len(SECRET)
    assert shown == b"key=" + stars * 2 + b";wandb-5f2 " + SECRET[:-1].encode() + b"x\n" + stars


def test_random_output_shows_no_value_and_keeps_everything_else(tmp_path: Path) -> None:
    luck = random.Random(7)
    values = ["aabaabaaab", "abaaab-abaaab", "bbbbbbbb"]
    file = tmp_path / "stdout"
    for _ in range(60):
        plain = "".join(luck.choice(["a", "b", "-", "\n", *values]) for _ in range(luck.randint(0, 60)))
        file.write_text(plain)
        shown = read_in_pieces(file, Mask(values), luck.randint(1, 40), grows_by=luck.randint(1, 30))

        # The tail may be masked further: it may be the beginning of a value.
        whole = Mask(values).cover(plain.encode())
        assert len(shown) == len(plain)
        assert not any(value.encode() in shown for value in values)
        assert shown[: len(shown) - 13] == whole[: len(whole) - 13]


def test_a_value_that_is_cut_off_by_the_end_is_masked_as_well(tmp_path: Path) -> None:
    file = tmp_path / "stdout"
    file.write_text(f"about to print {SECRET[:-1]}")
    assert read_in_pieces(file, Mask([SECRET]), 100) == b"about to print " + b"*" * (len(SECRET) - 1)

    file.write_text("the end is w")  # one letter says nothing
    assert read_in_pieces(file, Mask([SECRET]), 100) == b"the end is w"


def test_what_may_be_the_beginning_of_a_value_waits_for_the_rest(tmp_path: Path) -> None:
    file = tmp_path / "stdout"
    file.write_text("key=wandb-5f")
    opened = os.open(file, os.O_RDONLY)
    try:
        assert Mask([SECRET]).read(opened, 0, 100, ended=False) == b"key="
        assert Mask([SECRET]).read(opened, 4, 100, ended=False) == b""
    finally:
        os.close(opened)


def covered_slowly(data: bytes, pattern: bytes) -> bytes:
    """Every place of the pattern, one after another."""
    covered = bytearray(data)
    for at in range(len(data)):
        if data.startswith(pattern, at):
            covered[at : at + len(pattern)] = pattern.translate(bytes([*range(10), 10, *[42] * 245]))
    return bytes(covered)


@given(
    unit=st.text("ab\n", min_size=1, max_size=5),
    times=st.integers(1, 9),
    pieces=st.lists(st.text("ab\n", max_size=12), max_size=6),
)
def test_of_a_value_that_repeats_itself_every_place_is_masked(
    unit: str, times: int, pieces: list[str]
) -> None:
    value = ("a" + unit * times + "bbbbbbbb")[:12].strip().ljust(8, "a").replace("\n", "b")
    data = value[: len(unit)].join([*pieces, value * 2, value[:-1] + value]).encode()

    assert Mask([value]).cover(data) == covered_slowly(data, value.encode())


@pytest.mark.parametrize("unit", ["a", "ab", "abcdefgh" * 500])
def test_a_long_value_that_repeats_itself_costs_no_more_than_its_output_is_long(unit: str) -> None:
    """It was 17 s for a quarter of a MiB: the output of every other task of the node waited for that."""
    value = (unit * (32_768 // len(unit) + 1))[:32_768]
    data = (unit * (262_144 // len(unit) + 1))[:262_144].encode()
    mask, began = Mask([value]), time.process_time()

    assert mask.cover(data) == b"*" * len(data)
    assert time.process_time() - began < 2


def test_the_lines_of_a_key_are_masked_and_line_breaks_stay() -> None:
    shown = Mask([KEY]).cover(f"begin\n{KEY}then BgkqhkiG9w0B alone, and ab\n".encode()).decode()

    assert shown.splitlines() == [
        "begin", "*" * 19, "*" * 12, "*" * 12, "**", "*" * 17, "then ************ alone, and ab",
    ]  # fmt: skip


def test_a_value_is_masked_without_the_space_around_it() -> None:
    assert Mask([f"  {SECRET}\n"]).text(f"<{SECRET}>") == f"<{'*' * len(SECRET)}>"


def loaded(state: Path) -> Mask:
    """What the next agent masks in the output of task 7-1."""
    store = SecretStore(state)
    store.load("7-1")
    return store.masks["7-1"]


def test_the_store_gives_the_next_agent_the_same_mask(tmp_path: Path) -> None:
    store = SecretStore(tmp_path)
    store.keep("7-1", [SECRET])
    store.keep("8-1", ["another-value"])

    assert loaded(tmp_path).text(f"<{SECRET}>") == f"<{'*' * len(SECRET)}>"
    folder = tmp_path / "secrets"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}

    SecretStore(tmp_path).forget_all_but(["8-1"])
    assert [file.name for file in folder.iterdir()] == ["8-1"]
    store.forget(["8-1", "9-9"])
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("broken", [None, b"", b"{}", b"[1]", b"\xff"])
def test_where_the_values_are_lost_all_output_is_masked(tmp_path: Path, broken: bytes | None) -> None:
    if broken is not None:
        (tmp_path / "secrets").mkdir()
        (tmp_path / "secrets/7-1").write_bytes(broken)

    assert loaded(tmp_path).text("anything\nat all") == "********\n******"
