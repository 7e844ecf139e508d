"""Rules of notifications: words, groups, mail as a job asks for it, and the schedule of tries."""

from __future__ import annotations

import pytest

from notifications.core.backoff import JITTER, MAX_TRIES, STEPS, wait_seconds
from notifications.core.grouping import array_of, group_of_job, is_array
from notifications.core.kinds import KINDS, SENT, SENT_OF_PROJECTS, Channel, Kind, is_on, mail_of_job
from notifications.core.wording import headline
from notifications.templatetags.notifications import kind_icon, tone


def test_failures_are_on_and_what_every_job_does_is_off() -> None:
    assert is_on(Kind.FAILED, Channel.PORTAL)
    assert is_on(Kind.FAILED, Channel.MAIL)
    assert is_on(Kind.NEVER_STARTS, Channel.MAIL)
    assert not is_on(Kind.BEGAN, Channel.PORTAL)
    assert not is_on(Kind.ENDED, Channel.PORTAL)


def test_a_project_sends_what_is_about_jobs_alone() -> None:
    assert {kind.split(".")[0] for kind in SENT_OF_PROJECTS} == {"job"}
    assert set(SENT_OF_PROJECTS) < set(SENT) < set(KINDS)


@pytest.mark.parametrize(
    ("kind", "words", "asked"),
    [
        (Kind.ENDED, ["END"], True),
        (Kind.FAILED, ["END"], True),
        (Kind.FAILED, ["BEGIN"], None),
        (Kind.FAILED, ["NONE"], False),
        (Kind.PREEMPTED, ["REQUEUE"], True),
        (Kind.BEGAN, [], None),
        (Kind.HELD, ["BEGIN", "END", "FAIL"], None),
    ],
)
def test_a_jobs_own_words_decide_about_mail(kind: Kind, words: list[str], asked: bool | None) -> None:
    assert mail_of_job(kind, words) is asked


def test_each_part_of_the_time_limit_has_a_word_of_its_own() -> None:
    assert mail_of_job(Kind.TIME_LIMIT, ["TIME_LIMIT_80"], 80) is True
    assert mail_of_job(Kind.TIME_LIMIT, ["TIME_LIMIT_80", "BEGIN"], 90) is None


@pytest.mark.parametrize(
    ("kind", "count", "array", "said"),
    [
        (Kind.FAILED, 1, False, "Job 12 train failed"),
        (Kind.FAILED, 1, True, "Job 12 train failed"),
        (Kind.FAILED, 4000, True, "4,000 elements of array train failed"),
        (Kind.PREEMPTED, 2, False, "2 jobs of Vision are preempted"),
        (Kind.NODE_DOWN, 1, False, "Node train is down"),
        (Kind.NODE_DOWN, 3, False, "3 nodes are down, first train"),
    ],
)
def test_a_headline_is_one_sentence(kind: Kind, count: int, array: bool, said: str) -> None:
    assert headline(kind, count=count, number=12, name="train", of="Vision", array=array) == said


@pytest.mark.parametrize(
    ("jobs", "array", "said"),
    [
        (1, False, "Job 12 train was requeued 5 times"),
        (2, False, "2 jobs of Vision were requeued 5 times"),
        (2, True, "2 elements of array train were requeued 5 times"),
        (5, False, "5 jobs of Vision were requeued"),
        (None, False, "5 jobs of Vision were requeued"),
    ],
)
def test_a_job_that_comes_again_is_counted_once_as_a_job(jobs: int | None, array: bool, said: str) -> None:
    words = {"count": 5, "number": 12, "name": "train", "of": "Vision", "array": array}
    assert headline(Kind.REQUEUED, **words, jobs=jobs) == said


@pytest.mark.parametrize("kind", [*KINDS, Kind.TEST])
@pytest.mark.parametrize("count", [1, 7])
def test_every_kind_has_a_headline(kind: Kind, count: int) -> None:
    said = headline(kind, count=count, number=1, name="N", of="p", array=False)

    assert said[0].isupper() or said[0].isdigit()
    assert not said.endswith(".")


def test_every_kind_has_a_tone_and_an_icon() -> None:
    assert all(tone(kind) and kind_icon(kind) for kind in Kind)


def test_elements_of_an_array_are_together_unless_each_is_asked_for() -> None:
    def group(each: bool, mail: bool | None = None) -> str:
        return group_of_job(number=7, project_id=3, array_id="abc", each=each, mail=mail)

    assert (group(False), array_of(group(False)), is_array(group(True))) == ("array:abc", "abc", False)
    assert group(True) == "job:7"
    assert len({group(False), group(False, True), group(False, False)}) == 3
    assert group_of_job(number=7, project_id=3, array_id=None, each=False, mail=None) == "project:3"


def test_tries_are_over_within_a_week_and_each_wait_is_longer() -> None:
    waits = [wait_seconds(tries, 0.0) for tries in range(1, MAX_TRIES)]

    assert waits == sorted(waits)  # type: ignore[type-var]
    assert 3 * 86_400 < sum(STEPS) * (1 + JITTER) < 7 * 86_400
    assert wait_seconds(MAX_TRIES, 0.5) is None
    assert wait_seconds(1, 1.0) == STEPS[0] * (1 + JITTER)
