"""A site as one document: exported and applied elsewhere it is the same; a wrong line changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from accounts.models import AuditEvent, User
from muster.arguments import main
from scheduler.metrics import Collector
from scheduler.models import Cluster, Node, Partition, PriorityClass, Queue, SchedulerProfile
from scheduler.services.cluster.defaults import ensure_defaults
from tests.support.agents import Server
from tests.support.factories import Cast, NodeFactory, a_token, bearer, the_cast
from tests.support.roles import as_owner

pytestmark = pytest.mark.django_db

SITE = """\
version: 1
priority_classes:
- name: RUSH
  value: 90
  preempts: [NORMAL, SLOW]   # one that comes later
- name: SLOW
  value: 5
profiles:
- name: day
  policy: fairshare
  tie_breakers: [priority, submitted]
  options: {backfill_max_class: RUSH}
  score_weights: {placement_quality: 3}
- name: night
  policy: sjf
  backfill: none
clusters:
- slug: main
  name: Main hall
  profile: day
  cpu_overcommit_percent: 150
  partitions:
  - name: gpu
    max_wall_seconds: 86400
  - name: default
  queues:
  - slug: default
    is_default: false
  - slug: short
    is_default: true
    priority: 80
    profile: night
    partitions: [gpu, default]
    max_wall_seconds: 3600
    default_wall_seconds: 600
    project: vision
    results_until_fetched: true
    isolation: partial
  nodes:
  - name: n1
    partitions: [gpu]
    rack: r1
    zone: east
    taints:
    - {key: dedicated, value: vision, effect: NoSchedule}
    memory_overcommit_percent: 90
"""


@pytest.fixture
def cast() -> Cast:
    ensure_defaults()
    return the_cast()


#: Scopes of a token that exports.
READS = ("nodes:read", "projects:read", "quota:read")


def trail() -> int:
    """How many changes are in the audit trail; tokens, which the tests make, aside."""
    return AuditEvent.objects.exclude(action__startswith="token").count()


def apply(client: Client, by: User, text: str, **more: Any) -> Any:
    body = {"yaml": text, "reason": "set up the hall", **more}
    return client.post(
        "/api/v1/configuration", body, content_type="application/json", headers=bearer(by, "admin")
    )


def export(client: Client, by: User) -> str:
    answer = client.get("/api/v1/configuration", headers=bearer(by, *READS))
    assert answer.status_code == 200, answer.content
    text: str = answer.json()["yaml"]
    return text


def test_a_site_made_from_a_document_is_exported_as_another_site_makes_it(client: Client, cast: Cast) -> None:
    made = apply(client, cast.admin, SITE)

    assert made.status_code == 200, made.json()
    assert {(one["kind"], one["name"], one["action"]) for one in made.json()["changes"]} == {
        ("priority_classes", "RUSH", "create"), ("priority_classes", "SLOW", "create"), ("profiles", "day", "create"),
        ("profiles", "night", "create"), ("clusters", "main", "change"), ("partitions", "gpu", "create"),
        ("queues", "default", "change"), ("queues", "short", "create"), ("nodes", "n1", "create"),
    }  # fmt: skip
    queue, node = Queue.objects.get(slug="short"), Node.objects.get(name="n1")
    assert (queue.is_default, queue.profile.name, queue.project, queue.partitions.count()) == (
        True, "night", cast.project, 2,
    )  # fmt: skip
    assert (node.state, node.taints[0]["added_by"], node.rack) == ("down", "admin", "r1")
    assert [one.name for one in PriorityClass.objects.get(name="RUSH").preempts.order_by("name")] == [
        "NORMAL",
        "SLOW",
    ]
    text = export(client, cast.operator)

    # Nothing differs, so nothing is written.
    entries = trail()
    assert apply(client, cast.admin, text).json() == {"applied": True, "changes": []}
    assert trail() == entries

    # An empty portal.
    with as_owner():
        for model in (Node, Queue, Partition, Cluster, SchedulerProfile, PriorityClass):
            model.objects.all().delete()
    ensure_defaults()
    assert apply(client, cast.admin, text, prune=True).status_code == 200
    assert export(client, cast.auditor) == text


def test_a_token_that_may_not_read_projects_exports_nothing(client: Client, cast: Cast) -> None:
    refused = client.get("/api/v1/configuration", headers=bearer(cast.admin, "nodes:read"))

    assert (refused.status_code, "lacks the scope projects:read" in refused.json()["detail"]) == (403, True)


def test_a_dry_run_shows_what_differs_and_changes_nothing(client: Client, cast: Cast) -> None:
    before, entries = export(client, cast.admin), trail()
    text = "clusters:\n- slug: main\n  queues:\n  - {slug: default, priority: 70, max_wall_seconds: 60}\n"

    shown = apply(client, cast.operator, text, dry_run=True).json()

    change = {
        "kind": "queues", "name": "default", "action": "change",
        "before": {"max_wall_seconds": None, "priority": 50}, "after": {"max_wall_seconds": 60, "priority": 70},
    }  # fmt: skip
    assert shown == {"applied": False, "changes": [change]}
    assert (export(client, cast.admin), trail()) == (before, entries)

    assert apply(client, cast.operator, text).json() == {"applied": True, "changes": [change]}
    [row] = AuditEvent.objects.filter(action="queue.edit")
    assert (row.after, row.reason) == ({"max_wall_seconds": 60, "priority": 70}, "set up the hall")


WRONG = """\
version: 1
quotas: []
profiles:
- name: day
  policy: nosuch
  score_weights: {gpu_fit: much}
- name: day
clusters:
- slug: main
  profil: day
  queues:
  - slug: default
    priority: high
    partitions: [nowhere]
  - slug: short
    max_wall_seconds: 60
    default_wall_seconds: 600
    is_default: 1
  nodes:
  - name: n1
    taints: [{key: a, effect: Never}]
  - rack: r1
"""


def test_every_wrong_line_is_named_and_nothing_is_changed(client: Client, cast: Cast) -> None:
    before, entries = export(client, cast.admin), trail()

    refused = apply(client, cast.admin, WRONG)

    assert refused.status_code == 422
    said = {(int(one["field"].removeprefix("line ")), one["message"]) for one in refused.json()["errors"]}
    starts = {
        (2, "There is no section quotas"), (5, "policy: "), (6, "score_weights: "), (7, "day is there twice"),
        (10, "There is no field profil"), (13, "priority has to be a whole number"),
        (14, "partitions names the partition 'nowhere', which does not exist"),
        (18, "is_default has to be true or false"), (21, "taints: "), (22, "name: an entry of nodes needs"),
    }  # fmt: skip
    found = {
        (line, start)
        for line, start in starts
        if any(at == line and text.startswith(start) for at, text in said)
    }
    assert found == starts, said
    assert (export(client, cast.admin), trail()) == (before, entries)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("queues: [", 1), ("profiles:\n- {name: a}\n  b: 1", 3), ("- 1", 1), ("profiles: 3", 1),
        ("version: 2", 1), ("a: &x 1\nb: *x", 2), ("profiles:\n- name: a\n  name: b", 3), ("1: 2", 1),
        ("a:" + " [" * 40, 1), ("profiles:\n- 3", 1),
    ],
)  # fmt: skip
def test_text_that_is_no_document_is_refused_with_its_line(
    client: Client, cast: Cast, text: str, line: int
) -> None:
    refused = apply(client, cast.admin, text)

    assert refused.status_code == 422, refused.json()
    assert refused.json()["errors"][0]["field"] == f"line {line}", refused.json()


def test_what_the_database_or_a_rule_refuses_is_named_with_the_line_of_the_row(
    client: Client, cast: Cast
) -> None:
    other = Cluster.objects.create(name="other", slug="other")
    Queue.objects.create(cluster=other, name="far", slug="far")

    for text, line, said in (
        (
            "clusters:\n- slug: main\n  queues:\n  - {slug: second, is_default: true}\n",
            4,
            "queue_one_default",
        ),
        ("clusters:\n- slug: main\n  queues:\n  - {slug: far}\n", 4, "of the cluster other"),
        ("priority_classes:\n- {name: X, value: 50}\n", 2, "already exists"),
    ):
        refused = apply(client, cast.admin, text).json()
        assert refused["errors"][0]["field"] == f"line {line}", refused
        assert said in refused["errors"][0]["message"], refused


@pytest.mark.parametrize(
    ("field", "says"),
    [
        ("preemption: {pressure_percent: 101}", "pressure_percent is 0 (always preempt) to 100"),
        ("options: {shares: alike}", "there are auto, flat, tree, product"),
        ("options: {nosuch: 1}", "'nosuch' is not an option"),
        ("rules: [{name: night, when: {hours: 3}, policy: sjf}]", "rule night: 'hours' is not known in when"),
        ("tie_breakers: [tallest]", "There is no 'tallest'; there are eligible, priority, shortest"),
        ("rule_time_zone: Mars/Base", "is not a time zone"),
        ("rule_hold_seconds: -1", "greater than or equal to 0"),
        ("placement: best", "not one of the available choices"),
    ],
)
def test_a_wrong_field_of_a_profile_is_named_with_its_own_line(
    client: Client, cast: Cast, field: str, says: str
) -> None:
    refused = apply(client, cast.admin, f"profiles:\n- name: day\n  policy: sjf\n  {field}\n").json()

    assert [one["field"] for one in refused["errors"]] == ["line 4"], refused
    assert says in refused["errors"][0]["message"], refused


def test_a_node_that_no_agent_has_registered_is_declared_and_no_alarm(client: Client, cast: Cast) -> None:
    apply(client, cast.admin, "clusters:\n- slug: main\n  nodes:\n  - name: later\n")
    node = Node.objects.get(name="later")
    client.force_login(cast.admin)

    page = client.get(f"/nodes/{node.pk}/").content.decode()

    assert "No agent has registered yet" in page
    assert "Stopped responding" not in page
    assert "in sync" not in page
    counted = {
        sample.labels["state"]
        for metric in Collector().collect()
        for sample in metric.samples
        if sample.name == "muster_nodes"
    }
    assert "declared" in counted
    assert "down" not in counted


def test_prune_deletes_what_a_section_does_not_name_and_never_what_is_in_use(
    client: Client, cast: Cast
) -> None:
    assert apply(client, cast.admin, SITE).status_code == 200
    node = NodeFactory(cluster=Cluster.objects.get(slug="main"), name="n2")
    kept = "clusters:\n- slug: main\n  queues:\n  - {slug: short}\n  nodes: []\n"

    gone = apply(client, cast.admin, kept, prune=True).json()["changes"]

    assert [(one["kind"], one["name"], one["action"]) for one in gone] == [("queues", "default", "delete")]
    assert Node.objects.filter(pk=node.pk).exists()
    used = apply(client, cast.admin, "profiles: []\n", prune=True)
    assert used.status_code == 422
    assert "The profile day is that of cluster main" in used.json()["errors"][0]["message"]
    assert SchedulerProfile.objects.filter(name="day").exists()


def test_operators_apply_what_they_may_edit_and_others_nothing(client: Client, cast: Cast) -> None:
    queue = "clusters:\n- slug: main\n  queues: [{slug: default, priority: 60}]\n"
    profile = "profiles: [{name: day}]\n"

    for name, person in cast.people().items():
        may = person in (cast.operator, cast.admin)
        assert apply(client, person, queue, dry_run=True).status_code == (200 if may else 403), name
        assert apply(client, person, profile, dry_run=True).status_code == (
            200 if person == cast.admin else 403
        ), name
        reads = client.get("/api/v1/configuration", headers=bearer(person, *READS))
        assert reads.status_code == (200 if may or person == cast.auditor else 403), name


@pytest.mark.django_db(transaction=True)
def test_the_command_line_exports_compares_and_applies(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Any
) -> None:
    ensure_defaults()
    admin = the_cast().admin
    server = Server().start()
    try:
        monkeypatch.setenv("MUSTER_URL", server.url)
        monkeypatch.setenv("MUSTER_TOKEN", a_token(admin, "admin"))
        file = tmp_path / "site.yaml"

        def run(*arguments: str) -> tuple[int, str, str]:
            code = main(["configuration", *arguments])
            said = capsys.readouterr()
            return code, said.out, said.err

        file.write_text(run("export")[1].replace("priority: 50", "priority: 70"))
        shown = run("apply", "-f", str(file), "--reason", "try", "--dry-run")
        changed = "~ queues default\n    priority: 50 -> 70\n1 row would change. Nothing was changed.\n"
        assert shown[:2] == (0, changed)
        assert Queue.objects.get().priority == 50
        assert run("apply", "-f", str(file), "--reason", "now")[1].endswith("1 row changed.\n")
        assert Queue.objects.get().priority == 70
        file.write_text("clusters:\n- slug: main\n  queues: [{slug: default, priority: x}]\n")
        code, _, said = run("apply", "-f", str(file), "--reason", "now")
        assert code == 1
        assert "line 3: priority has to be a whole number." in said
        assert "Nothing was changed." in said
    finally:
        server.stop()
