"""A disk that is short of room is named: where, how much is left, and to whom that matters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.cache import cache
from django.test import Client

from accounts.models.user import SiteRole
from infra.db.error_messages import DISK_FULL_KEY
from infra.machine import disk_space
from tests.support.factories import UserFactory

#: More than any disk has.
ALL = 2**40


@pytest.fixture(autouse=True)
def looked_at_anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(disk_space, "REMEMBERED_SECONDS", -1.0)
    yield
    disk_space._looked_at = 0.0


@pytest.fixture
def folder(tmp_path: Path, settings: Any) -> Path:
    (tmp_path / "postgres").mkdir()
    settings.MUSTER_DISK_FOLDERS = [str(tmp_path)]
    settings.MUSTER_DISK_LOW_MIB = settings.MUSTER_DISK_FULL_MIB = 0
    return tmp_path


def banner(role: SiteRole) -> str:
    client = Client()
    client.force_login(UserFactory(site_role=role))
    return client.get("/").content.decode()


def test_with_room_nothing_is_said(folder: Path) -> None:
    assert disk_space.shortages() == ()


def test_one_disk_is_named_once(folder: Path, settings: Any) -> None:
    settings.MUSTER_DISK_LOW_MIB = ALL

    (short,) = disk_space.shortages()

    assert not short.full
    assert short.text.startswith(f"the disk of {folder}")
    assert "MiB free" in short.text


@pytest.mark.django_db
def test_a_disk_that_is_nearly_full_is_for_operators(folder: Path, settings: Any, client: Client) -> None:
    settings.MUSTER_DISK_LOW_MIB = ALL

    ready = client.get("/readyz")

    assert (ready.status_code, ready.json()["degraded"]) == (200, ["disk"])
    assert "nearly full" in banner(SiteRole.OPERATOR)
    assert "data-disk" not in banner(SiteRole.NONE)


@pytest.mark.django_db
def test_a_full_disk_is_for_everybody_and_where_it_is_for_operators(folder: Path, settings: Any) -> None:
    settings.MUSTER_DISK_LOW_MIB = settings.MUSTER_DISK_FULL_MIB = ALL

    assert str(folder) in banner(SiteRole.OPERATOR)
    everybody = banner(SiteRole.NONE)
    assert "The disk is full." in everybody
    assert str(folder) not in everybody


@pytest.mark.django_db
def test_the_disk_of_a_server_elsewhere_is_known_by_what_it_said(
    folder: Path, settings: Any, client: Client
) -> None:
    (folder / "postgres").rmdir()
    assert client.get("/readyz").json()["degraded"] == []

    cache.set(DISK_FULL_KEY, True, 60)

    assert client.get("/readyz").json()["degraded"] == ["disk"]
    assert "The disk is full." in banner(SiteRole.NONE)
