"""One world for all tests of a file: made once, in a transaction around theirs, and copied for each of them.

For files of many short tests, where to make the world takes longer than what is tried on it. Each test has a
savepoint of its own, so that it sees the rows as they were made. No test of such a file may need real transactions,
and the database's `now()` is the time at which the world was made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import transaction


def made_once(make: Callable[[], Any]) -> Any:
    """A fixture of a file with what `make` returns; a test takes `copy.deepcopy` of it, and `db` besides."""

    @pytest.fixture(scope="module")
    def made(django_db_setup: None, django_db_blocker: Any) -> Iterator[Any]:
        around = transaction.atomic()
        with django_db_blocker.unblock():
            around.__enter__()
            world = make()
        yield world
        with django_db_blocker.unblock():
            transaction.set_rollback(True)
            around.__exit__(None, None, None)

    return made
