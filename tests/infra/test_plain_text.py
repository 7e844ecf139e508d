"""Names are one line that reads as it is stored, at every door."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from accounts.models import ApiToken, Project
from accounts.services.projects import create_organization, create_project, edit_project
from accounts.services.tokens import issue_token
from accounts.services.users import create_user, edit_user
from infra.errors import InvalidInput, MusterError
from infra.plain_text import is_hidden, line_problem, lines_problem, without_hidden
from quotas.services.budgets import make_budget
from scheduler.models import Job, Node, Queue
from scheduler.services.cluster.nodes import drain_node, issue_join_token, register_node
from scheduler.services.cluster.queues import pause_queue
from scheduler.services.jobs.datasets import declare_dataset
from scheduler.services.jobs.submit import submit_job
from scheduler.services.reservations.reserve import reserve
from scheduler.services.submission.sbatch.parse_sbatch import parse_sbatch
from tests.scheduler.portal import Portal, a_portal
from tests.support.factories import a_token
from tests.support.kept import made_once

HIDDEN = {
    "line feed": "\n", "carriage return": "\r", "tab": "\t", "escape": "\x1b", "null": "\0", "delete": "\x7f",
    "C1": "\x9b", "next line": "\x85", "override": "\u202e", "isolate": "\u2066", "mark": "\u200f",
    "Arabic mark": "\u061c", "zero width": "\u200b", "joiner": "\u200d", "word joiner": "\u2060", "BOM": "\ufeff",
    "soft hyphen": "\u00ad", "line separator": "\u2028", "tag": "\U000e0041", "filler": "\u3164",
}  # fmt: skip
each = pytest.mark.parametrize("hidden", HIDDEN.values(), ids=HIDDEN.keys())
some = pytest.mark.parametrize(
    "hidden", ["\n", "\x1b[2J", "\u202e", "\u200b"], ids=["LF", "ESC", "bidi", "width"]
)


one_portal = made_once(a_portal)


@pytest.fixture
def portal(one_portal: Portal, db: None) -> Portal:
    return deepcopy(one_portal)


@each
def test_what_cannot_be_seen_is_found_wherever_it_stands(hidden: str) -> None:
    for text in (hidden, f"train{hidden}", f"{hidden}train", f"tr{hidden}ain"):
        assert line_problem(text)
        assert not line_problem(without_hidden(text))


@pytest.mark.parametrize(
    "name", ["train", "Größe 7", "日本語", "mañana", "обучение", "تدريب", "e\u0301", "🚀 ok", "a&b <c>"]
)
def test_names_in_any_writing_are_names(name: str) -> None:
    assert line_problem(name) == ""


def test_a_text_of_several_lines_may_break_them_and_hold_nothing_else() -> None:
    assert lines_problem("one\n\ttwo\r\nthree") == ""
    assert lines_problem("one\x1b[2J")


@given(st.text())
def test_what_is_taken_out_is_what_is_refused(text: str) -> None:
    assert bool(line_problem(text)) == any(map(is_hidden, text))
    assert line_problem(without_hidden(text)) == ""


# ---------------------------------------------------------------- services, and so the command line


def services(portal: Portal, bad: str) -> dict[str, Callable[[], Any]]:
    cast = portal.cast
    admin = cast.admin
    by = {"by": admin}
    job = {"command": "true"}
    return {
        "job": lambda: submit_job(payload={**job, "name": bad}, by=cast.owner),
        "label": lambda: submit_job(payload={**job, "labels": {"team": bad}}, by=cast.owner),
        "label key": lambda: submit_job(payload={**job, "labels": {bad: "x"}}, by=cast.owner),
        "selector": lambda: submit_job(payload={**job, "node_selector": {"rack": bad}}, by=cast.owner),
        "folder": lambda: submit_job(payload={**job, "working_dir": f"/{bad}"}, by=cast.owner),
        "data it waits for": lambda: submit_job(payload={**job, "depends_on": [{"data": bad}]}, by=cast.owner),
        "dataset": lambda: declare_dataset(payload={"project": cast.project.slug, "name": bad}, by=cast.owner),
        "dataset's path": lambda: declare_dataset(
            payload={"project": cast.project.slug, "name": "faces", "path": f"/{bad}"}, by=cast.owner
        ),
        "reservation": lambda: reserve(
            payload={"name": bad, "nodes": ["n1"], "seconds": 3600}, **by
        ),
        "organization": lambda: create_organization(name=bad, slug="lab", **by),
        "project": lambda: create_project(organization=cast.project.organization, name=bad, slug="new", **by),
        "project renamed": lambda: edit_project(project=cast.project, changes={"name": bad}, **by),
        "token": lambda: issue_token(user=admin, name=bad, scopes=["jobs:read"], **by),
        "username": lambda: create_user(username=bad, **by),
        "person's name": lambda: edit_user(user=cast.owner, changes={"first_name": bad}, **by),
        "budget": lambda: make_budget(
            subject=cast.project, name=bad, resource="gpu_milli_seconds", amount=1, period="month", reason="x",
            **by,
        ),
        "queue's reason": lambda: pause_queue(queue=portal.queue, reason=bad, **by),
        "node": lambda: register_node(
            join_token=issue_join_token(cluster=portal.cluster, by=admin)[1],
            name=bad, inventory={"cpu_millis": 1000, "memory_mib": 1024, "storage_mib": 0, "numa_domains": 1},
        ),
    }  # fmt: skip


@some
@pytest.mark.parametrize("what", range(18))
def test_no_service_takes_such_a_name(portal: Portal, what: int, hidden: str) -> None:
    verbs = services(portal, f"tr{hidden}ain")
    assert len(verbs) == 18
    name, verb = list(verbs.items())[what]
    services(portal, "train")[name]()  # and it takes another
    with pytest.raises(MusterError) as refused:
        verb()
    assert refused.value.status in (400, 422), name
    assert isinstance(refused.value, InvalidInput), name


@some
def test_reasons_are_one_line(portal: Portal, hidden: str) -> None:
    bad = f"a{hidden}b"
    if hidden != "\n":  # a line break of a typed reason becomes a space
        with pytest.raises(InvalidInput):
            drain_node(node=portal.n1, by=portal.cast.admin, reason=bad)
    assert not Node.objects.get(pk=portal.n1.pk).draining


@some
def test_a_script_names_no_such_job_and_keeps_its_lines(portal: Portal, hidden: str) -> None:
    script = f"#!/bin/sh\n#SBATCH --job-name='tr{hidden}ain'\necho one\n\techo two\n"
    with pytest.raises(InvalidInput):
        submit_job(payload=parse_sbatch(script)[0], by=portal.cast.owner)
    good = submit_job(payload={"script": "#!/bin/sh\necho one\n\techo '\x1b[1m'\n"}, by=portal.cast.owner)
    assert "\n" in Job.objects.get(pk=good.pk).script


@pytest.mark.parametrize("command", ["\x1b[31mred", "\u202etxt", "\u200b"])
def test_a_name_made_from_what_runs_has_none(portal: Portal, command: str) -> None:
    job = submit_job(payload={"command": f"{command}\ntrue"}, by=portal.cast.owner)
    assert line_problem(job.name) == ""
    assert job.name


def test_the_command_line_makes_no_such_token(portal: Portal) -> None:
    with pytest.raises((CommandError, MusterError)):
        call_command("token", portal.cast.owner.username, "--name", "a\x1b[2Jb", "--scopes", "jobs:read")
    assert not ApiToken.objects.exists()


# ---------------------------------------------------------------- over HTTP


def of_the_api(portal: Portal, bad: str) -> dict[str, dict[str, Any]]:
    project = portal.cast.project
    return {
        "/api/v1/jobs": {"command": "true", "name": bad},
        "/api/v1/jobs:bulk": {"jobs": [{"command": "true", "name": bad}]},
        "/api/v1/jobs/preview": {"command": "true", "affinity": {"required": [[{"key": bad}]]}},
        "/api/v1/slurm/sbatch": {"script": "#!/bin/sh\ntrue", "name": bad},
        "/api/v1/projects": {"organization": project.organization.slug, "name": bad},
        "/api/v1/tokens": {"name": bad, "scopes": ["jobs:read"]},
        "/api/v1/reservations": {"name": bad, "nodes": ["n1"], "seconds": 3600},
        "/api/v1/datasets": {"project": project.slug, "name": bad},
        f"/api/v1/queues/{portal.queue.slug}/pause": {"reason": bad},
        "/api/v1/nodes/n1/drain": {"reason": bad},
        "/api/v1/quotas/budgets": {"project": project.slug, "name": bad, "resource": "gpu_milli_seconds"},
        "/api/v1/whatever/comes/later": {"anything": {"new": [bad]}},
    }


@some
def test_no_route_of_the_api_takes_such_a_text(portal: Portal, hidden: str) -> None:
    client = Client()
    headers = {"Authorization": f"Bearer {a_token(portal.cast.admin, 'admin')}"}
    for path, body in of_the_api(portal, f"tr{hidden}ain").items():
        answer = client.post(path, json.dumps(body), content_type="application/json", headers=headers)
        if answer.status_code not in (404, 405):
            assert answer.status_code == 422, (path, answer.content)
            assert "U+" in answer.json()["detail"], path
    deleted = client.delete("/api/v1/jobs/1?reason=a%1bb", headers=headers)
    assert deleted.status_code in (404, 422)
    assert not Job.objects.exists()


@some
def test_no_form_takes_such_a_name(portal: Portal, hidden: str) -> None:
    bad = f"tr{hidden}ain"
    people = Client()
    people.force_login(portal.cast.owner)
    answer = people.post("/submit/", {"what": "true", "name": bad, "project": portal.cast.project.slug})
    assert answer.status_code == 422
    answer = people.post("/tokens/", {"name": bad, "scopes": ["jobs:read"], "days": "7"})
    assert answer.status_code == 422
    assert not Job.objects.exists()
    assert not ApiToken.objects.exists()


@some
def test_no_page_of_the_admin_takes_such_a_name(portal: Portal, hidden: str) -> None:
    bad = f"tr{hidden}ain"
    admin = Client()
    admin.force_login(portal.cast.admin)
    pages = {
        "scheduler/queue": {"name": bad, "slug": "new", "cluster": portal.cluster.pk, "reason": "a new one"},
        "scheduler/partition": {"name": bad, "cluster": portal.cluster.pk, "reason": "a new one"},
        "scheduler/priorityclass": {"name": bad, "value": 10, "reason": "a new one"},
        "accounts/project": {"name": bad, "slug": "new", "organization": portal.cast.project.organization.pk},
        "accounts/organization": {"name": bad, "slug": "new"},
    }
    for page, form in pages.items():
        answer = admin.post(f"/admin/{page}/add/", form)
        assert answer.status_code == 200, page
        assert "U+" in answer.content.decode(), page
    assert not Queue.objects.filter(slug="new").exists()
    assert not Project.objects.filter(slug="new").exists()
