"""Quotas that a real Slurm keeps and enforces: through slurmrestd, and through its own commands."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from accounts.models import AuditEvent, User
from quotas.models import ProviderState
from quotas.services.exchange import due_projects, exchange
from quotas.services.project_quota import set_quota
from quotas.services.providers import repair_provider
from scheduler.models import SchedulerProfile
from tests.backends.slurm.server import SlurmServer
from tests.scheduler.state.small import SmallWorld
from tests.support.factories import (
    MembershipFactory,
    OperatorFactory,
    ProjectFactory,
    QuotaFactory,
    UserFactory,
)
from tests.support.patience import patience

pytestmark = pytest.mark.django_db

COMMANDS, REST = "commands", "rest"


@pytest.fixture
def reach(slurm: SlurmServer, settings, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """`reach("rest")` sets this installation up for the Slurm of these tests."""
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)
    settings.QUOTA_PROVIDER_GRACE_SECONDS = 0

    def choose(how: str) -> None:
        settings.EXECUTOR_SLURM_REST_API_URL = slurm.rest_url
        settings.EXECUTOR_SLURM_AUTH_TOKEN = slurm.token() if how == REST else ""

    choose(REST)
    return choose


@pytest.fixture
def operator() -> User:
    return OperatorFactory()


@pytest.fixture
def project(reach):
    """2 GPUs, 8 cores, 4 GiB, 3 jobs at once; `mustertest1` may submit, and so may nobody else."""
    made = ProjectFactory(slug="vision")
    for resource, hard in (
        ("gpu_millis", 2000), ("cpu_millis", 8000), ("memory_mib", 4096), ("running_jobs", 3),
    ):  # fmt: skip
        QuotaFactory(project=made, resource=resource, hard=hard, provider="slurm")
    user = User.objects.filter(username="mustertest1").first() or UserFactory(username="mustertest1")
    MembershipFactory(project=made, user=user)
    MembershipFactory(project=made, user=UserFactory(), role="viewer")
    return made


def limits_of(slurm: SlurmServer, project) -> tuple[set[str], str]:
    """What `sacctmgr show qos` prints of it: its group limits, and its limit of jobs."""
    text = slurm.run("sacctmgr", "-nP", "show", "qos", f"project-{project.pk}", "format=grptres,grpjobs")
    tres, jobs = text.strip().split("|")
    return set(tres.split(",")), jobs


def until(done: Callable[[], bool], seconds: float = 15) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "it did not come to be"
        time.sleep(0.1)


@pytest.mark.parametrize("how", [REST, COMMANDS])
def test_a_quota_set_in_muster_is_the_qos_of_slurm_and_an_edit_behind_our_back_is_found(
    slurm: SlurmServer, project, operator: User, reach, how: str
) -> None:
    reach(how)
    name = f"project-{project.pk}"
    exchange(project.pk)

    # 1. What Muster says is there, and its members may use it.
    assert limits_of(slurm, project) == ({"cpu=8", "gres/gpu=2", "mem=4G"}, "3")
    people = slurm.run("sacctmgr", "-nP", "show", "assoc", f"account={name}", "format=user,qos,defaultqos")
    assert sorted(people.split()) == [f"mustertest1|{name}|{name}", f"|{name}|{name}"]

    # 2. An edit in Muster goes over; an operator's own words on the QOS stay.
    slurm.run("sacctmgr", "-i", "modify", "qos", name, "set", "priority=55", "flags=DenyOnLimit")
    changes = {
        "gpu_millis": {"hard": 3000},
        "memory_mib": {"hard": 500 * 1024},
        "running_jobs": {"hard": None},
    }
    set_quota(project=project, changes=changes, by=operator, reason="more for the thesis")
    assert due_projects() == [project.pk]
    exchange(project.pk)
    assert limits_of(slurm, project) == ({"cpu=8", "gres/gpu=3", "mem=500G"}, "")
    assert (
        slurm.run("sacctmgr", "-nP", "show", "qos", name, "format=priority,flags").strip() == "55|DenyOnLimit"
    )
    state = ProviderState.objects.get(project=project)
    assert (state.status, state.text) == ("ok", "")
    assert due_projects() == []

    # 3. Somebody edits Slurm by hand: found, shown with both values, and left as it is.
    slurm.run("sacctmgr", "-i", "modify", "qos", name, "set", "grptres=gres/gpu=40,mem=-1")
    slurm.run("sacctmgr", "-i", "delete", "user", "name=mustertest1", f"account={name}")
    exchange(project.pk)
    state.refresh_from_db()
    assert (state.status, state.text) == (
        "drift",
        "gres/gpu is 40 at the provider and 3 in Muster; mem is none at the provider and 500G in Muster;"
        " user/mustertest1 is not a member at the provider and a member in Muster.",
    )
    assert AuditEvent.objects.get(action="quota.drift").before["gres/gpu"] == "40"
    assert "gres/gpu=40" in limits_of(slurm, project)[0]

    # 4. Put right when a person says so.
    repair_provider(project=project, by=operator, reason="the quota was agreed on")
    assert limits_of(slurm, project) == ({"cpu=8", "gres/gpu=3", "mem=500G"}, "")
    assert "mustertest1" in slurm.run("sacctmgr", "-nP", "show", "assoc", f"account={name}", "format=user")
    state.refresh_from_db()
    assert state.status == "ok"
    if how == COMMANDS:  # fair share is read as information; slurmrestd of this version has none
        share = state.facts["fair_share"]
        assert set(share["users"]) == {"mustertest1"}
        assert 0 <= share["norm_shares"] <= 1


def test_slurm_itself_holds_a_job_over_the_limit_and_its_use_is_read_back(
    slurm: SlurmServer, project, operator: User
) -> None:
    exchange(project.pk)
    qos = f"project-{project.pk}"

    def submit(*options: str) -> str:
        text = slurm.run(
            "sbatch",
            "--parsable",
            "-A",
            qos,
            "-o",
            "/dev/null",
            *options,
            "--wrap",
            "sleep 60",
            user="mustertest1",
        )
        return text.strip()

    def told(job: str) -> str:
        return slurm.run("squeue", "-h", "-j", job, "-o", "%T %r %q").strip()

    first, second = submit("--gres=gpu:2"), submit("--gres=gpu:1")
    until(lambda: told(first) == f"RUNNING None {qos}")
    until(lambda: told(second) == f"PENDING QOSGrpGRES {qos}")

    exchange(project.pk)
    state = ProviderState.objects.get(project=project)
    assert {key: state.used[key] for key in ("gres/gpu", "cpu", "jobs")} == {
        "gres/gpu": 2,
        "cpu": 1,
        "jobs": 1,
    }

    set_quota(project=project, changes={"gpu_millis": {"hard": 3000}}, by=operator, reason="one more")
    exchange(project.pk)
    until(lambda: told(second).startswith("RUNNING"))
    slurm.run("scancel", first, second)


def test_slurm_says_what_it_does_not_know_and_the_token_that_it_does_not_take(
    slurm: SlurmServer, project, settings
) -> None:
    QuotaFactory(project=project, resource="gpu_millis", gpu_model="H100", hard=1000, provider="slurm")
    exchange(project.pk)
    state = ProviderState.objects.get(project=project)
    assert state.status == "refused"
    assert "gpu:h100" in state.text

    settings.EXECUTOR_SLURM_AUTH_TOKEN = "not.a.token"
    exchange(project.pk)
    state.refresh_from_db()
    assert state.status == "refused"
    assert "does not accept the token" in state.text


def test_killed_in_the_middle_nothing_is_lost(slurm: SlurmServer, project, settings) -> None:
    """slurmdbd dies after the account was made and before the limits: the next exchange goes on from there."""
    settings.QUOTA_PROVIDER_TIMEOUT_SECONDS = 5
    slurm.run("sacctmgr", "-i", "add", "account", f"project-{project.pk}")
    with slurm.without("slurmdbd"):
        exchange(project.pk)
        state = ProviderState.objects.get(project=project)
        assert (state.status, state.written) == ("unreachable", None)
        assert due_projects() == []  # later

    until(lambda: exchange(project.pk) is not None and not due_projects())

    assert ProviderState.objects.get(project=project).status == "ok"
    assert "gres/gpu=2" in limits_of(slurm, project)[0]


def test_a_frozen_slurmrestd_is_given_up_in_time(slurm: SlurmServer, project, settings) -> None:
    settings.QUOTA_PROVIDER_TIMEOUT_SECONDS = 0.3
    with slurm.paused("slurmrestd"):
        began = time.monotonic()
        exchange(project.pk)
        took = time.monotonic() - began

    assert took < patience(5)
    state = ProviderState.objects.get(project=project)
    assert (state.status, state.text) == (
        "unreachable", "slurmrestd did not answer within 0.3 s.",
    )  # fmt: skip


def test_slurms_fair_share_says_who_goes_first_in_muster(slurm: SlurmServer, project, reach) -> None:
    """A profile with the shares of Slurm: who has no shares in the account of the project comes last."""
    reach(COMMANDS)
    other = User.objects.filter(username="mustertest2").first() or UserFactory(username="mustertest2")
    MembershipFactory(project=project, user=other)
    world = SmallWorld(project=project)
    world.node("n1", gpus=1)
    options = {"shares": "slurm", "factors": {"fairshare": 1000}}
    world.cluster.profile = SchedulerProfile.objects.create(name="slurm", policy="priority", options=options)
    world.cluster.save()
    first = world.job(user=User.objects.get(username="mustertest1"), gpus=1)
    second = world.job(user=other, gpus=1)
    exchange(project.pk)
    account = f"account=project-{project.pk}"
    slurm.run("sacctmgr", "-i", "modify", "user", "mustertest1", "where", account, "set", "fairshare=0")
    with slurm.without("slurmctld"):
        pass  # it works the shares out as it starts, and every few minutes

    def shares() -> list[float]:
        exchange(project.pk)
        people = ProviderState.objects.get(project=project).facts.get("fair_share", {}).get("users", {})
        return [people.get(name, {}).get("fair_share") or 0.0 for name in ("mustertest1", "mustertest2")]

    until(lambda: shares()[0] < shares()[1], seconds=30)

    assert world.plan().started_jobs == (second.number,)
    first.refresh_from_db()
    assert first.state == "queued"
