"""Every admin page opens with rows, in few queries, to those who may look and to nobody else."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib import admin
from django.db import connection
from django.db.models import Model
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from accounts.models import User
from scheduler.models import (
    Allocation,
    Attempt,
    Cluster,
    Cycle,
    Dataset,
    Device,
    Job,
    JobEvent,
    JoinToken,
    Lease,
    Node,
    Partition,
    PolicyFault,
    PriorityClass,
    ProfileVersion,
    Queue,
    Reservation,
    RetentionRun,
    SchedulerProfile,
    ShadowRun,
    Task,
    UnknownTask,
)
from tests.support.factories import (
    AdminFactory,
    AllocationFactory,
    AttemptFactory,
    AuditorFactory,
    ClusterFactory,
    CycleFactory,
    DatasetFactory,
    DeviceFactory,
    JobEventFactory,
    JobFactory,
    JoinTokenFactory,
    LeaseFactory,
    NodeFactory,
    OperatorFactory,
    PartitionFactory,
    PolicyFaultFactory,
    PriorityClassFactory,
    ProfileVersionFactory,
    QueueFactory,
    ReservationFactory,
    RetentionRunFactory,
    SchedulerProfileFactory,
    ShadowRunFactory,
    TaskFactory,
    UnknownTaskFactory,
    UserFactory,
)

pytestmark = pytest.mark.django_db

FACTORIES: dict[type[Model], Any] = {
    Allocation: AllocationFactory,
    Attempt: AttemptFactory,
    Cluster: ClusterFactory,
    Cycle: CycleFactory,
    Dataset: DatasetFactory,
    Device: DeviceFactory,
    Job: JobFactory,
    JobEvent: JobEventFactory,
    JoinToken: JoinTokenFactory,
    Lease: LeaseFactory,
    Node: NodeFactory,
    Partition: PartitionFactory,
    PolicyFault: PolicyFaultFactory,
    UnknownTask: UnknownTaskFactory,
    PriorityClass: PriorityClassFactory,
    ProfileVersion: ProfileVersionFactory,
    Queue: QueueFactory,
    Reservation: ReservationFactory,
    RetentionRun: RetentionRunFactory,
    SchedulerProfile: SchedulerProfileFactory,
    ShadowRun: ShadowRunFactory,
    Task: TaskFactory,
}
#: What each may add by hand; everything else comes into being by itself.
OPERATOR_ADDS = {Cluster, Partition, Queue, Reservation, JoinToken, ShadowRun}
ADMIN_ADDS = OPERATOR_ADDS | {PriorityClass, SchedulerProfile}
#: What each may edit by hand.
OPERATOR_EDITS = {Cluster, Partition, Queue, Node}
ADMIN_EDITS = OPERATOR_EDITS | {PriorityClass, SchedulerProfile}


def page(model: type[Model], what: str, *args: Any) -> str:
    return reverse(f"admin:scheduler_{model._meta.model_name}_{what}", args=args)


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def test_every_scheduler_model_that_people_look_at_has_its_page() -> None:
    registered = {model for model in admin.site._registry if model._meta.app_label == "scheduler"}

    assert registered == set(FACTORIES)


@pytest.mark.parametrize("model", FACTORIES, ids=lambda model: model.__name__)
def test_lists_and_rows_open_for_an_admin_and_take_no_more_queries_for_more_rows(model: type[Model]) -> None:
    client = signed_in(AdminFactory())
    first = FACTORIES[model]()
    client.get(page(model, "changelist"))
    with CaptureQueriesContext(
        connection,
    ) as one:
        assert client.get(page(model, "changelist")).status_code == 200
    FACTORIES[model].create_batch(3)

    with CaptureQueriesContext(connection) as four:
        listed = client.get(page(model, "changelist"))
    shown = client.get(page(model, "change", first.pk))
    searched = client.get(page(model, "changelist"), {"q": "12"})

    assert (listed.status_code, shown.status_code, searched.status_code) == (200, 200, 200)
    assert len(four) <= len(one) + 2, [query["sql"][:160] for query in four]
    assert len(four) < 22


@pytest.mark.parametrize("model", FACTORIES, ids=lambda model: model.__name__)
def test_filters_of_a_list_open(model: type[Model]) -> None:
    client = signed_in(OperatorFactory())
    FACTORIES[model]()
    listed = client.get(page(model, "changelist"))

    for spec in listed.context["cl"].filter_specs:
        for choice in list(spec.choices(listed.context["cl"]))[:3]:
            query = choice.get("query_string")
            if query:
                assert client.get(page(model, "changelist") + query).status_code == 200, query


@pytest.mark.parametrize(
    ("factory", "adds", "edits"),
    [(OperatorFactory, OPERATOR_ADDS, OPERATOR_EDITS), (AdminFactory, ADMIN_ADDS, ADMIN_EDITS)],
    ids=["operator", "admin"],
)
def test_only_settings_are_added_and_edited_facts_are_not(
    factory: Any, adds: set[Any], edits: set[Any]
) -> None:
    user = factory()
    client = signed_in(user)
    added, edited = set(), set()

    for model, make in FACTORIES.items():
        if client.get(page(model, "add")).status_code == 200:
            added.add(model)
        shown = client.get(page(model, "change", make().pk))
        if shown.context["has_change_permission"]:
            edited.add(model)

    assert (added, edited) == (adds, edits)


def test_an_auditor_with_an_account_here_looks_and_changes_nothing() -> None:
    client = signed_in(AuditorFactory(is_staff=True))
    queue = QueueFactory()

    assert client.get(page(Queue, "change", queue.pk)).status_code == 200
    assert client.get(page(Queue, "add")).status_code == 403
    assert client.post(page(Queue, "verb", "pause") + f"?ids={queue.pk}", {"reason": "x"}).status_code == 403


@pytest.mark.parametrize("staff", [False, True])
def test_a_stranger_sees_no_page(staff: bool) -> None:
    client = signed_in(UserFactory(is_staff=staff))

    for model, make in FACTORIES.items():
        row = make()
        for url in (page(model, "changelist"), page(model, "change", row.pk)):
            assert client.get(url).status_code in (302, 403), url
    assert client.get(reverse("admin:index")).status_code in (200, 302)


def test_the_start_page_lists_what_an_operator_may_open_and_loads_nothing_from_outside() -> None:
    client = signed_in(OperatorFactory())

    answer = client.get(reverse("admin:index"))
    html = answer.content.decode()

    assert "Muster" in html
    assert reverse("admin:scheduler_cycle_changelist") in html
    assert 'src="http' not in html
    assert 'href="http' not in html


def test_the_names_in_an_environment_are_shown_and_their_values_are_not() -> None:
    job = JobFactory(env={"API_KEY": "hunter2"})

    html = signed_in(AdminFactory()).get(page(Job, "change", job.pk)).content.decode()

    assert "API_KEY" in html
    assert "hunter2" not in html


def test_the_job_list_finds_a_job_by_its_number() -> None:
    job, other = JobFactory(name="one"), JobFactory(name="other")

    answer = signed_in(OperatorFactory()).get(page(Job, "changelist"), {"q": str(job.number)})

    assert list(answer.context["cl"].queryset) == [job]
    assert other not in answer.context["cl"].queryset
