"""Submits the jobs of several requests together: who they are, what they ask for, one transaction, their answers.

All rules are those of the view `Jobs`: the same functions say who a token is, what it may, what a job may ask for
and how it is written. What is anything but an accepted job is left to that view, which says what is wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import is_
from typing import Any, Final, TypeGuard

import structlog
from django.db import DatabaseError, InterfaceError, OperationalError
from rest_framework.exceptions import APIException

from accounts.models import ApiToken
from accounts.scopes import covers
from accounts.services.tokens import (
    KeptTokens,
    TokenRefused,
    authenticate_found,
    kept_token,
    tokens_statement,
)
from infra import notifications, request_context
from infra.api.rest import as_json, parse_clean
from infra.client_address import Client
from infra.db.connections import unit_of_work
from infra.db.error_messages import sql_state, to_error
from infra.db.prepared import ask_together, keep_plans
from infra.errors import MusterError
from infra.request_cost import Caller
from scheduler.api.jobs import Jobs, location_of, new_job
from scheduler.services.jobs.write_jobs import NewJobs, Submission, write_submissions
from scheduler.services.submission.parse_request import check_sizes, parse_job
from scheduler.services.submission.submitter import Catalogue, Catalogues, catalogue_statements

log = structlog.get_logger(__name__)

#: A request that makes more jobs is written by itself, so that others need not wait for it.
MOST_JOBS: Final = 100
#: Who has waited longer is answered that the portal is busy.
MOST_SECONDS: Final = 10.0


def busy() -> MusterError:
    """The refusal where more wait than this process can write."""
    return MusterError(
        message="More jobs are being submitted than this web process can write.",
        code="unavailable",
        status=503,
        way_out="Nothing was written. Try again in a second, with the same Idempotency-Key.",
        extra={"retry_after_seconds": 1},
    )


@dataclass(frozen=True, slots=True)
class Accepted:
    """The answer to a request whose job was written."""

    body: bytes
    location: str
    user_id: int


#: None: to be answered by the view, which has to look at the request by itself.
Answer = Accepted | None


@dataclass(eq=False, slots=True)
class Call:
    """A request to submit one job, as it waits for its turn."""

    token: str
    client: Client
    request_id: str
    body: bytes
    #: The recorded trace that it belongs to; "" where there is none.
    traceparent: str = ""
    #: What the body says, once it was read; None before, and where it cannot be read.
    payload: Any = None
    #: Whose requests the throttle counts this one among; "" before it did.
    counted_as: str = ""
    caller: Caller = field(default_factory=Caller)
    came_at: float = field(default_factory=time.monotonic)


class SubmitGroup:
    """Answers groups of calls, one group after the other; `wait_of(key)` is the throttle, in seconds."""

    def __init__(self, wait_of: Callable[[str], float]) -> None:
        self._wait_of = wait_of
        self._tokens: KeptTokens = {}
        self._catalogues = Catalogues()

    def __call__(self, calls: Sequence[Call]) -> list[Answer | Exception]:
        """The answer to each call, or the error that it gets; raises nothing."""
        late = time.monotonic() - MOST_SECONDS
        waiting = [call for call in calls if not call.caller.gone and call.came_at > late]
        answers: dict[Call, Answer | Exception] = dict.fromkeys(waiting)
        try:
            with unit_of_work(), notifications.deferred():
                keep_plans()
                answers |= self._answers(waiting)
        except Exception as error:  # before anything was written: the view will meet it again, and say so
            log.warning("submissions_not_grouped", error=str(error).strip())
        return [answers[call] if call in answers else busy() for call in calls]

    def _answers(self, calls: Sequence[Call]) -> dict[Call, Answer | Exception]:
        """The answers of those that need no view; it raises only where nothing was written."""
        submissions: dict[Call, Submission] = {}
        for call, token, catalogue in self._admitted(calls):
            submission = self._read(call, token, catalogue)
            call.counted_as = f"token:{token.pk}"
            if submission is not None and not self._wait_of(call.counted_as):
                submissions[call] = submission
        return _write(submissions)

    def _admitted(self, calls: Sequence[Call]) -> list[tuple[Call, ApiToken, Catalogue]]:
        """Those whose token may submit, and what their people may use.

        All of it is read now. Of people who were here before both are read in one round trip: their rows of a catalogue
        can be asked for before it is seen whether their tokens are as they were.
        """
        before = [kept_token(call.token, self._tokens) for call in calls]
        known = [token.user for token in before if token is not None and token.user.held_by is token]
        asked = catalogue_statements(known) if len(known) == len(calls) else []
        rows, *answers = ask_together(tokens_statement([call.token for call in calls]), *asked)
        tokens = authenticate_found([(c.token, c.client.address) for c in calls], rows, kept=self._tokens)
        admitted = [(call, token) for call, token in zip(calls, tokens, strict=True) if _may_submit(token)]
        people = [token.user for _, token in admitted]
        for _, token in admitted:
            token.user.held_by = token
        # An object that is the same was made of an equal row.
        same = len(people) == len(known) and all(map(is_, people, known))
        catalogues = self._catalogues.of(people, answers if asked and same else None) if people else []
        return [(*one, catalogue) for one, catalogue in zip(admitted, catalogues, strict=True)]

    def _read(self, call: Call, token: ApiToken, catalogue: Catalogue) -> Submission | None:
        """The job that a request asks for; None where something is wrong with it, or it had better be written alone:
        an array, and a job that waits for others, whose rows it would keep locked.
        """
        known: dict[str, Any] = {
            "request_id": call.request_id, "address": call.client.address, "proxied": call.client.proxied,
        }  # fmt: skip
        with request_context.acting(**known):
            request_context.use_token(token)
            try:
                payload = call.payload = parse_clean(call.body)
                if not isinstance(payload, dict) or "depends_on" in payload:
                    return None
                check_sizes([payload], field="array")
                spec = parse_job(payload, by=token.user, catalogue=catalogue)
            except (MusterError, APIException):
                return None
            if spec.size > MOST_JOBS:
                return None
            return Submission(specs=[spec], by=token.user, via="api", traceparent=call.traceparent)


def _may_submit(token: ApiToken | TokenRefused) -> TypeGuard[ApiToken]:
    return isinstance(token, ApiToken) and covers(token.scopes, Jobs.required_scopes["POST"])


def _write(submissions: dict[Call, Submission]) -> dict[Call, Answer | Exception]:
    """Write them together; where a database error stops that, each is left to be written by itself."""
    if not submissions:
        return {}
    try:
        outcomes = write_submissions(list(submissions.values()))
    except (DatabaseError, InterfaceError) as error:
        if not _is_undone(error):
            log.warning("submissions_not_written", error=str(error).strip())
            return dict.fromkeys(submissions, to_error(error) or busy())
        log.info("submissions_one_by_one", count=len(submissions), error=str(error).strip())
        return {}
    return {
        call: _accepted(outcome) if isinstance(outcome, NewJobs) else None
        for call, outcome in zip(submissions, outcomes, strict=True)
    }


def _is_undone(error: Exception) -> bool:
    """Whether PostgreSQL has said that it took nothing.

    Without a word of it, the connection may have been lost after the commit: to write again could write twice.
    """
    if not isinstance(error, (OperationalError, InterfaceError)):
        return isinstance(error, DatabaseError)
    state = sql_state(error)
    return bool(state) and state[:2] not in ("08", "57")


def _accepted(jobs: NewJobs) -> Accepted | MusterError:
    """The answer to what is written by now; it must not be left to the view, which would write it again."""
    try:
        job = jobs[0]
        return Accepted(as_json(new_job(job, waits=False)), location_of(job), job.user_id)
    except Exception:
        log.exception("answer_not_made", number=jobs.number(0))
        return MusterError(
            message=f"Job {jobs.number(0)} was submitted, but it cannot be shown.",
            code="internal-error",
            status=500,
            way_out="Do not send it again. Ask an operator to check the log.",
        )
