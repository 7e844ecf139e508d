"""The live socket: who may listen, what comes first, what comes then, and when it ends."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.sessions.models import Session
from django.db import transaction
from django.test import Client
from django.utils import timezone

from accounts.models import ApiToken, Membership, User
from scheduler import outbox
from scheduler.core.lifecycle import JobState
from scheduler.models import Job, Node, Queue
from scheduler.realtime import consumers, feeds
from scheduler.realtime.hub import hub
from scheduler.realtime.subscriptions import make
from scheduler.realtime.topics import cluster_rows, job_rows, parse_topic, queue_rows
from scheduler.state.lifecycle.transitions import announce_job, move_job
from tests.scheduler.realtime.conftest import (
    ORIGIN,
    Connect,
    LiveClient,
    application,
    cookie_of,
    rows,
    scope_of,
)
from tests.support.factories import (
    AttemptFactory,
    DeviceFactory,
    JobEventFactory,
    JobFactory,
    NodeFactory,
    QueueFactory,
    TaskFactory,
    a_token,
    the_cast,
)
from tests.support.patience import patience

pytestmark = pytest.mark.django_db(transaction=True)


def start(job: Job) -> None:
    move_job(job, JobState.SCHEDULED, because="test")


# ---------------------------------------------------------------- first a snapshot, then patches


async def test_a_snapshot_comes_first_and_patches_bring_only_the_rows_that_changed(connect: Connect) -> None:
    cast = await rows(the_cast)()
    job, other = await rows(lambda: [JobFactory(project=cast.project, user=cast.owner) for _ in range(2)])()
    client = await connect(cast.owner)

    first = await client.follow("jobs")
    await rows(start)(job)
    patch = await client.hear("patch")

    assert (first["op"], first["seq"]) == ("snapshot", 0)
    assert set(first["data"]["rows"]) == {f"job:{job.number}", f"job:{other.number}"}
    assert first["data"]["rows"][f"job:{job.number}"]["state"] == "queued"
    assert (patch["seq"], patch["base"]) == (1, first["version"])
    assert set(patch["patch"]["changed"]) == {f"job:{job.number}"}
    assert patch["patch"]["changed"][f"job:{job.number}"]["state"] == "scheduled"


async def test_many_changes_within_a_second_make_one_patch(connect: Connect) -> None:
    cast = await rows(the_cast)()
    jobs = await rows(lambda: [JobFactory(project=cast.project, user=cast.owner) for _ in range(8)])()
    client = await connect(cast.owner)
    await client.follow("jobs")

    for job in jobs:
        await rows(start)(job)
    started = time.monotonic()
    heard = []
    while {key for patch in heard for key in patch["patch"]["changed"]} != {f"job:{j.number}" for j in jobs}:
        heard.append(await client.hear("patch"))

    assert len(heard) <= 1 + time.monotonic() - started + 1


async def test_a_client_that_asks_again_with_its_version_gets_no_data_twice(connect: Connect) -> None:
    cast = await rows(the_cast)()
    await rows(JobFactory)(project=cast.project, user=cast.owner)
    client = await connect(cast.owner)
    first = await client.follow("jobs")

    again = await client.follow("jobs")

    assert again["unchanged"] is True
    assert again["version"] == first["version"]
    assert "data" not in again


async def test_a_page_that_fetches_html_is_told_only_that_something_changed(connect: Connect) -> None:
    cast = await rows(the_cast)()
    job = await rows(JobFactory)(project=cast.project, user=cast.owner)
    client = await connect(cast.owner)

    first = await client.follow("jobs", data=False)
    await rows(start)(job)
    hint = await client.hear("dirty")

    assert "data" not in first
    assert (hint["seq"], hint["version"] != first["version"]) == (1, True)


async def test_a_patch_too_long_to_send_becomes_a_hint_to_ask_again(connect: Connect) -> None:
    cast = await rows(the_cast)()
    client = await connect(cast.owner)
    await client.follow("jobs")

    @transaction.atomic
    def submit_ninety() -> None:
        jobs = JobFactory.create_batch(90, project=cast.project, user=cast.owner, name="x" * 200)
        announce_job(jobs[-1])

    await rows(submit_ninety)()
    hint = await client.hear()
    again = await client.follow("jobs")

    assert hint["op"] == "dirty"
    assert len(again["data"]["rows"]) == 90


async def test_a_paused_client_hears_nothing_and_everything_at_once_when_it_goes_on(connect: Connect) -> None:
    cast = await rows(the_cast)()
    job = await rows(JobFactory)(project=cast.project, user=cast.owner)
    client = await connect(cast.owner)
    await client.follow("jobs")

    await client.say(op="pause")
    await rows(start)(job)
    await client.hear_nothing(2.5)
    await client.say(op="resume")
    patch = await client.hear("patch")

    assert patch["patch"]["changed"][f"job:{job.number}"]["state"] == "scheduled"


async def test_a_client_may_ask_for_slower_updates(connect: Connect) -> None:
    cast = await rows(the_cast)()
    jobs = await rows(lambda: [JobFactory(project=cast.project, user=cast.owner) for _ in range(2)])()
    client = await connect(cast.owner)
    started = time.monotonic()
    await client.follow("jobs", every=4)

    await rows(start)(jobs[0])
    await client.hear("patch", within=8)

    assert time.monotonic() - started > 2.5


async def test_a_pong_says_how_far_each_topic_has_come(connect: Connect) -> None:
    cast = await rows(the_cast)()
    job = await rows(JobFactory)(project=cast.project, user=cast.owner)
    client = await connect(cast.owner)
    await client.follow("jobs")
    await rows(start)(job)
    await client.hear("patch")

    await client.say(op="ping")
    pong = await client.hear("pong")

    assert pong["topics"] == {"jobs": [1, 1]}
    assert pong["degraded"] is False


async def test_a_lost_message_is_noticed_and_made_good(connect: Connect) -> None:
    cast = await rows(the_cast)()
    job = await rows(JobFactory)(project=cast.project, user=cast.owner)
    client = await connect(cast.owner)
    await client.follow("jobs")
    await rows(start)(job)
    await client.hear("patch")  # dropped: the mirror never sees it

    await client.say(op="ping")

    key = f"job:{job.number}"
    await client.until("jobs", lambda seen: seen.get(key, {}).get("state") == "scheduled")


# ---------------------------------------------------------------- who may listen


async def test_nobody_listens_without_signing_in(connect: Connect) -> None:
    client = LiveClient([(b"origin", ORIGIN)])
    assert await client.knock() == {"type": "websocket.accept"}

    assert await client.closed() == 4401


async def test_a_page_of_another_site_is_refused_whatever_its_cookies(connect: Connect) -> None:
    cast = await rows(the_cast)()
    cookie = await cookie_of(cast.owner)
    client = LiveClient([(b"origin", b"http://evil.example"), (b"cookie", cookie)])

    assert (await client.knock())["type"] == "websocket.close"


async def test_a_stranger_cannot_tell_a_job_from_one_that_never_was(connect: Connect) -> None:
    cast = await rows(the_cast)()
    job = await rows(JobFactory)(project=cast.project, user=cast.owner)
    client = await connect(cast.stranger)

    for topic in (f"job:{job.number}", f"log:{job.number}", "job:987654"):
        answer = await client.follow(topic)
        assert (answer["op"], answer["code"], answer["topic"]) == ("error", "not-found", topic)
    listed = await client.follow("jobs")
    assert listed["data"]["rows"] == {}


async def test_everybody_who_may_see_a_job_may_follow_it(connect: Connect) -> None:
    cast = await rows(the_cast)()
    job = await rows(JobFactory)(project=cast.project, user=cast.owner)
    answers = {}

    for name, person in cast.people().items():
        client = await connect(person)
        answers[name] = (await client.follow(f"job:{job.number}"))["op"]

    assert answers == dict.fromkeys(cast.people(), "snapshot") | {"stranger": "error"}


async def test_an_operator_hears_of_every_job(connect: Connect) -> None:
    cast = await rows(the_cast)()
    job = await rows(JobFactory)(project=cast.project, user=cast.owner)
    client = await connect(cast.operator)
    await client.follow("jobs")

    await rows(start)(job)
    patch = await client.hear("patch")

    assert f"job:{job.number}" in patch["patch"]["changed"]


async def test_a_token_follows_what_its_scopes_and_its_project_allow(connect: Connect) -> None:
    cast = await rows(the_cast)()
    job = await rows(JobFactory)(project=cast.project, user=cast.owner)
    elsewhere = await rows(lambda: JobFactory(user=cast.owner))()
    await rows(Membership.objects.create)(project=elsewhere.project, user=cast.owner)
    reader = await connect(token=await rows(a_token)(cast.owner, "jobs:read", project=cast.project))
    other = await connect(token=await rows(a_token)(cast.owner, "quota:read"))

    listed = await reader.follow("jobs")
    refused = await reader.follow(f"job:{elsewhere.number}")
    unscoped = await other.follow("jobs")

    assert set(listed["data"]["rows"]) == {f"job:{job.number}"}
    assert refused["code"] == "not-found"
    assert unscoped["code"] == "not-allowed"


async def test_a_project_queue_is_shown_to_its_members_and_the_operator_only(connect: Connect) -> None:
    cast = await rows(the_cast)()
    await rows(lambda: QueueFactory(slug="open", project=None))()
    await rows(lambda: QueueFactory(slug="own", project=cast.project))()
    seen = {}

    for person in ("owner", "stranger", "operator"):
        client = await connect(cast.people()[person])
        answer = await client.follow("queues")
        seen[person] = {row["slug"] for row in answer["data"]["rows"].values()}

    assert seen == {"owner": {"open", "own"}, "stranger": {"open"}, "operator": {"open", "own"}}


# ---------------------------------------------------------------- rights that end meanwhile


def disable(user: User) -> None:
    User.objects.filter(pk=user.pk).update(is_active=False)


def sign_out(user: User) -> None:
    Session.objects.all().delete()


def change_password(user: User) -> None:
    user.set_password("another battery staple")
    user.save()


@pytest.mark.parametrize("end", [disable, sign_out, change_password])
async def test_t38_who_may_no_longer_listen_is_cut_off_in_five_seconds(connect: Connect, end: Any) -> None:
    cast = await rows(the_cast)()
    client = await connect(cast.owner)
    await client.follow("jobs")

    await rows(end)(cast.owner)
    started = time.monotonic()

    assert await client.closed() == 4401
    assert time.monotonic() - started < patience(5)


def revoke(token: ApiToken) -> None:
    ApiToken.objects.filter(pk=token.pk).update(revoked_at=timezone.now())


def expire(token: ApiToken) -> None:
    ApiToken.objects.filter(pk=token.pk).update(expires_at=timezone.now() - timedelta(seconds=1))


@pytest.mark.parametrize("end", [revoke, expire])
async def test_t38_a_token_that_ends_ends_its_socket(connect: Connect, end: Any) -> None:
    cast = await rows(the_cast)()
    client = await connect(token=await rows(a_token)(cast.owner, "jobs:read"))
    await client.follow("jobs")

    await rows(lambda: end(ApiToken.objects.get(user=cast.owner)))()
    started = time.monotonic()

    assert await client.closed() == 4401
    assert time.monotonic() - started < patience(5)


async def test_t38_a_topic_that_may_no_longer_be_seen_is_gone_and_its_rows_leave_the_lists(
    connect: Connect,
) -> None:
    cast = await rows(the_cast)()
    job = await rows(JobFactory)(project=cast.project, user=cast.owner)
    client = await connect(cast.colleague)
    await client.follow("jobs")
    await client.follow(f"job:{job.number}")

    # Straight in the database, without any service: the socket looks at the rows, not at who told it.
    await rows(lambda: Membership.objects.filter(user=cast.colleague).delete())()
    started = time.monotonic()
    heard = [await client.hear(), await client.hear()]
    await rows(lambda: move_job(Job.objects.get(pk=job.pk), JobState.SCHEDULED, because="test"))()

    by_op = {message["op"]: message for message in heard}
    assert time.monotonic() - started < patience(5)
    assert by_op["gone"]["topic"] == f"job:{job.number}"
    assert by_op["patch"]["patch"] == {"changed": {}, "removed": [f"job:{job.number}"]}
    await client.hear_nothing(2.5)


async def test_a_membership_that_runs_out_ends_what_it_showed(connect: Connect) -> None:
    cast = await rows(the_cast)()
    job = await rows(JobFactory)(project=cast.project, user=cast.owner)
    soon = timezone.now() + timedelta(seconds=2)
    await rows(lambda: Membership.objects.filter(user=cast.colleague).update(expires_at=soon))()
    client = await connect(cast.colleague)
    await client.follow(f"job:{job.number}")

    gone = await client.hear("gone", within=7)

    assert gone["topic"] == f"job:{job.number}"


# ---------------------------------------------------------------- what each topic shows


async def test_the_cluster_shows_each_node_and_each_gpu_as_a_cell(connect: Connect) -> None:
    cast = await rows(the_cast)()
    node = await rows(lambda: NodeFactory(name="gpu-01", gpus=2))()
    client = await connect(cast.owner)
    first = await client.follow("cluster")

    def take_one() -> None:
        Node.objects.filter(pk=node.pk).update(used_gpu_millis=1000, used_cpu_millis=4000)
        node.devices.filter(index=0).update(used_millis=1000)
        outbox.announce(outbox.CLUSTER_TOPIC)

    await rows(take_one)()
    patch = await client.hear("patch")

    key = f"node:{node.pk}"
    assert [gpu["used_millis"] for gpu in first["data"]["rows"][key]["gpus"]] == [0, 0]
    assert [gpu["used_millis"] for gpu in patch["patch"]["changed"][key]["gpus"]] == [1000, 0]
    assert patch["patch"]["changed"][key]["used_cpu_millis"] == 4000


@pytest.mark.django_db
def test_a_queue_shows_its_counts_and_what_holds_most_jobs() -> None:
    queue = QueueFactory()
    JobFactory.create_batch(2, queue=queue, reason_code="WaitingForResources")
    JobFactory(queue=queue, reason_code="Priority")
    JobFactory(queue=queue, state=JobState.RUNNING)
    JobFactory(queue=queue, state=JobState.COMPLETED, completed_at=timezone.now())

    row = queue_rows(None)[f"queue:{queue.pk}"]

    assert (row["pending"], row["active"]) == (3, 1)
    assert row["top_reason"] == {"code": "WaitingForResources", "jobs": 2}
    assert row["oldest_pending_at"] == Job.objects.pending().order_by("created_at")[0].created_at


@pytest.mark.django_db
def test_a_job_shows_its_tasks_and_how_far_its_story_has_come_and_no_environment() -> None:
    job = JobFactory(state=JobState.RUNNING, epoch=1, env={"SECRET": "hunter2"})
    attempt = AttemptFactory(job=job)
    TaskFactory(attempt=attempt, rank=0)
    event = JobEventFactory(job=job)

    shown = job_rows(job.number)

    assert set(shown) == {f"job:{job.number}", "task:0", "story"}
    assert shown["story"] == {"last_event": event.pk, "events": 1, "allocations_held": 0}
    assert "hunter2" not in json.dumps(shown, default=str)


@pytest.mark.django_db
def test_topics_take_as_many_queries_for_many_rows_as_for_one(django_assert_num_queries: Any) -> None:
    queue = QueueFactory()
    for _ in range(2):
        with django_assert_num_queries(2):
            cluster_rows()
        with django_assert_num_queries(2):
            queue_rows(None)
        NodeFactory(gpus=3)
        JobFactory(queue=queue)
        DeviceFactory()
    assert Queue.objects.count() == 1


# ---------------------------------------------------------------- requests that make no sense


NONSENSE = [
    "", "{", "[]", "null", '{"op":"shout"}', '{"op":"subscribe"}', '{"op":"subscribe","topic":7}',
    '{"op":"subscribe","topic":"job:"}', '{"op":"subscribe","topic":"job:-1"}',
    '{"op":"subscribe","topic":"job:99999999999999999999"}', '{"op":"subscribe","topic":"cluster:1"}',
    '{"op":"subscribe","topic":"user:1"}', '{"op":"subscribe","topic":"jobs\\u0000"}', "x" * 5000,
    '{"op":"subscribe","topic":"\\ud800"}', "[" * 4000,
]  # fmt: skip


async def test_a_request_that_makes_no_sense_gets_an_error_and_the_socket_stays(connect: Connect) -> None:
    cast = await rows(the_cast)()
    client = await connect(cast.owner)

    for text in NONSENSE:
        await client.send_text(text)
        assert (await client.hear("error"))["message"], text
    await client.say(op="ping")

    assert (await client.hear("pong"))["topics"] == {}


async def test_odd_options_fall_back_to_the_usual_ones(connect: Connect) -> None:
    cast = await rows(the_cast)()
    client = await connect(cast.owner)

    for every in ("often", float("nan"), float("inf"), -1, 10**400):
        answer = await client.follow("jobs", every=every, since=5, data="perhaps")

        assert answer["data"] == {"rows": {}}
    feed, topic = next(iter(hub()._feeds.values())), parse_topic("jobs")
    paces = [
        make(topic, feed, {"every": every}).every_seconds for every in (float("nan"), 0, 5, float("inf"))
    ]
    assert paces == [1.0, 1.0, 5.0, 1.0]


async def test_a_client_that_shouts_is_closed(connect: Connect) -> None:
    cast = await rows(the_cast)()
    client = await connect(cast.owner)

    for _ in range(60):
        await client.say(op="ping")

    assert await client.closed() == 4429


async def test_one_socket_follows_only_so_many_topics(connect: Connect) -> None:
    cast = await rows(the_cast)()
    jobs = await rows(lambda: [JobFactory(project=cast.project, user=cast.owner) for _ in range(21)])()
    client = await connect(cast.owner)

    answers = [await client.follow(f"job:{job.number}") for job in jobs]

    assert [answer["op"] for answer in answers] == ["snapshot"] * 20 + ["error"]
    assert answers[-1]["code"] == "too-many"


# ---------------------------------------------------------------- clients that do not read


async def test_t09_a_client_that_slept_gets_one_hint_to_ask_again_and_nothing_piles_up(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "SLOW_SECONDS", 1.0)
    cast = await rows(the_cast)()
    jobs = await rows(lambda: [JobFactory(project=cast.project, user=cast.owner) for _ in range(5)])()
    cookie = await cookie_of(cast.owner)
    awake, stuck, sent = asyncio.Event(), asyncio.Event(), []
    awake.set()
    incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def send(event: dict[str, Any]) -> None:
        if not awake.is_set():
            stuck.set()
        await awake.wait()  # a full TCP window: the write does not come back
        sent.append(json.loads(event["text"]) if "text" in event else event)

    async def until(count: int) -> None:
        while len(sent) < count:  # noqa: ASYNC110 - the application only appends
            await asyncio.sleep(0.05)

    scope = scope_of([(b"origin", ORIGIN), (b"cookie", cookie)])
    serving = asyncio.create_task(application(scope, incoming.get, send))
    await incoming.put({"type": "websocket.connect"})
    await incoming.put({"type": "websocket.receive", "text": '{"op":"subscribe","topic":"jobs","sub":1}'})
    await asyncio.wait_for(until(3), patience(5))  # accept, hello, snapshot

    awake.clear()
    await rows(start)(jobs[0])
    await asyncio.wait_for(stuck.wait(), patience(5))
    for first, second in zip(jobs[1::2], jobs[2::2]):
        await rows(start)(first)
        await rows(start)(second)
        await asyncio.sleep(1.1)  # each pair would be a patch of its own
    awake.set()
    await asyncio.wait_for(until(5), patience(5))
    await asyncio.sleep(1.5)  # nothing more comes

    ops = [event.get("op") for event in sent[3:]]
    assert ops == ["patch", "dirty"], "the one that was stuck, then one hint for all that was missed"
    await incoming.put({"type": "websocket.disconnect", "code": 1000})
    await asyncio.wait_for(serving, patience(5))


async def test_nothing_runs_on_when_the_last_client_has_left(connect: Connect) -> None:
    cast = await rows(the_cast)()
    client = await connect(cast.owner)
    await client.follow("jobs")
    await client.follow("cluster")

    await client.close()
    await asyncio.sleep(0.1)

    here = hub()
    assert (here.clients, here._feeds, here._by_hint, here._tasks) == (set(), {}, {}, [])


# ---------------------------------------------------------------- logs


def test_a_character_cut_in_two_waits_for_its_rest() -> None:
    data = "größe\n".encode()

    first, used = feeds.decode_piece(data[:3], final=False)
    rest, _ = feeds.decode_piece(data[used:], final=True)

    assert (first, used) == ("gr", 2)
    assert first + rest == "größe\n"


def test_bytes_that_are_no_text_are_shown_as_such() -> None:
    assert feeds.decode_piece(b"ok\xff\xfe", final=True) == ("ok\ufffd\ufffd", 4)


async def test_signing_out_in_the_browser_closes_its_sockets_and_no_other(connect: Connect) -> None:
    cast = await rows(the_cast)()
    here, there = await connect(cast.owner), await connect(cast.owner)

    def leave() -> None:
        browser = Client()
        browser.cookies["muster_session"] = here.cookie.split("=", 1)[1]
        browser.logout()

    await rows(leave)()

    assert await here.closed() == 4401
    await there.say(op="ping")
    assert (await there.hear("pong"))["topics"] == {}
