"""Default rows: created once, and never written over what an operator decided."""

from __future__ import annotations

import pytest

from scheduler.models import Cluster, PriorityClass, Queue
from scheduler.services.cluster.defaults import PRIORITY_CLASSES, ensure_defaults

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
