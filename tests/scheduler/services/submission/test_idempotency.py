"""A repeated request is done once, however many send it at the same time."""

from __future__ import annotations

import pytest

from infra.errors import Conflict, InvalidInput
from scheduler.models import IdempotencyKey, Job
from scheduler.services.submission.idempotency import Answer, do_once, request_hash
from tests.scheduler.portal import Portal, a_portal
from tests.support.at_once import at_once

pytestmark = pytest.mark.django_db


@pytest.fixture
def portal(db: None) -> Portal:
    return a_portal()


def submit(portal: Portal, key: str, body: str = "one") -> Answer:
    def do() -> Answer:
        return Answer(201, {"number": portal.submit(name=body).number})

    return do_once(user=portal.cast.owner, key=key, request_hash=request_hash(body), do=do)


def test_the_second_time_the_first_answer_comes_back(portal: Portal) -> None:
    first, second = submit(portal, "k1"), submit(portal, "k1")

    assert second == Answer(201, first.body, replayed=True)
    assert Job.objects.count() == 1


def test_a_key_is_for_one_request_only(portal: Portal) -> None:
    submit(portal, "k1")

    with pytest.raises(InvalidInput) as refused:
        submit(portal, "k1", body="another")

    assert (refused.value.code, refused.value.status) == ("idempotency-key-reused", 422)
    assert Job.objects.count() == 1


def test_keys_of_two_people_have_nothing_to_do_with_each_other(portal: Portal) -> None:
    submit(portal, "k1")
    theirs = do_once(
        user=portal.cast.colleague, key="k1", request_hash="other", do=lambda: Answer(200, {"mine": True})
    )

    assert (theirs.body, theirs.replayed) == ({"mine": True}, False)


def test_what_fails_leaves_the_key_free_and_nothing_behind(portal: Portal) -> None:
    def fail() -> Answer:
        portal.submit()
        raise Conflict(message="No.")

    with pytest.raises(Conflict):
        do_once(user=portal.cast.owner, key="k1", request_hash="h", do=fail)

    assert (Job.objects.count(), IdempotencyKey.objects.count()) == (0, 0)
    assert submit(portal, "k1").replayed is False


@pytest.mark.parametrize("key", ["", " ", "with space", "ключ", "x" * 201, "a\0b"])
def test_a_key_is_short_visible_ascii(portal: Portal, key: str) -> None:
    with pytest.raises(InvalidInput):
        submit(portal, key)


@pytest.mark.django_db(transaction=True)
def test_t16_fifty_threads_with_one_key_make_one_job() -> None:
    portal = a_portal()

    results = at_once(*[lambda: submit(portal, "the-key")] * 50, refusals=Conflict)

    job = Job.objects.get()
    answers = [result for result in results if isinstance(result, Answer)]
    refusals = [result for result in results if isinstance(result, Conflict)]
    assert [answer.replayed for answer in answers].count(False) == 1
    assert {answer.body["number"] for answer in answers} == {job.number}
    assert {refusal.code for refusal in refusals} <= {"idempotency-in-progress"}
    assert len(answers) + len(refusals) == 50
    with pytest.raises(InvalidInput):
        submit(portal, "the-key", body="another")
