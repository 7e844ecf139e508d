"""A copy of a world that tests begin with holds what was made for the first of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction
from django.db.models import Model

from accounts.models import User
from tests.scheduler.portal import a_portal
from tests.scheduler.web.conftest import a_world
from tests.support.copies import rows
from tests.support.factories import the_cast

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("make", [the_cast, a_portal, a_world])
def test_a_copy_has_the_rows_of_what_is_made(make: Callable[[], Any]) -> None:
    made: list[dict[str, list[dict[str, Any]]]] = []
    for once in (make.__wrapped__, make, make):  # type: ignore[attr-defined]
        with transaction.atomic():
            once()
            made.append(
                {table: sorted(map(told, json.loads(text)), key=str) for table, text in rows().items()}
            )
            transaction.set_rollback(True)

    assert made[0] == made[1] == made[2]
    assert len(made[0]) > 5


def told(row: dict[str, Any]) -> dict[str, str]:
    """What a row says, without numbers and times, which differ each time."""
    return {
        name: re.sub(r"\d+", "N", str(value))
        for name, value in row.items()
        if not name.endswith(("id", "at", "date_joined", "password", "backend_key"))
    }


def test_objects_of_a_copy_are_their_rows(db: None) -> None:
    with transaction.atomic():
        a_portal()
        transaction.set_rollback(True)
    portal = a_portal()

    for one in (portal.cluster, portal.queue, portal.n1, portal.n2, *vars_of(portal.cast)):
        assert values(type(one).objects.get(pk=one.pk)) == values(one)


def vars_of(cast: Any) -> list[Model]:
    return [cast.project, *(getattr(cast, name) for name in ("owner", "stranger", "operator", "admin"))]


def values(row: Model) -> dict[str, Any]:
    return {field.attname: getattr(row, field.attname) for field in row._meta.concrete_fields}


def test_a_world_is_made_where_rows_are_already_there() -> None:
    User.objects.create(username="somebody")

    assert the_cast().owner.username == "owner"
    assert User.objects.count() == 9
