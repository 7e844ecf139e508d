"""Real jobs through a real agent: what they see, what they leave, how they end."""

from __future__ import annotations

import json
import os
import time
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone
from pytest_django.fixtures import Settings

from scheduler.agent import processes
from scheduler.models import Attempt, Job, Node, SchedulerProfile, Task
from scheduler.services.jobs.logs import read_log
from scheduler.services.jobs.resize import resize_job
from scheduler.services.jobs.usage import usage_of
from scheduler.services.jobs.verbs import cancel_job
from tests.scheduler.agent.conftest import StartAgent
from tests.support.agents import ROOT, World, wait_for
from tests.support.patience import patience

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def isolation() -> str:
    """The jobs here are watched by files that they write outside their own folders."""
    return "off"


def test_a_job_sees_its_own_environment_and_no_secret(world: World, start_agent: StartAgent) -> None:
    agent = start_agent("n1", "--fake-gpus", "2xA100-80GB")

    job = world.submit("env -0; tr '\\0' '\\n' < /proc/$PPID/environ >&2", gpu_count=1, env={"MINE": "ä=\n1"})
    world.run_until(job, "completed")

    seen = dict(line.split(b"=", 1) for line in world.output(job, "stdout").split(b"\0") if line)
    assert seen[b"MINE"].decode() == "ä=\n1"
    assert seen[b"MUSTER_JOB_NUMBER"] == seen[b"SLURM_JOB_ID"] == str(job.number).encode()
    assert seen[b"MUSTER_JOB_ID"] == str(job.uuid).encode()
    assert seen[b"CUDA_VISIBLE_DEVICES"] in (b"0", b"1")
    assert (seen[b"RANK"], seen[b"WORLD_SIZE"], seen[b"LOCAL_RANK"]) == (b"0", b"1", b"0")
    assert seen[b"PWD"].startswith(str(agent.state / "tasks").encode())
    everything = b"\n".join(seen.values()) + world.output(job, "stderr")
    assert agent.token.encode() not in everything
    assert b"muster_agent_" not in everything
    assert b"PYTHONPATH" in world.output(job, "stderr")  # the shim's environment was really read


def test_a_gang_knows_where_everybody_is(world: World, start_agent: StartAgent) -> None:
    start_agent("n1")
    start_agent("n2")

    job = world.submit(
        "echo $RANK $LOCAL_RANK $NODE_RANK $WORLD_SIZE $MASTER_ADDR:$MASTER_PORT", tasks=4, cpu_cores=4
    )
    world.run_until(job, "completed")

    port = 20_000 + job.number % 20_000
    lines = [world.output(job, "stdout", rank=rank).decode().split() for rank in range(4)]
    assert [line[0] for line in lines] == ["0", "1", "2", "3"]
    assert sorted(line[1] for line in lines) == ["0", "0", "1", "1"]
    assert {line[2] for line in lines} == {"0", "1"}
    assert {tuple(line[3:]) for line in lines} == {("4", f"127.0.0.1:{port}")}


def test_a_script_runs_by_its_own_interpreter(world: World, start_agent: StartAgent) -> None:
    start_agent()

    job = world.submit(script="#!/usr/bin/env python3\nimport sys\nprint('python', sys.version_info[0])\n")
    world.run_until(job, "completed")

    assert world.output(job) == b"python 3\n"


def test_output_comes_back_byte_for_byte(world: World, start_agent: StartAgent) -> None:
    start_agent()

    job = world.submit("printf 'a\\0b\\377\\r\\n\\303\\244 no newline'; printf 'other' >&2")
    world.run_until(job, "completed")

    assert world.output(job, "stdout") == b"a\0b\xff\r\n\xc3\xa4 no newline"
    assert world.output(job, "stderr") == b"other"
    assert sorted(world.output(job)) == sorted(b"a\0b\xff\r\n\xc3\xa4 no newlineother")


def test_the_log_of_a_job_is_whole_as_soon_as_the_job_is_completed(
    world: World, start_agent: StartAgent
) -> None:
    start_agent()
    waiting = {
        job.number: job
        for job in (
            world.submit(f"echo first; sleep 0.0{n % 7}; echo last {n}", cpu_cores=0.1) for n in range(20)
        )
    }
    read: dict[int, tuple[bool, str]] = {}

    def none_waits() -> bool:
        if Job.objects.filter(number__in=waiting, state="queued").exists():
            world.plan()
        for job in Job.objects.filter(number__in=waiting).exclude(
            state__in=["queued", "scheduled", "running"]
        ):
            assert job.state == "completed", job.end_text
            part = read_log(job=job)
            read[job.number] = part.eof, part.data.decode()
            del waiting[job.number]
        return not waiting

    wait_for(none_waits)
    first = min(read)
    assert read == {number: (True, f"first\nlast {number - first}\n") for number in read}
    assert len(read) == 20


def test_output_is_there_while_the_job_runs(world: World, start_agent: StartAgent) -> None:

    start_agent()
    job = world.submit("echo first; sleep 30")
    world.run_until(job, "running")

    wait_for(lambda: read_log(job=job, stream="stdout").data == b"first\n", seconds=5)

    assert read_log(job=job, stream="stdout").eof is False
    cancel_job(job=job, by=world.user)
    world.run_until(job, "cancelled")


def test_too_much_output_is_cut_visibly(world: World, start_agent: StartAgent, settings: Settings) -> None:
    settings.MUSTER_LOG_CAP_BYTES = 100_000
    start_agent()

    job = world.submit("head -c 300000 /dev/zero | tr '\\0' x; echo end >&2")
    world.run_until(job, "completed")

    output = world.output(job, "stdout")
    assert output[:100_000] == b"x" * 100_000
    assert output[100_000:] == b"\n[muster: only the first 97 KiB of this output are kept]\n"
    assert world.output(job, "stderr") == b"end\n"


def test_a_time_limit_asks_first_and_kills_then(
    world: World, start_agent: StartAgent, settings: Settings
) -> None:
    settings.MUSTER_GRACE_SECONDS = 1
    start_agent()

    polite = world.submit("trap 'echo saved; exit 0' TERM; sleep 60 & wait", time_limit=1)
    stubborn = world.submit("trap '' TERM; echo $$; while :; do sleep 0.1; done", time_limit=1)
    world.run_until(polite, "failed")
    world.run_until(stubborn, "failed")

    assert world.output(polite) == b"saved\n"
    assert polite.end_text == stubborn.end_text == "Stopped at the time limit of 1 s."
    assert stubborn.attempts.get().stop_reason == "time_limit"
    task = world.task(stubborn)
    assert (task.exit_code, task.exit_signal) == (None, 9)
    assert (task.ended_at - task.started_at).total_seconds() < patience(8)


def _forks_guards(pid: int) -> bool:
    return b"guards are forked here" in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_nothing_of_a_job_survives_it(world: World, start_agent: StartAgent) -> None:
    agent = start_agent()

    job = world.submit(
        "sleep 1000 & (setsid sleep 1000 &); (setsid sh -c 'trap \"\" TERM; sleep 1000; :' &); sleep 0.3; echo done"
    )
    world.run_until(job, "completed")

    key = f"{world.task(job).pk}-1"
    wait_for(lambda: not _processes_of(key), seconds=5)
    # The guard of the task waits for another task, without a child; the process that forks guards stays.
    servers = [pid for pid in processes.children_of(agent.shim_pid) if _forks_guards(pid)]
    assert len(servers) == 1
    guards = set(processes.children_of(agent.shim_pid)) - set(servers)
    assert len(guards) <= 1
    assert not any(processes.children_of(guard) for guard in guards)
    wait_for(lambda: list((agent.state / "tasks").iterdir()) == [], seconds=5)


def _processes_of(key: str) -> list[int]:
    return [pid for pid in processes.all_pids() if processes.environment_value(pid, "MUSTER_TASK_KEY") == key]


def test_what_cannot_start_says_why(world: World, start_agent: StartAgent) -> None:
    start_agent()

    nowhere = world.submit("true", working_dir="/no/such/folder")
    world.run_until(nowhere, "failed")
    no_interpreter = world.submit(script="#!/no/such/interpreter\n")
    world.run_until(no_interpreter, "failed")

    assert (
        nowhere.end_text
        == "The working directory /no/such/folder cannot be used on this node: No such file or directory."
    )
    assert no_interpreter.end_text == "The task could not be started: No such file or directory."
    assert nowhere.exit_code == 126
    world.assert_nothing_is_held()


def test_a_command_may_be_longer_than_an_argument(world: World, start_agent: StartAgent) -> None:
    start_agent()

    job = world.submit(": " + "ä" * 65_000 + "\necho long")
    world.run_until(job, "completed")

    assert world.output(job) == b"long\n"


def test_a_hundred_jobs_at_once(world: World, start_agent: StartAgent) -> None:
    start_agent("n1", "--cpus", "200")
    jobs = [world.submit(f"echo {number}", cpu_cores=1) for number in range(100)]

    def all_done() -> bool:
        world.plan()
        return not Job.objects.exclude(state="completed").exists()

    wait_for(all_done)

    assert Attempt.objects.filter(state="succeeded").count() == 100
    jobs[57].refresh_from_db()
    assert world.output(jobs[57]) == b"57\n"
    world.assert_nothing_is_held()


def test_a_job_has_no_more_processes_than_its_node_allows(world: World, start_agent: StartAgent) -> None:
    start_agent("n1", "--max-processes", "40")
    few = world.submit("for i in $(seq 20); do sleep 2 & done; wait")
    many = world.submit("for i in $(seq 60); do env -i setsid sleep 60 & done; wait")
    world.run_until(many, "failed")
    world.run_until(few, "completed")

    assert many.end_text == "The task had 61 processes; the limit on this node is 40."


def test_what_a_job_moved_out_of_its_session_counts_for_its_memory(
    world: World, start_agent: StartAgent
) -> None:
    start_agent()
    job = world.submit(
        "env -i setsid python3 -c 'import time; held = bytes([1]) * 90_000_000; time.sleep(60)' & wait",
        memory_bytes=64 * 2**20, memory_limit="64Mi",
    )  # fmt: skip
    world.run_until(job, "failed")

    assert job.end_text.endswith("MiB of memory; its limit is 64 MiB.")


def test_usage_is_measured(world: World, start_agent: StartAgent) -> None:
    start_agent()

    job = world.submit('python3 -c "x = bytearray(80_000_000); sum(range(2_000_000))"')
    world.run_until(job, "completed")

    task = Task.objects.get()
    assert 76 <= task.peak_memory_mib < 300
    assert 10 <= task.cpu_time_ms < 20_000


def test_gpus_that_nvml_tells_of_are_given_out(world: World, start_agent: StartAgent) -> None:
    start_agent(python_path=str(ROOT / "tests/support/pretend_nvml"))

    node = Node.objects.get()
    assert [(d.uuid, d.model, d.healthy, d.power_watts) for d in node.devices.all()] == [
        ("GPU-0", "H200", True, 76), ("GPU-1", "H200", False, 76),
    ]  # fmt: skip
    assert node.trouble == "GPU 1 not healthy: row remapping of the memory failed"

    job = world.submit("echo $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER $MUSTER_GPU_UUIDS", gpu_count=1)
    world.run_until(job, "completed")
    assert world.output(job) == b"GPU-0 PCI_BUS_ID GPU-0\n"


def test_a_cancelled_job_gets_its_grace(world: World, start_agent: StartAgent, tmp_path: Path) -> None:
    start_agent()
    mark = tmp_path / "saved"
    job = world.submit(f"trap 'echo yes > {mark}; exit 7' TERM; echo ready; sleep 60 & wait")
    world.run_until(job, "running")
    wait_for(lambda: world.task(job).log_chunks.exists())

    before = time.monotonic()
    cancel_job(job=job, by=world.user, reason="enough")
    world.run_until(job, "cancelled")

    assert mark.read_text() == "yes\n"
    assert time.monotonic() - before < patience(10)
    assert world.task(job).exit_code == 7
    assert not os.path.exists(f"/proc/{world.task(job).pid}")


def test_a_gang_goes_on_without_the_one_that_failed(world: World, start_agent: StartAgent) -> None:
    start_agent("n1")

    job = world.submit(
        "[ $RANK != 1 ] || exit 3; sleep 1; echo $RANK of $WORLD_SIZE",
        tasks=3, min_tasks=2, on_task_failure="continue",
    )  # fmt: skip
    world.run_until(job, "completed")

    assert world.output(job, "stdout", rank=2) == b"2 of 3\n"
    assert (world.task(job, 1).exit_code, job.end_text) == (
        3,
        "1 of 3 tasks failed; the other 2 were enough.",
    )
    world.assert_nothing_is_held()


def test_a_gang_that_wants_to_is_ended_whole_and_starts_again(
    world: World, start_agent: StartAgent, tmp_path: Path
) -> None:
    start_agent("n1")

    job = world.submit(
        f"[ $MUSTER_ATTEMPT = 2 ] && exit 0; [ $RANK = 1 ] && exit 3; sleep 60; touch {tmp_path}/survived",
        tasks=2, on_task_failure="requeue", restart_delay=1,
    )  # fmt: skip
    world.run_until(job, "completed")

    assert (job.epoch, job.restart_policy) == (2, "interrupted")
    assert not (tmp_path / "survived").exists()
    world.assert_nothing_is_held()


def test_an_elastic_job_loses_its_last_task_and_goes_on(world: World, start_agent: StartAgent) -> None:
    start_agent("n1")
    job = world.submit(
        "trap 'exit 9' TERM; echo up; i=0; while [ $i -lt 40 ]; do sleep 0.05; i=$((i+1)); done; echo $RANK done",
        tasks=2, min_tasks=1, elastic=True,
    )  # fmt: skip
    world.run_until(job, "running")
    wait_for(lambda: all(task.pid for task in Task.objects.filter(attempt__job=job)))

    resize_job(job=job, tasks=1, by=world.user)

    wait_for(lambda: world.task(job, 1).state == "stopped")
    world.run_until(job, "completed")
    assert world.output(job, "stdout", rank=0).endswith(b"0 done\n")
    world.assert_nothing_is_held()


def test_tasks_that_stay_are_told_how_many_they_are(world: World, start_agent: StartAgent) -> None:
    """Finding 25: the size of a job that became smaller is in the world file of those that go on."""
    start_agent("n1")
    job = world.submit(
        'echo $WORLD_SIZE; [ -e "$MUSTER_WORLD_FILE" ] && exit 9; '
        'until [ -e "$MUSTER_WORLD_FILE" ]; do sleep 0.05; done; cat "$MUSTER_WORLD_FILE"',
        tasks=2, min_tasks=1, elastic=True,
    )  # fmt: skip
    world.run_until(job, "running")
    wait_for(lambda: all(task.pid for task in Task.objects.filter(attempt__job=job)))

    resize_job(job=job, tasks=1, by=world.user)
    world.run_until(job, "completed")

    size, said = world.output(job, "stdout", rank=0).decode().splitlines()
    assert size == "2"
    assert json.loads(said) == {"size": 1, "ranks": "0", "attempt": 1}
    world.assert_nothing_is_held()


def test_the_planner_takes_a_task_for_a_higher_job_and_gives_it_back(
    world: World, start_agent: StartAgent
) -> None:
    """Two real processes: the last ends for another job; once that is over the first starts again with two."""
    SchedulerProfile.objects.update(
        preemption_enabled=True, preemption={"protected_seconds": 0}, options={"resize_seconds": 300}
    )
    start_agent("n1", "--fake-gpus", "2xA100-80GB")
    sweep = world.submit(
        'echo world $WORLD_SIZE; while :; do echo /ckpt > "$MUSTER_CHECKPOINT_FILE"; sleep 0.1; done',
        tasks=2, min_tasks=1, elastic=True, gpu_count=1, priority=10,
    )  # fmt: skip
    world.run_until(sweep, "running")
    wait_for(lambda: all(task.pid for task in Task.objects.filter(attempt__job=sweep)))
    wait_for(lambda: Job.objects.get(pk=sweep.pk).saved_at)
    Attempt.objects.filter(job=sweep).update(started_at=timezone.now() - timedelta(hours=1))

    urgent = world.submit("echo mine", gpu_count=1, priority=90)
    world.run_until(urgent, "completed")

    assert world.task(sweep, 1).state == "stopped"
    sweep.refresh_from_db()
    assert (sweep.state, sweep.epoch) == ("running", 1)
    Attempt.objects.filter(job=sweep).update(resized_at=timezone.now() - timedelta(hours=1))

    def has_two_again() -> bool:
        world.plan()
        return Task.objects.filter(attempt__job=sweep, attempt__epoch=2, state="running").count() == 2

    wait_for(has_two_again, every=0.2)
    cancel_job(job=Job.objects.get(pk=sweep.pk), by=world.user)
    wait_for(lambda: Job.objects.get(pk=sweep.pk).is_terminal)
    assert world.output(Job.objects.get(pk=sweep.pk), "stdout", rank=0).startswith(b"world 2")
    world.assert_nothing_is_held()


def test_a_checkpoint_that_a_task_writes_lets_others_go(world: World, start_agent: StartAgent) -> None:
    start_agent("n1")
    train = world.submit('echo /data/step-1 > "$MUSTER_CHECKPOINT_FILE"; sleep 30')
    evaluate = world.submit("echo found", depends_on=[{"job": train.number, "type": "checkpoint"}])
    world.run_until(train, "running")

    wait_for(lambda: Job.objects.get(pk=evaluate.pk).state != "blocked")

    train.refresh_from_db()
    assert (train.state, train.saved_path) == ("running", "/data/step-1")
    world.run_until(evaluate, "completed")
    cancel_job(job=train, by=world.user)
    wait_for(lambda: Job.objects.get(pk=train.pk).is_terminal)


def test_the_usage_of_a_running_job_is_sampled(world: World, start_agent: StartAgent) -> None:
    start_agent("n1", "--usage-seconds", "0.2")

    job = world.submit("while :; do :; done")
    world.run_until(job, "running")
    used = wait_for(lambda: (found := usage_of(job)) and found.points and found)
    cancel_job(job=job, by=world.user)

    assert used.points[0].cpu_millis > 100
    assert 0 < used.points[0].memory_mib < 64
    assert used.points[0].gpu_percent is None
    world.run_until(job, "cancelled")
    assert usage_of(job) is not None  # kept after the end
