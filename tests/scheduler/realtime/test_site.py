"""The banner of every page, live: a cluster that is paused, and a planner that is no longer heard."""

from __future__ import annotations

import re
import time

import pytest
from django.core.cache import cache
from django.test import Client
from django.urls import reverse

from scheduler.models import Cluster, Lease
from scheduler.realtime.topics import site_rows
from scheduler.services.cluster.settings import pause_cluster
from scheduler.state.lease import planner_liveness
from tests.scheduler.realtime.conftest import Connect, rows
from tests.support.factories import ClusterFactory, the_cast

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def nothing_seen_yet() -> None:
    cache.clear()
    planner_liveness.forget_terms()


def make_silent(cluster: Cluster, *, seconds: float) -> None:
    Lease.objects.create(scope=f"cluster:{cluster.pk}", token=5)
    planner_liveness.term_since(cluster.pk, 5, clock=lambda: time.time() - seconds)


async def test_who_follows_the_site_hears_at_once_that_a_cluster_is_paused(connect: Connect) -> None:
    cast = await rows(the_cast)()
    cluster = await rows(ClusterFactory)(name="main")
    client = await connect(cast.stranger)
    assert (await client.follow("site"))["data"]["rows"][f"cluster:{cluster.pk}"]["paused"] is False

    await rows(pause_cluster)(cluster=cluster, by=cast.operator, reason="a new switch")
    changed = (await client.hear("patch", within=4))["patch"]["changed"]

    assert changed[f"cluster:{cluster.pk}"]["paused_reason"] == "a new switch"


def test_a_stuck_planner_changes_what_is_shown_once_and_not_with_every_second() -> None:
    cluster = ClusterFactory()
    make_silent(cluster, seconds=1)
    heard = site_rows()
    assert heard[f"cluster:{cluster.pk}"]["silent_since"] is None

    cache.clear()
    planner_liveness.forget_terms()
    planner_liveness.term_since(cluster.pk, 5, clock=lambda: time.time() - 120)
    silent = site_rows()

    assert silent[f"cluster:{cluster.pk}"]["silent_since"] is not None
    assert site_rows() == silent
    Lease.objects.update(token=6)
    assert site_rows() == heard


def test_every_page_follows_the_site_and_the_banner_is_of_this_moment(client: Client) -> None:
    cast = the_cast()
    cluster = ClusterFactory()
    client.force_login(cast.owner, backend="accounts.backends.PasswordBackend")
    for name in ("home", "settings", "submit", "usage"):
        page = client.get(reverse(name)).content.decode()
        assert 'data-live-topic="site"' in page, name
        assert "has not been heard" not in page, name

    make_silent(cluster, seconds=120)
    banner = client.get(reverse("troubles")).content.decode()  # the page before it is remembered for a moment

    assert "has not responded for 2m" in re.sub("<[^>]+>", "", banner)
    assert "<html" not in banner
    assert Client().get(reverse("troubles"), headers={"HX-Request": "true"}).status_code == 401
