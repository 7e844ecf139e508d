"""What the pages show, how many queries they cost, and that what people type stays text."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone
from django.utils.html import strip_tags

from notifications.models import Notification
from scheduler.core.lifecycle import AttemptState, JobState
from scheduler.models import Allocation, Attempt, Job, LogChunk, Node, Queue, SchedulerProfile, Task
from scheduler.models.queue import SchedulingPolicy
from scheduler.services.cluster.nodes import drain_node
from scheduler.services.cluster.quarantine import apply_health
from scheduler.services.cluster.queues import pause_queue
from scheduler.services.results.reading import FileEntry
from scheduler.web.cluster import clock_words, ends_by
from scheduler.web.results.working_folder import with_content
from tests.scheduler.web.conftest import a_running_job
from tests.support.factories import JobFactory, NodeFactory, QueueFactory, ReservationFactory
from tests.support.roles import had_asked

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"

#: Queries of a page, signed-in reader and session included; the same for one row and for three.
#: One of each is the count at the bell.
QUERIES = {
    "home": 12,
    "jobs": 9,
    "cluster": 9,
    "queues": 8,
    "quota": 9,
}


def queries_of(client, url: str) -> int:
    client.get(url)  # fills what is cached
    with CaptureQueriesContext(
        connection,
    ) as captured:
        assert client.get(url).status_code == 200
    return len(captured)


@pytest.mark.parametrize("name", sorted(QUERIES))
def test_a_page_costs_the_same_queries_for_one_row_and_for_three(as_user, world, name) -> None:
    client = as_user(world.cast.owner)
    a_running_job(world)
    one = queries_of(client, reverse(name))

    for _ in range(2):
        a_running_job(world)
        JobFactory(project=world.cast.project, user=world.cast.owner, queue=world.queue)
        NodeFactory(cluster=world.cluster, gpus=2, partition=world.partition)
        QueueFactory(cluster=world.cluster)
    three = queries_of(client, reverse(name))

    assert one == three
    assert one == QUERIES[name], one


@pytest.mark.parametrize("tab", ["overview", "why", "events"])
def test_a_job_page_costs_the_same_however_many_jobs_there_are(as_user, world, tab) -> None:
    client = as_user(world.cast.owner)
    url = f"{reverse('job', args=[world.job.number])}?tab={tab}"
    few = queries_of(client, url)

    JobFactory.create_batch(3, project=world.cast.project, user=world.cast.owner, queue=world.queue)

    assert queries_of(client, url) == few


def test_what_people_type_is_shown_as_text_everywhere(as_user, world) -> None:
    job = a_running_job(world, name=EVIL, command=f"echo {EVIL}")
    waiting = JobFactory(
        name=EVIL, project=world.cast.project, user=world.cast.owner, queue=world.queue, reason_text=EVIL,
        reason_category="fix", reason_code="NoMatchingNode", env={"A": EVIL}, labels={"a": EVIL},
    )  # fmt: skip
    world.queue.paused, world.queue.paused_reason, world.queue.paused_by = True, EVIL, EVIL
    world.queue.save()
    client = as_user(world.cast.owner)
    urls = [
        reverse("home"), reverse("jobs"), reverse("cluster"), reverse("queues"),
        reverse("node", args=[world.gpu.pk]), f"{reverse('submit')}?copy={job.number}",
        *(f"{reverse('job', args=[n])}?tab={tab}" for n in (job.number, waiting.number)
          for tab in ("overview", "why", "log", "events")),
        f"{reverse('jobs')}?q={EVIL}",
    ]  # fmt: skip

    for url in urls:
        html = client.get(url).content.decode()
        assert "<script>alert" not in html, url
        assert "<img src=x" not in html, url


class Addresses(HTMLParser):
    """Every address that a browser would fetch for a page, and every inline script or handler."""

    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []
        self.inline: list[str] = []
        self._script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.urls += [given[name] or "" for name in ("src", "srcset", "action", "poster") if name in given]
        if tag in ("link", "a", "use") and given.get("href"):
            self.urls.append(given["href"] or "")
        self.inline += [f"{tag} {name}" for name in given if name.startswith("on")]
        self._script = tag == "script" and "src" not in given

    def handle_data(self, data: str) -> None:
        if self._script and data.strip():
            self.inline.append(data[:80])


@pytest.mark.parametrize(
    "name", ["home", "submit", "jobs", "cluster", "queues", "quota", "tokens", "settings", "projects"]
)
def test_no_page_asks_an_outside_host_or_runs_inline_script(as_user, world, name) -> None:
    found = Addresses()

    found.feed(as_user(world.cast.owner).get(reverse(name)).content.decode())

    assert [url for url in found.urls if re.match(r"(https?:)?//", url)] == []
    assert found.inline == []


def test_a_pending_job_shows_why_first_and_an_active_one_where_it_is(as_user, world) -> None:
    client = as_user(world.cast.owner)
    running = a_running_job(world)

    pending_page = client.get(reverse("job", args=[world.job.number])).content.decode()
    running_page = client.get(reverse("job", args=[running.number])).content.decode()

    assert re.search(r'aria-current="page"[^>]*>Why<', pending_page)
    assert re.search(r'aria-current="page"[^>]*>Overview<', running_page)
    assert "beta" in running_page
    assert "0 A100" in running_page
    assert "epoch 1" in running_page


def test_the_first_paint_of_a_log_never_cuts_a_character(as_user, world) -> None:
    from scheduler.web.job import whole_characters

    euro = "€".encode()

    assert whole_characters(b"ok" + euro[:2]) == ("ok", 2)
    assert whole_characters(b"ok" + euro) == ("ok€", 5)
    assert whole_characters(b"a\xffb") == ("a\ufffdb", 3)


def test_a_log_is_downloaded_whole(as_user, world) -> None:
    job = a_running_job(world)

    response = as_user(world.cast.owner).get(reverse("job-log", args=[job.number]))

    assert b"".join(response.streaming_content) == b"epoch 1\n"
    assert "attachment" in response.headers["Content-Disposition"]


@pytest.mark.parametrize(
    ("printed", "words", "file"),
    [(500_000, "still sending 488.3", "-so-far.log"), (0, "The job printed no output.", "-merged.log")],
)
def test_a_log_that_has_not_arrived_is_not_called_empty(
    as_user, world, printed: int, words: str, file: str
) -> None:
    job = a_running_job(world)
    LogChunk.objects.all().delete()
    Task.objects.filter(attempt__job=job).update(stdout_bytes=printed, stderr_bytes=0)
    Attempt.objects.filter(job=job).update(state=AttemptState.SUCCEEDED, ended_at=timezone.now())
    Job.objects.filter(pk=job.pk).update(state=JobState.COMPLETED, completed_at=timezone.now())
    client = as_user(world.cast.owner)

    page = client.get(reverse("job", args=[job.number]) + "?tab=log").content.decode()
    download = client.get(reverse("job-log", args=[job.number]))

    assert words in page.replace("\xa0", " ")
    assert download.headers["Content-Disposition"].rstrip('"').endswith(file)
    assert b"".join(download.streaming_content) == b""


def test_a_strangers_download_of_a_log_finds_nothing(as_user, world) -> None:
    job = a_running_job(world)

    assert as_user(world.cast.stranger).get(reverse("job-log", args=[job.number])).status_code == 404


def test_the_state_strip_counts_and_filters(as_user, world) -> None:
    for state in (JobState.COMPLETED, JobState.COMPLETED, JobState.FAILED):
        JobFactory(
            name=f"old {state}", project=world.cast.project, user=world.cast.owner, queue=world.queue,
            state=state, completed_at=timezone.now(),
        )  # fmt: skip

    page = as_user(world.cast.owner).get(reverse("jobs"), {"state": "completed"}).content.decode()

    assert re.search(r"<b>2</b> completed", page)
    assert re.search(r"<b>4</b> all", page)
    assert page.count("old completed") == 2
    assert "old failed" not in page


def test_the_list_shows_how_a_job_ended_only_once_it_has(as_user, world) -> None:
    """A requeued job keeps the signal of the attempt before: that is no end of the job."""
    client = as_user(world.cast.owner)
    job = a_running_job(world)
    Job.objects.filter(pk=job.pk).update(exit_signal=15)

    assert "sig 15" not in client.get("/jobs/").content.decode()

    Job.objects.filter(pk=job.pk).update(state=JobState.FAILED, completed_at=timezone.now())
    assert "sig 15" in client.get("/jobs/").content.decode()


def test_filters_combine_and_an_empty_answer_says_how_to_widen(as_user, world) -> None:
    page = as_user(world.cast.owner).get(reverse("jobs"), {"q": "nothing like it", "state": "failed"}).content

    assert b"No job matches these 2 filters" in page


def test_a_long_list_goes_on_from_where_it_ended(as_user, world) -> None:
    for number in range(55):
        JobFactory(name=f"n{number:03}", project=world.cast.project, user=world.cast.owner, queue=world.queue)
    client = as_user(world.cast.owner)

    first = client.get(reverse("jobs")).content.decode()
    older = re.search(r'href="([^"]*)" rel="next"', first)
    assert older is not None
    second = client.get(older[1].replace("&amp;", "&")).content.decode()

    rows = re.compile(r'id="job-row-(\d+)"')
    numbers = [int(n) for n in rows.findall(first)] + [int(n) for n in rows.findall(second)]
    assert numbers == sorted(Job.objects.values_list("number", flat=True), reverse=True)


def test_many_jobs_are_cancelled_at_once_and_the_refused_are_named(as_user, world) -> None:
    mine = JobFactory(project=world.cast.project, user=world.cast.colleague, queue=world.queue)
    ended = JobFactory(
        project=world.cast.project, user=world.cast.colleague, queue=world.queue, state=JobState.COMPLETED,
        completed_at=timezone.now(),
    )  # fmt: skip

    response = as_user(world.cast.colleague).post(
        reverse("jobs-bulk"),
        {"verb": "cancel", "job": [mine.number, ended.number, world.job.number, "nonsense"]},
        follow=True,
    )

    mine.refresh_from_db()
    world.job.refresh_from_db()
    page = response.content.decode()
    assert (mine.state, world.job.state) == (JobState.CANCELLED, JobState.QUEUED)
    assert "1 job was cancelled" in page
    assert f"{ended.number}: " in page
    assert f"{world.job.number}: " in page


def test_home_names_what_needs_the_person(as_user, world) -> None:
    JobFactory(
        name="impossible", project=world.cast.project, user=world.cast.owner, queue=world.queue,
        reason_category="fix", reason_code="NoMatchingNode", reason_text="Requests 9 GPUs; a node has 2.",
    )  # fmt: skip
    JobFactory(
        name="long ago", project=world.cast.project, user=world.cast.owner, queue=world.queue,
        state=JobState.FAILED, completed_at=timezone.now() - timedelta(days=3),
    )  # fmt: skip

    page = as_user(world.cast.owner).get(reverse("home")).content.decode()

    assert "Needs attention" in page
    assert "Requests 9 GPUs; a node has 2." in page
    assert "long ago" not in re.search(r"Needs attention.*?</section>", page, re.DOTALL)[0]


def test_home_of_somebody_new_offers_an_example(as_user, world) -> None:
    page = as_user(world.cast.colleague).get(reverse("home")).content.decode()

    assert "No jobs yet" in page
    assert f"{reverse('submit')}?example=cpu" in page


def test_a_paused_cluster_is_said_on_every_page(as_user, world) -> None:
    world.cluster.paused, world.cluster.paused_reason = True, "moving racks"
    world.cluster.save()

    assert "moving racks" in as_user(world.cast.owner).get(reverse("quota")).content.decode()


def test_the_map_names_racks_as_they_are_written(as_user, world) -> None:
    world.gpu.rack = "r9"
    world.gpu.save()

    page = as_user(world.cast.owner).get(reverse("cluster")).content.decode()

    assert "<h2>r9</h2>" in page
    assert "<h2>No rack set</h2>" in page


def test_demo_gpus_say_that_they_compute_nothing(as_user, world) -> None:
    world.gpu.devices.update(fake=True)

    page = as_user(world.cast.owner).get(reverse("cluster")).content.decode()

    assert "demo GPU (computes nothing)" in page


def test_times_are_shown_in_the_readers_zone_and_carry_utc(as_user, world) -> None:
    world.cast.owner.time_zone = "Asia/Tokyo"
    world.cast.owner.save()
    had_asked(world.job, begin_at="2026-07-01T12:00:00Z")

    page = (
        as_user(world.cast.owner)
        .get(reverse("job", args=[world.job.number]), {"tab": "overview"})
        .content.decode()
    )

    assert 'datetime="2026-07-01T12:00:00Z"' in page
    assert "2026-07-01 21:00:00 JST" in page


def test_a_node_that_is_not_there_leads_to_a_page_with_the_way_out(as_user, world) -> None:
    response = as_user(world.cast.owner).get(reverse("node", args=[424242]))

    assert response.status_code == 404
    assert b"Go home" in response.content


@pytest.mark.parametrize(
    ("isolation", "said"),
    [({"disk": True}, "bounded by the kernel"), ({"disk": False}, "measured"), ({}, "")],
)
def test_a_node_says_what_keeps_limits_of_the_disk(as_user, world, isolation, said) -> None:
    Node.objects.filter(pk=world.gpu.pk).update(isolation=isolation)

    page = as_user(world.cast.owner).get(reverse("node", args=[world.gpu.pk])).content.decode()

    assert ("<dt>Disk limits</dt>" in page) is bool(said)
    assert said in page


def test_a_draining_node_says_until_when_something_runs_there_and_when_it_is_empty(as_user, world) -> None:
    a_running_job(world, time_limit_seconds=3600)
    drain_node(node=world.gpu, by=world.cast.operator, reason="a new fan")
    client, url = as_user(world.cast.operator), reverse("node", args=[world.gpu.pk])

    busy = client.get(url).content.decode()
    Allocation.objects.update(released_at=timezone.now())
    empty = client.get(url).content.decode()

    assert "running jobs continue to their end. Reason: a new fan" in busy
    assert re.search(r"<h2>1 task runs here, until <time[^>]+>[^<]+</time> at the latest</h2>", busy)
    assert "no job runs on this node" in empty


def test_why_nobody_can_say_when_a_job_starts_is_said_once(as_user, world) -> None:
    pause_queue(queue=world.queue, by=world.cast.operator, reason="new disks")
    client = as_user(world.cast.owner)

    page = client.get(
        reverse("job", args=[world.job.number]), {"tab": "why", "partial": "1"}
    ).content.decode()
    preview = client.post(reverse("submit-preview"), {"what": "true", "project": "vision"}).content.decode()

    for text in (page.split('class="tabs"')[1], preview):
        assert text.count("new disks") == 1
        assert "Start time unknown." in text


@pytest.mark.parametrize(("policy", "counts"), [("priority", True), ("fifo", False)])
def test_a_boost_promises_a_turn_only_where_the_order_is_by_priority(as_user, world, policy, counts) -> None:
    world.cluster.profile = SchedulerProfile.objects.create(name="site", policy=policy)
    world.cluster.save()
    client, url = as_user(world.cast.operator), reverse("job", args=[world.job.number])

    queues = client.get(reverse("queues")).content.decode()
    dialog = client.get(url).content.decode()
    boost = {"points": 10, "hours": 1, "reason": "deadline"}
    said = client.post(
        reverse("job-act", args=[world.job.number, "boost"]), boost, follow=True
    ).content.decode()

    assert ("Queues with a higher priority are planned first" in queues) == counts
    assert SchedulingPolicy(policy).label.capitalize() in queues
    assert ("a boost does not change the position" in dialog) != counts
    assert ("is boosted ahead of jobs of the same priority" in said) == counts
    assert ("the position stays the same" in said) != counts


def test_a_suspended_job_is_nowhere_said_to_run(as_user, world) -> None:
    job = a_running_job(world)
    Job.objects.filter(pk=job.pk).update(state=JobState.SUSPENDED)

    text = (
        as_user(world.cast.owner).get(reverse("job", args=[job.number]), {"tab": "overview"}).content.decode()
    )
    where = text.split("<h2>Placement</h2>")[1].split("</section>")[0]

    assert "suspended" in where
    assert "running" not in where
    assert "<b>Started</b>" in text
    assert "<b>Running</b>" not in text


def test_a_node_says_when_it_is_reserved_to_those_who_may_know(as_user, world) -> None:
    maintenance = ReservationFactory(cluster=world.cluster, name="firmware", reason="new version")
    later = maintenance.ends_at
    theirs = ReservationFactory(
        cluster=world.cluster, name="demo day", project=world.cast.project, starts_at=later,
        ends_at=later + timedelta(hours=1),
    )  # fmt: skip
    over = ReservationFactory(cluster=world.cluster, name="last week", cancelled_at=timezone.now())
    for reservation in (maintenance, theirs, over):
        reservation.nodes.add(world.gpu)
    url = reverse("node", args=[world.gpu.pk])

    member, stranger = (
        strip_tags(as_user(person).get(url).content.decode())
        for person in (world.cast.owner, world.cast.stranger)
    )

    assert "for maintenance: firmware, new version" in member
    assert "for maintenance: firmware, new version" in stranger
    assert "for Vision: demo day" in member
    assert "demo day" not in stranger
    assert "last week" not in member


def test_what_ends_when_counts_no_time_in_which_it_stood_still() -> None:
    began = datetime(2026, 1, 1, tzinfo=UTC)
    attempt = Attempt(job=Job(time_limit_seconds=3600, queue=Queue()), started_at=began, suspended_ms=60_000)

    assert ends_by(Allocation(attempt=attempt, held_at=began)) == began + timedelta(seconds=3660)
    attempt.suspended_at = began
    assert ends_by(Allocation(attempt=attempt, held_at=began)) is None


@pytest.mark.parametrize("tab", ["overview", "results", "events", "log"])
def test_every_tab_of_a_running_job_names_its_node(as_user, world, tab) -> None:
    job = a_running_job(world)

    page = as_user(world.cast.owner).get(f"/jobs/{job.number}/?tab={tab}").content.decode()

    assert re.search(r'id="job-sentence">([^<]*)<', page)[1] == "Running on beta."


@pytest.mark.parametrize(
    ("skew_ms", "said"),
    [(0, "in sync"), (-5, "5 ms behind the server"), (2500, "2.5 s ahead of the server")],
)
def test_the_clock_of_a_node_is_compared_in_words(skew_ms: int, said: str) -> None:
    assert clock_words(skew_ms) == said


def test_folders_are_listed_only_where_nothing_in_them_is() -> None:
    def entry(path: str, kind: str) -> FileEntry:
        return FileEntry(path, kind, 1, datetime(2027, 1, 1, tzinfo=UTC), "v")

    entries = [entry("a", "folder"), entry("a/b", "folder"), entry("a/b/c", "file"), entry("e", "folder")]

    assert [one.path for one in with_content(entries)] == ["a/b/c", "e"]


def test_a_notification_of_one_job_that_was_requeued_thrice_names_the_job_once(as_user, world) -> None:
    now = timezone.now()
    Notification.objects.create(
        user=world.cast.owner, kind="job.requeued", group_key=f"project:{world.cast.project.pk}",
        project=world.cast.project, count=3, jobs=[world.job.number] * 3, name="train", text="Exit code 75.",
        first_at=now, last_at=now, source="event", first_event=1, last_event=3,
    )  # fmt: skip

    page = as_user(world.cast.owner).get(reverse("notifications")).content.decode()

    assert f"Job {world.job.number} train was requeued 3 times" in page
    assert page.count(f">{world.job.number}</a>") == 1
    assert "Last: " in page


def test_a_node_that_failed_its_health_check_says_how_it_comes_back(as_user, world) -> None:
    apply_health(world.plain, "disk is gone")

    page = as_user(world.cast.operator).get(f"/nodes/{world.plain.pk}/").content.decode()

    assert "Reason: Health check failed: disk is gone" in page
    assert "comes back by itself when its health check succeeds" in page
    drain_node(node=world.gpu, by=world.cast.operator, reason="maintenance")
    other = as_user(world.cast.operator).get(f"/nodes/{world.gpu.pk}/").content.decode()
    assert "comes back by itself" not in other
