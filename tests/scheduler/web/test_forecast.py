"""One job page says one forecast: that of this moment where it asks for one, else the last that was written."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from accounts.models import User
from scheduler.models import StartForecast
from scheduler.services.planning.explain import explain_job
from scheduler.services.planning.forecasts import StartRange
from scheduler.web import job as page_of_job


def told(page: str) -> set[str]:
    """Every forecast that is on a page, as it reads."""
    text = re.sub(r"<[^>]+>", "", page)
    return {found.strip() for found in re.findall(r"(?:Likely starts|expected) [^.<\n]*?\d\d:\d\d", text)}


def test_a_page_that_asks_the_planner_shows_no_older_forecast_beside(
    world: SimpleNamespace, as_user: Callable[[User], Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = timezone.now().replace(second=0, microsecond=0)
    world.job.expected_start_at = now + timedelta(hours=30)
    world.job.save(update_fields=["expected_start_at"])
    written = {f"p{n}0_at": now + timedelta(hours=24 + n) for n in (1, 5, 9)}
    StartForecast.objects.create(job=world.job, computed_at=now, **written)
    fresh = StartRange(now + timedelta(hours=50), now + timedelta(hours=51), now + timedelta(hours=52))
    answers = [fresh]
    monkeypatch.setattr(
        page_of_job, "explain_job", lambda **words: replace(explain_job(**words), start=answers[0])
    )
    client = as_user(world.cast.owner)
    url = reverse("job", args=[world.job.number])

    why = told(client.get(url, {"tab": "why"}).content.decode())
    overview = told(client.get(url, {"tab": "overview"}).content.decode())

    assert len(why) == 1, why
    assert f"{now + timedelta(hours=50):%d %b %H:%M}" in why.pop()
    assert len(overview) == 1, overview
    assert f"{now + timedelta(hours=25):%d %b %H:%M}" in overview.pop()

    answers[0] = StartRange(unknown="A job without a time limit is ahead.")
    page = client.get(url, {"tab": "why"}).content.decode()
    assert told(page) == set()
    assert "Start time unknown." in page
