"""What one request may cost: how many rows and how much text it makes, and that somebody still waits for its answer.

Limits on factors (jobs of a batch, elements of an array) bound no product of them, so the product has one of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from django.conf import settings

from infra.errors import FieldProblem, InvalidInput, MusterError

T = TypeVar("T")

#: Between two looks whether the caller is there: a loop over rows asks once in this number of them.
LOOK_EVERY: Final = 200


# ---------------------------------------------------------------- how much


def check_rows(asked: int, *, what: str, field: str, way_out: str) -> None:
    """Refuse a request that would make more rows than MUSTER_MAX_ROWS, before any of them is built.

    `what` names them: "jobs and what they wait for". Raises InvalidInput with the number asked and the limit.
    """
    most = settings.MUSTER_MAX_ROWS
    if asked > most:
        raise too_many_rows(f"This request makes {asked:,} {what}; the maximum is {most:,}.",
                            field=field, way_out=way_out)  # fmt: skip


def check_text(asked: int, *, field: str, way_out: str) -> None:
    """Refuse a request whose rows together hold more text than MUSTER_MAX_TEXT_MIB. `asked` is in characters."""
    most = settings.MUSTER_MAX_TEXT_MIB
    if asked > most * 2**20:
        raise too_many_rows(
            f"The rows that this request makes hold {-(-asked // 2**20):,} MiB of text together; "
            f"those of one request may hold {most:,} MiB.",
            field=field, way_out=way_out,
        )  # fmt: skip


def check_export(asked: int, *, way_out: str) -> None:
    """Refuse a file of more rows than MUSTER_MAX_EXPORT_ROWS, before the first is read."""
    most = settings.MUSTER_MAX_EXPORT_ROWS
    if asked > most:
        raise too_many_rows(f"This file would have more than {most:,} rows, the maximum of one file.",
                            field="export", way_out=way_out)  # fmt: skip


def too_many_rows(message: str, *, field: str, way_out: str) -> InvalidInput:
    """A refusal by size, with the thing, the numbers and the way out."""
    return InvalidInput(
        message=message, code="too-many-rows", problems=[FieldProblem(field, message, "too-many-rows")],
        way_out=f"{way_out} Nothing was written.",
    )  # fmt: skip


# ---------------------------------------------------------------- for whom


@dataclass
class CallerGone(MusterError):
    """The caller has hung up: nobody would read the answer, and what was begun is rolled back."""

    message: str = "The client disconnected; the request was stopped, and nothing was written."
    code: str = "caller-gone"
    way_out: str = "Send the request again, with the same Idempotency-Key."
    status: int = 408


class Caller:
    """The one who waits for an answer; a door says when that caller has gone."""

    def __init__(self) -> None:
        self._gone = threading.Event()

    def leave(self) -> None:
        self._gone.set()

    @property
    def gone(self) -> bool:
        return self._gone.is_set()


_caller: ContextVar[Caller | None] = ContextVar("muster_caller", default=None)


@contextmanager
def working_for(caller: Caller) -> Iterator[Caller]:
    """What runs in this block, and in threads that copy its context, works for this caller."""
    before = _caller.get()
    _caller.set(caller)
    try:
        yield caller
    finally:
        # Put back by value: a token of `set` is refused when an async hop changed the context in between.
        _caller.set(before)


def stop_if_caller_gone() -> None:
    """Raises CallerGone once the caller has hung up; outside a request it does nothing."""
    caller = _caller.get()
    if caller is not None and caller.gone:
        raise CallerGone


def until_caller_gone(items: Iterable[T], *, every: int = LOOK_EVERY) -> Iterator[T]:
    """The same items, one after the other, until the caller hangs up: then CallerGone."""
    for number, item in enumerate(items):
        if number % every == 0:
            stop_if_caller_gone()
        yield item


def count_up_to(rows: Any, most: int) -> int:
    """How many rows a query has, counted no further than one beyond `most`."""
    return int(rows.order_by()[: most + 1].count())
