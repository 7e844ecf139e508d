"""Every query of the loader: a further column shifts no other, and every declared column is read."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from scheduler import state
from scheduler.core.snapshot.request_classes import ClassTable
from scheduler.state.db import fragments
from scheduler.state.db.query import ColumnQuery, Query, RowQuery, Table, fetch
from scheduler.state.load import history, job_rows, node_rows, queue_rows
from scheduler.state.load.resident import feed
from tests.scheduler.state.small import SmallWorld

SCHEDULER = Path(state.__file__).parent.parent


def _queries() -> dict[str, Query[Any]]:
    """Every query that a module of `scheduler.state` declares, by where it is."""
    found: dict[str, Query[Any]] = {}
    for module in pkgutil.walk_packages(state.__path__, f"{state.__name__}."):
        for name, value in vars(importlib.import_module(module.name)).items():
            if isinstance(value, Query) and value not in found.values():
                found[f"{module.name.removeprefix('scheduler.state.')}.{name}"] = value
    return found


QUERIES = _queries()
COLUMN_QUERIES = {name: query for name, query in QUERIES.items() if isinstance(query, ColumnQuery)}
ROW_QUERIES = {name: query for name, query in QUERIES.items() if isinstance(query, RowQuery)}

Asked = tuple[ColumnQuery, list[Any], dict[str, str]]


def _asked(world: SmallWorld) -> dict[str, Asked]:
    """Each query that is read by columns, with parameters that find the rows of this world."""
    own = [world.cluster.pk]
    jobs = list(world.queue.jobs.values_list("number", flat=True))
    ids = [jobs, [world.queue.pk], [world.project.pk]]
    now = datetime.now(UTC)
    day = timedelta(days=1)
    return {
        "PENDING": (
            job_rows.PENDING, own, {"which": fragments.OF_CLUSTER, "limit": "", "lock": "FOR UPDATE OF job"},
        ),
        "CHANGED_PENDING": (feed.CHANGED_PENDING, [0, "1:1:", *own, *own], {}),
        "PAST": (job_rows.PAST, [*own, now + day, now - day], {}),
        "PAST_RUNS": (history.PAST_RUNS, [jobs], {}),
        "RUNNING": (job_rows.RUNNING, own, {}),
        "RUNNING_IN_ARRAYS_OF": (job_rows.RUNNING_IN_ARRAYS_OF, ids, {}),
        "NODES": (node_rows.NODES, own, {"which": node_rows.NODES_OF_CLUSTER, "lock": ""}),
        "DEVICES": (node_rows.DEVICES, own, {"which": node_rows.DEVICES_OF_CLUSTER, "lock": ""}),
        "ALLOCATIONS": (node_rows.ALLOCATIONS, own * 2, {}),
        "QUEUES": (
            queue_rows.QUEUES, own, {"which": queue_rows.QUEUES_OF_CLUSTER, "counted": "true", "lock": ""},
        ),
    }  # fmt: skip


@pytest.fixture
def world(db: None) -> SmallWorld:
    world = SmallWorld()
    world.node("n1", cpu_millis=4000, gpus=2)
    world.job("runs", gpus=1, cpu_millis=1000)
    assert world.plan().started == 1
    world.job("waits", gpus=4, tasks=3)
    return world


def test_the_queries_that_are_read_by_columns_are_all_here(world: SmallWorld) -> None:
    assert {query for query, _, _ in _asked(world).values()} == set(COLUMN_QUERIES.values())


@pytest.mark.parametrize("name", sorted(name.rpartition(".")[2] for name in COLUMN_QUERIES))
def test_a_column_in_the_middle_shifts_no_other(name: str, world: SmallWorld) -> None:
    query, parameters, words = _asked(world)[name]
    declared = list(query.columns.items())
    middle = len(declared) // 2
    wider = ColumnQuery(
        dict([*declared[:middle], ("throwaway", "'thrown away'"), *declared[middle:]]), query.text
    )

    found = dict(fetch(wider, parameters, **words))

    thrown_away = found.pop("throwaway")
    expected = fetch(query, parameters, **words)
    assert found == expected
    assert set(thrown_away) <= {"thrown away"}
    if name != "RUNNING_IN_ARRAYS_OF":
        assert thrown_away, "the world has a row for this query"


def test_readers_see_the_same_jobs_through_a_wider_table(world: SmallWorld) -> None:
    query, parameters, words = _asked(world)["PENDING"]
    wider = ColumnQuery({"throwaway": "0", **dict(reversed(query.columns.items()))}, query.text)

    seen = [
        job_rows.pending_columns(
            job_rows.own_columns(fetch(one, parameters, **words), ClassTable()), job_rows.Moment(0)
        )
        for one in (query, wider)
    ]

    assert seen[0] == seen[1]
    assert seen[0].tasks.tolist() == [3]


class Noted(Mapping[str, tuple[Any, ...]]):
    """A table that notes which columns were read."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> tuple[Any, ...]:
        self.read.add(name)
        return self._table[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)


def _read_all(name: str, table: Table) -> None:
    """What the loader makes of the table of this query."""
    if name in ("PENDING", "PAST", "CHANGED_PENDING"):
        job_rows.own_columns(table, ClassTable())
    elif name in ("RUNNING", "RUNNING_IN_ARRAYS_OF"):
        job_rows.running_columns(table, ClassTable())
    elif name == "PAST_RUNS":
        history.runs_of(table)
    elif name == "NODES":
        node_rows.node_columns(table)
        node_rows.pool_columns(table, node_rows.ALLOCATIONS.read([]))
    elif name == "DEVICES":
        node_rows.device_columns(table)
    elif name == "ALLOCATIONS":
        node_rows.allocation_columns(table)
        node_rows.pool_columns(node_rows.NODES.read([]), table)
    else:
        queue_rows.queue_columns(table, cluster_paused=None)


@pytest.mark.parametrize("name", sorted(name.rpartition(".")[2] for name in COLUMN_QUERIES))
def test_every_declared_column_is_read(name: str, world: SmallWorld) -> None:
    query, parameters, words = _asked(world)[name]
    if name == "RUNNING_IN_ARRAYS_OF":  # the same columns, of which this world has no row
        query, parameters, words = _asked(world)["RUNNING"]
    table = Noted(fetch(query, parameters, **words))

    _read_all(name, table)

    assert set(query.columns) - table.read == set()


@pytest.mark.parametrize("name", sorted(ROW_QUERIES))
def test_every_field_of_a_row_is_used(name: str) -> None:
    row = ROW_QUERIES[name].row
    # A row that another app defines is read there.
    used = _attributes_used(row.__module__.partition(".")[0])
    if name.startswith("load.running_usage"):  # given to pages as it is
        return
    if "_asdict" in (SCHEDULER / "state" / f"{name.rpartition('.')[0].replace('.', '/')}.py").read_text():
        used = used | set(row._fields)

    assert set(row._fields) - used == set()


@cache
def _attributes_used(app: str) -> frozenset[str]:
    return frozenset(
        node.attr
        for path in (SCHEDULER.parent / app).rglob("*.py")
        if "migrations" not in path.parts
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
    )
