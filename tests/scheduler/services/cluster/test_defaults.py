"""Default rows: created once, and never written over what an operator decided."""

from __future__ import annotations

import pytest
from django.conf import LazySettings

from accounts.models import AuditEvent
from infra.errors import Conflict
from scheduler.models import Cluster, PriorityClass, Queue, SchedulerProfile
from scheduler.services.cluster.defaults import PRIORITY_CLASSES, ensure_defaults
from scheduler.services.cluster.settings import save_settings
from tests.support.factories import AdminFactory

pytestmark = pytest.mark.django_db


def whom_they_stop() -> dict[str, set[str]]:
    return {row.name: {victim.name for victim in row.preempts.all()} for row in PriorityClass.objects.all()}


def test_a_first_start_makes_what_is_missing_and_the_next_changes_nothing() -> None:
    first = ensure_defaults()
    low = PriorityClass.objects.get(name="LOW")
    low.preempts.clear()
    low.value = 30
    low.save()

    assert ensure_defaults() == first
    assert whom_they_stop() == {name: set(victims) for name, _, _, victims, _ in PRIORITY_CLASSES} | {
        "LOW": set()
    }
    assert PriorityClass.objects.get(name="LOW").value == 30
    assert (Cluster.objects.count(), Queue.objects.count()) == (1, 1)


def test_a_class_that_was_removed_comes_back_unless_its_value_is_taken() -> None:
    ensure_defaults()
    PriorityClass.objects.filter(name__in=["LOW", "BATCH"]).delete()
    PriorityClass.objects.create(name="OURS", value=25)

    ensure_defaults()

    assert set(PriorityClass.objects.values_list("name", flat=True)) == {
        "CRITICAL",
        "HIGH",
        "NORMAL",
        "BATCH",
        "SCAVENGER",
        "OURS",
    }
    assert whom_they_stop()["BATCH"] == {"SCAVENGER"}


def test_finding_29_the_policy_of_the_settings_acts_at_each_start_and_is_not_changed_elsewhere(
    settings: LazySettings,
) -> None:
    ensure_defaults()
    settings.SCHEDULING_POLICY, settings.SETTINGS_GIVEN = "fairshare", frozenset({"SCHEDULING_POLICY"})

    ensure_defaults()
    ensure_defaults()  # the second writes nothing

    profile = SchedulerProfile.objects.get(name="default")
    assert (profile.policy, profile.backfill, profile.version) == ("fairshare", "easy", 2)
    [row] = AuditEvent.objects.filter(action="schedulerprofile.edit")
    assert (row.before, row.after) == ({"policy": "fifo"}, {"policy": "fairshare"})
    assert row.reason == "Set by SCHEDULING_POLICY."
    profile.policy = "sjf"
    with pytest.raises(
        Conflict, match="The setting SCHEDULING_POLICY decides the policy of the profile default"
    ):
        save_settings(thing=profile, changed_fields=["policy"], by=AdminFactory(), reason="try")


def test_without_the_setting_the_profile_keeps_what_an_admin_chose() -> None:
    ensure_defaults()
    profile = SchedulerProfile.objects.get(name="default")
    profile.policy = "sjf"
    save_settings(thing=profile, changed_fields=["policy"], by=AdminFactory(), reason="short jobs first")

    ensure_defaults()

    assert SchedulerProfile.objects.get(name="default").policy == "sjf"
