"""Tests run with the rights of the application; here a test puts on another role for as long as it needs one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from urllib.parse import urlsplit

import pgtrigger
from django.db import connection, transaction
from psycopg.pq import TransactionStatus

from config.up.servers import roles
from scheduler.models import Job, JobRequest
from tests.support.embedded import TESTER


@contextmanager
def as_role(name: str) -> Iterator[None]:
    """The connection of this thread as this role. Where tests have a server of their own, they have one role."""
    if urlsplit(os.environ["DATABASE_URL"]).username != TESTER:
        yield
        return
    _set(name)
    try:
        yield
    finally:
        # In a transaction that has failed nothing can be said, and what was said in it is forgotten anyway.
        inner = connection.connection
        if inner is not None and inner.info.transaction_status != TransactionStatus.INERROR:
            _set(roles.APPLICATION)


def as_owner() -> AbstractContextManager[None]:
    """As the owner of the tables: whoever has the database in their hands."""
    return as_role(roles.OWNER)


def had_asked(*jobs: Job, **columns: Any) -> None:
    """These jobs had asked for this from the start: a trigger keeps what was submitted to run from the application."""
    with as_owner(), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("ALTER TABLE scheduler_jobrequest DISABLE TRIGGER request_stays")
        JobRequest.objects.filter(pk__in=[job.pk for job in jobs]).update(**columns)
        cursor.execute("ALTER TABLE scheduler_jobrequest ENABLE TRIGGER request_stays")


@contextmanager
def as_owner_without(*triggers: str) -> Iterator[None]:
    """As the owner who leaves these triggers aside, or all of them."""
    with as_owner(), pgtrigger.ignore(*triggers):
        yield


def all_rights() -> AbstractContextManager[None]:
    """As a superuser, who may leave triggers and foreign keys aside."""
    return as_role("none")


def _set(name: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SET ROLE {name}")
