"""Secrets of real jobs on a real agent: given as files and variables, masked in output, gone at the end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from django.db import connection
from pytest_django.fixtures import Settings

from accounts.models import Membership, Secret
from accounts.services.secrets import delete_secret, set_secret
from scheduler.agent.secret_values import memory
from scheduler.models import Job, Node
from scheduler.services.jobs.verbs import requeue_job
from tests.scheduler.agent.conftest import StartAgent
from tests.support.agents import AgentProcess, World, wait_for
from tests.support.shims import kill_guards

pytestmark = pytest.mark.django_db(transaction=True)

TOKEN = "wandb-4d0e9b77c1"
KEY = "-----BEGIN KEY-----\nMIIEvQIBADANBgkq\n-----END KEY-----\n"
STARS = "*" * len(TOKEN)
BOTH = [{"name": "token", "env": "WANDB_API_KEY"}, {"name": "key", "file": "id_rsa"}]


@pytest.fixture
def kept(world: World) -> World:
    set_secret(owner=world.user, name="token", value=TOKEN, by=world.user)
    set_secret(owner=world.user, name="key", value=KEY, by=world.user)
    return world


def text_of_the_database() -> str:
    """Every row of every table as text; bytes are shown as hexadecimal digits and as they are."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1")
        found = []
        for (table,) in cursor.fetchall():
            cursor.execute(f'SELECT t::text FROM "{table}" t')
            found += [row[0] for row in cursor.fetchall()]
    return "\n".join(found)


def files_with(folder: Path, value: str) -> list[str]:
    """Files below the folder that hold the value."""
    found = []
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink() and value.encode() in path.read_bytes():
            found.append(str(path.relative_to(folder)))
    return sorted(found)


def values_in_memory(state: Path) -> list[str]:
    """Files of this agent's folders in memory."""
    return [
        str(path)
        for folder in memory.folders(state)
        for path in folder.rglob("*")
        if path.is_file() and path.name != memory.STATE
    ]


def test_a_task_gets_its_secrets_and_nobody_else_reads_them(kept: World, start_agent: StartAgent) -> None:
    agent = start_agent()
    job = kept.submit(
        'stat -c "%a %n" "$MUSTER_SECRETS_DIR" "$MUSTER_SECRETS_DIR"/*; ls -a; echo "key $WANDB_API_KEY";'
        ' cat "$MUSTER_SECRETS_DIR/id_rsa" >&2; sleep 2',
        secrets=BOTH, standard_output="out.txt",
    )  # fmt: skip
    kept.run_until(job, "running")
    wait_for(lambda: kept.task(job).log_chunks.exists())
    # On the node's disk: in what the task printed, and nowhere else. In memory: what a next agent masks by.
    where = files_with(agent.state, KEY.splitlines()[1])
    assert {path.rsplit("/", 1)[1] for path in where} <= {"stderr", "stderr.whole"}
    assert files_with(agent.state, TOKEN) == [] or {
        path.rsplit("/", 1)[1] for path in files_with(agent.state, TOKEN)
    } <= {"stdout", "stdout.whole"}
    assert [path.rsplit("/", 2)[1] for path in values_in_memory(agent.state)] == ["masks"]
    assert Node.objects.get().isolation["secrets_in_memory"] is True
    kept.run_until(job, "completed")

    out = kept.output(job, "stdout").decode()
    assert f"key {STARS}\n" in out
    assert "400 " in out
    assert "700 " in out
    assert TOKEN not in out
    assert kept.output(job, "stderr") == b"*" * 19 + b"\n" + b"*" * 16 + b"\n" + b"*" * 17 + b"\n"
    wait_for(lambda: list((agent.state / "results").glob("*/work/out.txt")))
    kept_file = next((agent.state / "results").glob("*/work/out.txt"))
    assert f"key {STARS}\n" in kept_file.read_text()  # what the job names with -o is masked too
    # Once the server has all of it, the node has neither: not in its journal, its log, or anywhere.
    wait_for(lambda: not values_in_memory(agent.state))
    wait_for(lambda: not any((agent.state / "trash").iterdir()))
    assert files_with(agent.state, KEY.splitlines()[1]) == files_with(agent.state, TOKEN) == []


def test_no_row_of_any_table_has_a_value(kept: World, start_agent: StartAgent) -> None:
    start_agent()
    job = kept.submit(
        'echo "$WANDB_API_KEY"; echo "$WANDB_API_KEY" > "$MUSTER_CHECKPOINT_FILE"; sleep 1.5; exit 3',
        secrets=BOTH, restart_policy="never",
    )  # fmt: skip
    kept.run_until(job, "failed")

    text = text_of_the_database()
    assert job.number
    assert "WANDB_API_KEY" in text  # the request is there
    for value in (TOKEN, TOKEN.encode().hex(), "MIIEvQIBADANBgkq", b"MIIEvQIBADANBgkq".hex()):
        assert value not in text
    assert Job.objects.get(pk=job.pk).saved_path == STARS


def test_an_agent_that_adopts_a_task_goes_on_masking(kept: World, start_agent: StartAgent) -> None:
    agent = start_agent()
    job = kept.submit(
        'echo "one $WANDB_API_KEY"; sleep 3; printf "two wandb-4d"; sleep 1; echo "0e9b77c1"', secrets=BOTH
    )
    kept.run_until(job, "running")
    wait_for(lambda: kept.task(job).log_chunks.exists())
    # The value that the server has is another one by now: the task prints the old one.
    set_secret(owner=kept.user, name="token", value="a-newer-value", by=kept.user)
    agent.kill()
    agent.start()
    kept.run_until(job, "completed")

    assert kept.output(job, "stdout").decode() == f"one {STARS}\ntwo {STARS}\n"


@pytest.mark.parametrize("isolation", ["auto", "files", "off"])
def test_secrets_are_gone_also_where_shim_and_guard_are_killed(
    kept: World, start_agent: StartAgent, isolation: str
) -> None:
    agent = start_agent()
    job = kept.submit('cp "$MUSTER_SECRETS_DIR/id_rsa" . && sleep 60', secrets=BOTH, restart_policy="never")
    kept.run_until(job, "running")
    (copy,) = wait_for(lambda: list((agent.state / "tasks").glob("*/work/id_rsa")))
    wait_for(lambda: copy.read_text() == KEY)
    kill_guards(agent.state)
    kept.run_until(job, "failed")

    assert [path for path in files_with(agent.state / "tasks", KEY) if "work" not in path] == []
    assert [path for path in values_in_memory(agent.state) if "/masks/" not in path] == []


@pytest.mark.parametrize("isolation", ["auto", "off"])
def test_secret_files_are_never_on_disk_and_go_with_the_job_after_kills(
    kept: World, start_agent: StartAgent, isolation: str
) -> None:
    agent = start_agent()
    job = kept.submit(
        'while ! test -e go; do sleep 0.05; done; cmp "$MUSTER_SECRETS_DIR/id_rsa" /dev/null', secrets=BOTH
    )
    kept.run_until(job, "running")
    agent.kill_shim()
    agent.kill()
    agent.start()
    (work,) = (agent.state / "tasks").glob("*/work")
    assert files_with(agent.state, KEY) == files_with(agent.state, TOKEN) == []
    assert values_in_memory(agent.state)
    (work / "go").touch()
    kept.run_until(job, "failed")

    assert Job.objects.get(pk=job.pk).exit_code == 1  # the file is there, and differs
    wait_for(lambda: not values_in_memory(agent.state))


def test_the_next_attempt_gets_the_present_value(kept: World, start_agent: StartAgent) -> None:
    agent = start_agent()
    job = kept.submit(
        'echo "$WANDB_API_KEY" | sha256sum > $MUSTER_ATTEMPT; test $MUSTER_ATTEMPT = 2 || sleep 60',
        secrets=BOTH,
    )
    kept.run_until(job, "running")
    wait_for(lambda: any(path.read_text() for path in (agent.state / "tasks").glob("*/work/1")))
    set_secret(owner=kept.user, name="token", value="the-second-value", by=kept.user)
    requeue_job(job=job, by=kept.user, reason="again")
    kept.run_until(job, "completed", "running")
    kept.run_until(job, "completed")

    folder = wait_for(lambda: list((agent.state / "results").glob("*/work")))[0]
    assert (folder / "1").read_text() != (folder / "2").read_text()


def test_a_secret_that_was_deleted_before_the_start_fails_the_job(
    kept: World, start_agent: StartAgent
) -> None:
    job = kept.submit("echo never", secrets=BOTH, restart_policy="never")
    delete_secret(owner=kept.user, name="key", by=kept.user)
    start_agent()
    kept.run_until(job, "failed")

    job.refresh_from_db()
    assert (job.failure_class, job.exit_code) == ("user-error", None)
    assert job.end_text == "The secret key of its owner was deleted. Set it again, and requeue the job."
    assert not kept.task(job).log_chunks.exists()


def test_a_job_of_somebody_who_left_gets_no_secret_of_the_project(
    kept: World, start_agent: StartAgent
) -> None:
    Membership.objects.filter(user=kept.user).update(role="lead")
    set_secret(owner=kept.project, name="shared", value="of-the-project", by=kept.user)
    job = kept.submit("echo never", secrets=[{"name": "shared"}], restart_policy="never")
    Membership.objects.filter(user=kept.user).update(role="viewer")
    start_agent()
    kept.run_until(job, "failed")

    job.refresh_from_db()
    assert job.end_text == "The job names secret shared of the project, and its owner is no longer a member."


def test_a_secret_whose_key_is_missing_is_the_sites_fault(
    kept: World, start_agent: StartAgent, settings: Settings
) -> None:
    settings.MUSTER_STORAGE_KEYS = ["ab" * 32]
    set_secret(owner=kept.user, name="token", value=TOKEN, by=kept.user)
    settings.MUSTER_STORAGE_KEYS = []
    job = kept.submit("echo never", secrets=BOTH, restart_policy="never")
    start_agent()
    kept.run_until(job, "failed")

    job.refresh_from_db()
    assert job.failure_class == "infrastructure"
    assert "The secret token cannot be decrypted" in job.end_text
    assert "MUSTER_STORAGE_KEYS" in job.end_text


def test_elements_of_an_array_have_the_secrets_too(kept: World, start_agent: StartAgent) -> None:
    start_agent()
    job = kept.submit(
        'echo "$MUSTER_ARRAY_INDEX $WANDB_API_KEY"', secrets=BOTH, array="1-3", elements_per_job=3
    )
    kept.run_until(job, "completed")

    assert kept.output(job, "stdout").decode() == "".join(f"{n} {STARS}\n" for n in (1, 2, 3))


def test_another_job_reads_neither_files_nor_environment(kept: World, start_agent: StartAgent) -> None:
    """The rules on files hold for agents of any account; `tests/isolation` tries the rest."""
    agent: AgentProcess = start_agent()
    job = kept.submit("sleep 30", secrets=BOTH)
    kept.run_until(job, "running")
    pid = kept.task(job).pid
    places = " ".join(f"{folder}/*/*" for folder in memory.folders(agent.state))
    assert values_in_memory(agent.state)
    thief = kept.submit(
        f"cat {agent.state}/tasks/*/secrets/id_rsa {places} {places}/* /proc/{pid}/environ /proc/*/environ"
        f" | tr '\\0' '\\n'; ls -R {agent.state} {places}",
    )
    kept.run_until(thief, "completed", "failed")

    assert Secret.objects.count() == 2
    out = kept.output(thief, "stdout")
    assert os.path.exists(agent.state)
    for value in (TOKEN, "MIIEvQIBADANBgkq", "id_rsa"):
        assert value.encode() not in out
