"""Docker hosts as nodes: what a container is given, and what happens when Docker or somebody else interferes."""

from __future__ import annotations

import pytest
from django.utils import timezone

from scheduler.models import Cluster, Job, Node
from scheduler.services.execution import driving
from scheduler.services.jobs.logs import read_log
from scheduler.services.jobs.verbs import cancel_job
from tests.backends.conftest import DockerBench
from tests.backends.docker.server import IMAGE
from tests.support.agents import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.root]


def run(docker: DockerBench, command: str, **fields: object) -> Job:
    return docker.settle(
        docker.world.submit(command, image=IMAGE, **fields), "completed", "failed", "cancelled"
    )


def output(job: Job, stream: str = "merged") -> str:
    return read_log(job=job, stream=stream).data.decode()


def test_hosts_become_nodes_with_what_docker_says_of_them(docker: DockerBench) -> None:
    nodes = list(Node.objects.order_by("name"))

    assert [(node.name, node.state, node.cpu_millis, node.gpu_millis) for node in nodes] == [
        ("n1", "up", 8000, 2000),
        ("n2", "up", 8000, 2000),
    ]
    assert nodes[0].labels["backend"] == "docker"
    assert nodes[0].agent_version.startswith("Docker ")


def test_the_log_is_whole_when_a_job_is_completed(docker: DockerBench) -> None:
    """60,000 lines, on both streams, of a job that takes a moment."""
    job = run(docker, "seq 1 60000; echo last >&2")

    assert job.state == "completed"
    out = read_log(job=job, stream="stdout", limit=1024 * 1024)
    assert out.data.decode().splitlines() == [str(number) for number in range(1, 60_001)]
    assert (output(job, "stderr"), out.eof) == ("last\n", True)


def test_a_container_has_the_jobs_variables_folder_and_script(docker: DockerBench) -> None:
    job = run(
        docker, "", script="#!/bin/sh\npwd; echo $WORLD_SIZE $COLOUR $MUSTER_JOB_NUMBER $MUSTER_CPUS; touch here\n",
        env={"COLOUR": "blue"}, cpu_cores=2,
    )  # fmt: skip

    assert output(job) == f"/muster/work\n1 blue {job.number} 2\n"


def test_a_task_gets_the_gpus_that_it_was_given(docker: DockerBench) -> None:
    job = docker.settle(docker.start(gpu_count=2), "running")

    asked = docker.daemon_of(job).inspect(docker.container_of(job), "{{json .HostConfig.DeviceRequests}}")
    assert '"DeviceIDs":["0","1"]' in asked
    docker.finish(job)
    docker.settle(job, "completed")


def test_more_memory_than_asked_for_ends_a_task_as_out_of_memory(docker: DockerBench) -> None:
    command = "head -c 200000000 /dev/zero | tail -c 199999999 > /dev/null"
    job = run(docker, command, memory_bytes=32 * 2**20, restart_policy="never")

    assert (job.state, job.failure_class) == ("failed", "out-of-memory")


def test_a_time_limit_ends_a_container(docker: DockerBench) -> None:
    job = run(docker, "sleep 60", time_limit=1)

    assert job.state == "failed"
    assert "time limit" in job.end_text


def test_a_container_that_ignores_sigterm_is_killed_after_the_grace_time(docker: DockerBench) -> None:
    job = docker.world.submit("trap '' TERM; while true; do sleep 0.1; done", image=IMAGE, time_limit=1)
    docker.settle(job, "failed")

    assert "time limit" in job.end_text


def test_an_image_that_cannot_be_fetched_fails_the_job_with_dockers_words(docker: DockerBench) -> None:
    job = docker.world.submit("true", image="localhost:1/nothing/here:1", restart_policy="never")
    docker.settle(job, "failed")

    assert "Image localhost:1/nothing/here:1 cannot be fetched" in job.end_text


def test_a_program_that_the_image_lacks_fails_the_job_with_the_reason(docker: DockerBench) -> None:
    job = docker.world.submit("", script="#!/bin/nothing\n", image=IMAGE, restart_policy="never")
    docker.settle(job, "failed")

    assert job.exit_code is not None or "could not be started" in job.end_text or "refused" in job.end_text


def test_a_suspended_container_is_frozen_and_goes_on(docker: DockerBench) -> None:
    job = docker.settle(docker.start(), "running")
    backend = docker.backend
    task = docker.world.task(job)

    backend.pause(task.node.name, [(task.pk, job.epoch, 1)])
    assert docker.daemon_of(job).inspect(docker.container_of(job), "{{.State.Status}}") == "paused"
    backend.pause(task.node.name, [(task.pk, job.epoch, 0)])
    docker.finish(job)

    docker.settle(job, "completed")


# ---------------------------------------------------------------- interference


def test_a_container_removed_by_somebody_else_is_lost_and_the_job_runs_again(docker: DockerBench) -> None:
    job = docker.settle(docker.start(), "running")

    docker.daemon_of(job).remove(docker.container_of(job))
    wait_for(lambda: docker.step() or job.attempts.filter(state="lost").exists())

    job.refresh_from_db()
    assert job.state == "queued"
    Job.objects.filter(pk=job.pk).update(eligible_at=timezone.now())
    docker.settle(job, "running")
    docker.finish(job)
    docker.settle(job, "completed")
    docker.world.assert_nothing_is_held()


def test_a_daemon_that_is_killed_costs_a_pause_and_no_job(docker: DockerBench) -> None:
    """Containers go on without it (live restore); output of that time is not lost."""
    job = docker.settle(docker.start(), "running")
    daemon = docker.daemon_of(job)

    daemon.kill()
    docker.step()
    docker.step()
    job.refresh_from_db()
    assert job.state == "running"
    daemon.start()
    docker.finish(job)

    docker.settle(job, "completed")
    assert job.epoch == 1
    docker.world.assert_nothing_is_held()


def test_a_driver_that_is_replaced_goes_on_with_the_same_containers(docker: DockerBench) -> None:
    """Nothing is started twice, no line of a log is missing or doubled, and a stop that was asked for happens."""
    first = docker.settle(docker.world.submit("seq 1 500; sleep 2; seq 501 1000", image=IMAGE), "running")
    second = docker.settle(docker.start(), "running")
    cancel_job(job=second, by=docker.world.user)

    docker.replace_driver()
    docker.settle(first, "completed")
    docker.settle(second, "cancelled")

    assert output(first).split() == [str(number) for number in range(1, 1001)]
    assert first.epoch == 1


def test_a_driver_killed_between_create_and_start_starts_the_task_once(docker: DockerBench) -> None:
    job = docker.start()
    docker.world.plan()
    job.refresh_from_db()
    daemon, name = docker.daemon_of(job), docker.container_of(job)
    docker.create_only(job)
    assert daemon.inspect(name, "{{.State.Status}}") == "created"

    docker.replace_driver()
    docker.settle(job, "running")

    assert len([one for one in daemon.containers() if one == name]) == 1
    docker.finish(job)
    docker.settle(job, "completed")


def test_two_drivers_do_not_share_a_cluster(docker: DockerBench) -> None:
    other = driving.Driver()

    assert other.round() is False
    docker.driver.release()
    assert other.round() is True
    assert docker.driver.round() is False
    other.release()


def test_containers_of_ended_jobs_are_removed_and_those_of_others_stay(docker: DockerBench) -> None:
    daemon = next(iter(docker.daemons.values()))
    daemon.run("somebody-elses", IMAGE, "sleep", "60")
    job = run(docker, "true")
    wait_for(lambda: docker.step() or docker.containers() == ["somebody-elses"])

    assert job.state == "completed"


def test_fifty_jobs_at_once_end_once_each(docker: DockerBench) -> None:
    jobs = [docker.world.submit("echo $MUSTER_JOB_NUMBER", image=IMAGE, cpu_cores=0.1) for _ in range(50)]

    for job in jobs:
        docker.settle(job, "completed")

    assert [output(job).strip() for job in jobs] == [str(job.number) for job in jobs]
    assert Cluster.objects.get().nodes.filter(used_cpu_millis__gt=0).count() == 0
    docker.world.assert_nothing_is_held()
