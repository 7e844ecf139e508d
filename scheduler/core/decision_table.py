"""The decision table: of each pending row the strongest reason so far, equal decisions kept once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from scheduler.core.cluster.index import ClusterIndex
from scheduler.core.columns import Bools, Ints, distinct, rows_taken
from scheduler.core.plan import Decision, WaitingColumns, sorted_facts
from scheduler.core.reason_codes import CATEGORY, PRECEDENCE, ReasonCategory, ReasonCode


class DecisionTable:
    """The strongest decision noted for each row, equal decisions kept once."""

    def __init__(self, count: int, shared: DecisionTable | None = None) -> None:
        self.of_row: Ints = np.full(count, -1, dtype=np.int64)
        self._decisions: list[Decision] = shared._decisions if shared else []
        self._numbers: dict[Decision, int] = shared._numbers if shared else {}
        self._rank: list[int] = shared._rank if shared else []

    def set_unless_barred(self, row: int, decision: Decision) -> None:
        """Note a decision whatever is noted already, unless that is about a limit or a person, and the stronger."""
        noted = self.of_row.item(row)
        barred = noted >= 0 and self._rank[noted] < PRECEDENCE[ReasonCode.WAITING_FOR_PREEMPTION]
        if not barred or PRECEDENCE[decision.reason] < self._rank[noted]:
            self.of_row[row] = self.number(decision)

    @property
    def is_clear(self) -> Bools:
        """Rows without any decision."""
        return self.of_row < 0

    def number(self, decision: Decision) -> int:
        number = self._numbers.setdefault(decision, len(self._decisions))
        if number == len(self._decisions):
            self._decisions.append(decision)
            self._rank.append(PRECEDENCE[decision.reason])
        return number

    def add(self, rows: Ints, decision: Decision) -> None:
        if len(rows):
            self.add_numbers(rows, np.full(len(rows), self.number(decision), dtype=np.int64))

    def add_numbers(self, rows: Ints, numbers: Ints) -> None:
        """Note a decision (or -1) for each row where it is stronger than what is there."""
        rank = np.array([*self._rank, len(ReasonCode)], dtype=np.int64)  # -1 reads the last: weaker than all
        stronger = rank[numbers] < rank[self.of_row[rows]]
        self.of_row[rows[stronger]] = numbers[stronger]

    def add_facts(self, rows: Sequence[int], **more: int) -> None:
        """Note more about these rows: facts of these names in the decision of each."""
        table = self.of_row
        chosen = np.array(rows, dtype=np.int64)
        chosen = chosen[table[chosen] >= 0]
        for number in distinct(table[chosen]).tolist():
            decision = self._decisions[number]
            said = replace(decision, facts=sorted_facts({**decision.details, **more}))
            table[chosen[table[chosen] == number]] = self.number(said)

    def wait_for_people(self, rows: Ints) -> Bools:
        """Of these rows, those that wait for a person to change something, and not for capacity or a turn."""
        persons = {ReasonCategory.FIX, ReasonCategory.ASK}
        flags = [CATEGORY[decision.reason] in persons for decision in self._decisions]
        return np.array([*flags, False], dtype=np.bool_)[self.of_row[rows]]

    def _waits_in_turn(self) -> Bools:
        """Of each decision, and of -1: whether its jobs wait for nothing but their turn."""
        flags = [CATEGORY[decision.reason] is ReasonCategory.WAIT for decision in self._decisions]
        return np.array([*flags, False], dtype=np.bool_)

    def _used(self, numbers: Ints) -> tuple[tuple[Decision, ...], Ints]:
        """The decisions that occur, numbered anew in the order they were first noted."""
        occurs = np.zeros(len(self._decisions), dtype=np.bool_)
        occurs[numbers] = True
        kept = tuple(self._decisions[number] for number in np.flatnonzero(occurs).tolist())
        return kept, rows_taken(np.cumsum(occurs) - 1, numbers)

    def waiting_columns(
        self, cluster: ClusterIndex, order: Ints, waiting: Bools, considered: Ints
    ) -> tuple[WaitingColumns, tuple[Decision, ...]]:
        """Of each waiting job the number of its decision, and how many jobs and GPUs waiting their turn are ahead.

        Also the decisions themselves, in the order that the numbers count.
        """
        pending = cluster.snapshot.pending
        counts = np.zeros(len(pending), dtype=np.int64)
        counts[considered] = 1
        counts = np.where(waiting & self._waits_in_turn()[self.of_row], counts, 0)
        per_task = [request.per_task.gpus for request in cluster.snapshot.classes] or [0]
        gpus = counts * np.array(per_task, dtype=np.int64)[pending.class_index] * pending.tasks
        ahead_jobs, ahead_gpus = np.zeros_like(counts), np.zeros_like(counts)
        for ahead, column in ((ahead_jobs, counts[order]), (ahead_gpus, gpus[order])):
            ahead[order] = np.cumsum(column) - column
        rows = np.flatnonzero(waiting)
        decisions, numbers = self._used(self.of_row[rows])
        columns = WaitingColumns(
            job_id=rows_taken(pending.id, rows),
            decision=numbers,
            ahead_jobs=rows_taken(ahead_jobs, rows),
            ahead_gpus=rows_taken(ahead_gpus, rows),
        )
        return columns, decisions
