"""Rules of a profile in rows: chosen by cycles, recorded, shown at every door, and set aside where they fail."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from django.test import Client

from config import health
from infra.errors import NotFound
from scheduler.models import Cycle, Job, PolicyChoice, PolicyFault, SchedulerProfile
from scheduler.services.cluster.settings import save_settings
from scheduler.services.planning.cycles import run_cycle
from scheduler.services.planning.explain import explain_job
from scheduler.services.planning.forecasts import forecast_cluster
from scheduler.services.planning.profiles import policy_of_profile
from scheduler.services.planning.replay import placement_basis, replay
from scheduler.state.load.snapshots import load_snapshot
from tests.scheduler.admin.test_actions import filled
from tests.scheduler.admin.test_pages import page, signed_in
from tests.scheduler.state.small import SmallWorld
from tests.support.factories import AdminFactory, SchedulerProfileFactory

pytestmark = pytest.mark.django_db

CROWD = {"name": "crowd", "when": {"pending_jobs": {"at_least": 3}}, "policy": "sjf", "placement": "spread"}


@pytest.fixture
def world() -> SmallWorld:
    world = SmallWorld()
    world.node("n1", cpu_millis=4_000)
    return world


def ruled(world: SmallWorld, *rules: Any, **words: Any) -> SchedulerProfile:
    profile = SchedulerProfileFactory(name="site", rules=[*rules], rule_hold_seconds=0, **words)
    world.cluster.profile = profile
    world.cluster.save()
    return profile


def cycle(world: SmallWorld) -> list[Job]:
    done = run_cycle(cluster_id=world.cluster.pk, trigger="test")
    return [Job.objects.get(pk=number) for number in done.started_jobs]


def test_a_rule_orders_the_cycle_and_every_door_names_it(world: SmallWorld) -> None:
    ruled(world, CROWD)
    jobs = [world.job(f"j{hours}", cpu_millis=3_000, time_limit_seconds=3600 * hours) for hours in (9, 5, 7)]
    before = datetime.now(UTC)

    (first,) = cycle(world)

    assert first == jobs[1]  # the shortest, not the first
    choice = PolicyChoice.objects.get()
    assert (choice.queue_id, choice.rule, choice.policy, choice.placement) == (0, "crowd", "sjf", "spread")
    kept = Cycle.objects.latest("id")
    (said,) = kept.rules
    assert (said["queue_id"], said["profile"], said["rule"]) == (0, "site", "crowd")
    again = replay(cycle_id=kept.pk)
    assert again.identical, again.difference
    basis = placement_basis(first)
    assert basis is not None
    assert (basis.order, basis.rule, basis.placement) == ("sjf", "crowd", "spread")

    client = Client()
    client.force_login(world.person)
    info = client.get("/api/v1/jobs/scheduler/info").json()
    assert (info["policy"], info["policies"]) == ("sjf", {world.queue.slug: "sjf"})
    rule = info["rules"][world.queue.slug]
    assert (rule["rule"], rule["policy"], rule["placement"]) == ("crowd", "sjf", "spread")
    assert abs((datetime.fromisoformat(rule["since"]) - before).total_seconds()) < 60
    queue = client.get(f"/api/v1/queues/{world.queue.slug}").json()
    assert (queue["policy"], queue["policy_rule"], queue["placement"]) == ("sjf", "crowd", "spread")
    assert queue["policy_since"] == rule["since"]
    assert "by the rule “crowd”" in client.get("/queues/").content.decode()
    operator = signed_in(AdminFactory())
    assert "crowd of profile site, since" in operator.get(page(Cycle, "change", kept.pk)).content.decode()

    # Two wait: the profile's own order is in force again, and a job that waits says so.
    assert not cycle(world)
    assert PolicyChoice.objects.get().rule == ""
    found = explain_job(job=jobs[2], by=world.person)
    assert found.order is not None
    assert (found.order.policy, found.order.rule, found.order.since is not None) == ("fifo", "", True)
    assert found.position == 2
    world.job("j1", cpu_millis=3_000, time_limit_seconds=3600)
    found = explain_job(job=jobs[2], by=world.person)  # as the next cycle would choose
    assert found.order is not None
    assert (found.order.policy, found.order.rule) == ("sjf", "crowd")
    html = client.get(f"/jobs/{jobs[2].pk}/?tab=why").content.decode()
    assert "by the rule “crowd”" in html
    asked = {"command": "true", "queue": world.queue.slug, "project": world.project.slug}
    previewed = client.post("/api/v1/jobs/preview", asked, content_type="application/json").json()
    assert (previewed["order"]["policy"], previewed["order"]["rule"]) == ("sjf", "crowd")
    shown = client.post(
        "/submit/preview/", {"what": "true", "queue": world.queue.slug, "project": world.project.slug}
    )
    assert "by the rule “crowd” since" in shown.content.decode()
    assert forecast_cluster(cluster_id=world.cluster.pk) == 3

    # Without rules the row goes, and nothing is shown.
    SchedulerProfile.objects.update(rules=[])
    cycle(world)
    assert not PolicyChoice.objects.exists()
    assert client.get("/api/v1/jobs/scheduler/info").json()["rules"] == {}
    assert client.get(f"/api/v1/queues/{world.queue.slug}").json()["policy_since"] is None


def test_a_choice_that_does_not_change_is_not_written_again(world: SmallWorld) -> None:
    ruled(world, {**CROWD, "when": {"pending_jobs": {"at_least": 1}}})
    world.job("large", cpu_millis=3_000)
    world.job("large", cpu_millis=3_000)
    cycle(world)
    since, cycles = PolicyChoice.objects.get().since_ms, Cycle.objects.count()
    cycle(world)
    cycle(world)
    assert PolicyChoice.objects.get().since_ms == since
    assert Cycle.objects.count() <= cycles + 1  # what decides nothing new is recorded once


def test_a_rule_that_cannot_be_read_is_an_alarm_and_the_others_and_the_cluster_go_on(
    world: SmallWorld,
) -> None:
    profile = ruled(
        world, {"name": "broken", "when": {"moon": "full"}, "policy": "sjf"}, {**CROWD, "policy": "priority"}
    )
    for number in range(3):
        world.job(f"j{number}", cpu_millis=3_000, priority=40 + number)

    (first,) = cycle(world)

    assert first.name == "j2"
    fault = PolicyFault.objects.get()
    assert fault.subject == "rule broken of profile site"
    assert "'moon' is not known in when" in fault.reason
    [check] = [one for one in health.run_checks() if one.name == "policies"]
    assert fault.reason in check.text
    cycle(world)
    assert PolicyFault.objects.get().began_at == fault.began_at
    with pytest.raises(ValueError, match="rule broken: 'moon'"):
        policy_of_profile("site")

    profile.rules = [CROWD]
    save_settings(thing=profile, changed_fields=["rules"], by=AdminFactory(), reason="repaired")
    assert not PolicyFault.objects.exists()
    cycle(world)
    assert not PolicyFault.objects.exists()


def test_a_rule_by_which_planning_fails_is_set_aside_and_the_same_cycle_goes_on(world: SmallWorld) -> None:
    """The form refuses such weights; a plugin that gave the score may have been removed since."""
    ruled(
        world,
        {**CROWD, "score_weights": {"gone": 5}},
        {"name": "next", "when": CROWD["when"], "policy": "priority"},
    )
    for number in range(3):
        world.job(f"j{number}", cpu_millis=3_000, priority=40 + number)

    (first,) = cycle(world)

    assert first.name == "j2"
    fault = PolicyFault.objects.get()
    assert fault.subject == "rule crowd of profile site"
    assert "there is no score 'gone'" in fault.reason
    assert PolicyChoice.objects.get().rule == "next"
    kept = Cycle.objects.latest("id")
    assert replay(cycle_id=kept.pk).identical
    adaptive = load_snapshot(cluster_id=world.cluster.pk).policy.adaptive
    assert adaptive is not None
    assert [one.name for one in adaptive.rules] == ["next"]
    # The alarm of a rule that is in no profile any more ends by itself.
    SchedulerProfile.objects.update(name="renamed")
    world.job("one more", cpu_millis=3_000)
    cycle(world)
    assert PolicyFault.objects.get().subject == "rule crowd of profile renamed"
    PolicyFault.objects.all().delete()  # an operator puts it back into use
    adaptive = load_snapshot(cluster_id=world.cluster.pk).policy.adaptive
    assert adaptive is not None
    assert [one.name for one in adaptive.rules] == ["crowd", "next"]


def test_a_queues_own_profile_has_its_own_rule(world: SmallWorld) -> None:
    profile = SchedulerProfileFactory(name="of the queue", rules=[CROWD], rule_hold_seconds=0)
    world.queue.profile = profile
    world.queue.save()
    for hours in (9, 5, 7):
        world.job(f"j{hours}", cpu_millis=3_000, time_limit_seconds=3600 * hours)
    (first,) = cycle(world)
    assert first.name == "j5"
    assert PolicyChoice.objects.get().queue_id == world.queue.pk
    client = Client()
    client.force_login(world.person)
    assert client.get(f"/api/v1/queues/{world.queue.slug}").json()["policy_rule"] == "crowd"


def test_the_form_refuses_what_cannot_act_and_takes_the_rest() -> None:
    client = signed_in(AdminFactory())
    profile = SchedulerProfileFactory()
    url = page(SchedulerProfile, "change", profile.pk)
    night = (
        '[{"name": "night", "when": {"times": ["22:00-06:00"]}, "policy": "%s", "score_weights": {"%s": 3}}]'
    )
    for bad, words in (
        ({"rules": night % ("lifo", "device_fit")}, "is not a policy"),
        ({"rules": night % ("sjf", "no_such_score")}, "there is no score"),
        ({"rules": '{"night": 1}'}, "A list of objects"),
        ({"rules": night % ("sjf", "device_fit"), "rule_time_zone": "Mars/Olympus"}, "is not a time zone"),
    ):
        answer = client.post(url, filled(client, url, reason="try", **bad))
        assert answer.status_code == 200, bad
        assert words in answer.content.decode(), bad
    good = client.post(
        url,
        filled(
            client, url, rules=night % ("sjf", "device_fit"), rule_time_zone="Europe/Berlin", rule_hold_seconds=60,
            reason="short jobs at night",
        ),
    )  # fmt: skip
    assert good.status_code == 302, good.context["adminform"].form.errors
    profile.refresh_from_db()
    assert (profile.rules[0]["name"], profile.rule_time_zone, profile.rule_hold_seconds) == (
        "night",
        "Europe/Berlin",
        60,
    )


def test_rules_are_shown_only_of_queues_that_one_may_see(world: SmallWorld) -> None:
    ruled(world, CROWD)
    world.queue.project = world.project
    world.queue.save()
    for number in range(3):
        world.job(f"j{number}")
    cycle(world)
    client = Client()
    client.force_login(SmallWorld().person)
    assert world.queue.slug not in client.get("/api/v1/jobs/scheduler/info").json()["rules"]
    assert client.get(f"/api/v1/queues/{world.queue.slug}").status_code == NotFound.status
