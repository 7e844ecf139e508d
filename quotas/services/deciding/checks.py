"""Asks providers that decide about starts, and keeps what they say: refusals by job, and whether they answer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from quotas import outbox
from quotas.core.resources import Resources
from quotas.models import ProviderState, ProviderStatus, RefusedStart
from quotas.providers import calls
from quotas.providers.base import QuotaCheck, QuotaStart, Refused, Unreachable
from quotas.providers.circuit import answered, failed, left_alone

#: A refused job is asked about again after so long, twice as long each time.
FIRST_WAIT_SECONDS: Final = 15
LONGEST_WAIT_SECONDS: Final = 300
#: The time of the last answer is written down this often.
NOTED_EVERY: Final = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class ProviderAnswers:
    """What providers said about starts: by position of the start its answer, by provider why it did not answer."""

    checks: Mapping[int, QuotaCheck] = field(default_factory=dict)
    away: Mapping[str, str] = field(default_factory=dict)
    #: Of providers that are away: when they are asked again.
    again_at: Mapping[str, datetime] = field(default_factory=dict)


def ask(starts: Sequence[tuple[str, QuotaStart]], *, seconds: float | None = None) -> ProviderAnswers:
    """Ask each provider about its starts, all providers at once, one call each; outside any transaction.

    ProviderAnswers after `seconds` at the latest (None: QUOTA_PROVIDER_CHECK_SECONDS), whatever the providers do.
    """
    seconds = settings.QUOTA_PROVIDER_CHECK_SECONDS if seconds is None else seconds
    places: defaultdict[str, list[int]] = defaultdict(list)
    for place, (name, _) in enumerate(starts):
        places[name].append(place)
    away: dict[str, str] = {}
    again_at: dict[str, datetime] = {}
    begun: dict[str, calls.Call] = {}
    for name, its in places.items():
        if waits := left_alone(name):
            away[name], again_at[name] = waits
            continue
        asked = [starts[place][1] for place in its]
        try:
            begun[name] = calls.Call(name, partial(calls.check, starts=asked), seconds=seconds)
        except Unreachable as error:
            away[name], again_at[name] = failed(name, error)
    checks: dict[int, QuotaCheck] = {}
    for name, call in begun.items():
        its = places[name]
        try:
            checks |= dict(zip(its, calls.checked(call.result(), len(its)), strict=True))
        except Unreachable as error:
            away[name], again_at[name] = failed(name, error)
        except Refused as refused:
            answered(name)
            checks |= dict.fromkeys(its, QuotaCheck(False, possible=True, provider_text=str(refused)))
        else:
            answered(name)
    return ProviderAnswers(checks, away, again_at)


def probe(name: str, project_id: int) -> None:
    """Ask the provider about a job of this project that needs nothing, and write down whether it answers."""
    answers = ask([(name, QuotaStart(project_id, Resources()))])
    if name in answers.away:
        note_away(name, [project_id], answers.away[name], answers.again_at[name])
    else:
        note_answer(name, [project_id])


# ---------------------------------------------------------------- what is kept


@transaction.atomic
def keep_refusals(refused: Mapping[int, tuple[str, QuotaStart, QuotaCheck, int]]) -> None:
    """Write down which waiting jobs were refused: by number the provider, the start, the answer, the generation.

    Each waits before it is asked about again, longer each time in a row.
    """
    now = timezone.now()
    earlier = {row.job_number: row for row in RefusedStart.objects.filter(job_number__in=refused)}
    rows = []
    for number in sorted(refused):
        name, start, check, generation = refused[number]
        before = earlier.get(number)
        times = before.times + 1 if before is not None and before.generation == generation else 1
        wait = min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2 ** min(times - 1, 10))
        rows.append(
            RefusedStart(
                job_number=number, project_id=start.project_id, provider=name, generation=generation,
                text=calls.words_of(name, check), possible=check.possible, times=times, refused_at=now,
                until=now + timedelta(seconds=wait if check.possible else LONGEST_WAIT_SECONDS),
            )
        )  # fmt: skip
    fields = ["project", "provider", "generation", "text", "possible", "times", "refused_at", "until"]
    RefusedStart.objects.bulk_create(
        rows, update_conflicts=True, unique_fields=["job_number"], update_fields=fields
    )


def note_answer(name: str, project_ids: Sequence[int]) -> None:
    """Write down that the provider of these projects answered; most often that is known already."""
    now = timezone.now()
    known = set(
        ProviderState.objects.filter(
            project_id__in=project_ids,
            provider=name,
            status=ProviderStatus.OK,
            synced_at__gt=now - NOTED_EVERY,
        ).values_list("project_id", flat=True)
    )
    _note(
        name,
        sorted(set(project_ids) - known),
        ProviderStatus.OK,
        "",
        synced_at=now,
        failures=0,
        next_try_at=None,
    )


def note_away(name: str, project_ids: Sequence[int], text: str, again_at: datetime) -> None:
    """Write down that the provider of these projects did not answer, and when it is asked again."""
    _note(name, project_ids, ProviderStatus.UNREACHABLE, text, next_try_at=again_at)


@transaction.atomic
def _note(name: str, project_ids: Sequence[int], status: ProviderStatus, text: str, **values: object) -> None:
    now, changed = timezone.now(), False
    for project_id in sorted(set(project_ids)):
        row, made = ProviderState.objects.select_for_update().get_or_create(
            project_id=project_id, defaults={"provider": name, "since": now, "status": status}
        )
        since = row.since if row.status == status and row.provider == name else now
        changed |= not made and row.status != status
        ProviderState.objects.filter(pk=row.pk).update(
            provider=name, status=status, since=since, text=text[:500], **values
        )
    if changed:
        outbox.wake_planners()
