"""Changes of what fair share reads: use as attempts end, weights and limits by people, and the recount."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import structlog
from django.db import connection, transaction
from django.db.models import F
from django.utils import timezone

from accounts import permissions
from accounts.models import Membership, Organization, Project, User
from accounts.models.project import SHARE_RANGE
from accounts.services import audit
from infra.db.advisory_lock import try_lock
from infra.db.prepared import Statement
from infra.errors import Conflict, FieldProblem, InvalidInput, NotFound
from quotas import outbox
from quotas.core.decay import Decay, parts_of
from quotas.selectors.fair_share_source import Held, share_rules, share_source

log = structlog.get_logger(__name__)

Slice = tuple[int, int, int]  # project, user, epoch seconds at which it begins
Amounts = list[float]  # seconds of GPUs, cores, GiB; then the same decayed

_ADD: Final = """
INSERT INTO quotas_shareusage AS kept (project_id, user_id, starts_at,
    gpu_seconds, cpu_seconds, memory_gib_seconds, gpu_decayed, cpu_decayed, memory_decayed,
    half_life_seconds, window_seconds)
SELECT project, person, to_timestamp(starts), gpu, cpu, memory, gpu_left, cpu_left, memory_left, %s, %s
FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::float8[], %s::float8[], %s::float8[],
    %s::float8[], %s::float8[], %s::float8[])
    AS added(project, person, starts, gpu, cpu, memory, gpu_left, cpu_left, memory_left)
ON CONFLICT (project_id, user_id, starts_at) DO UPDATE SET
    gpu_seconds = kept.gpu_seconds + excluded.gpu_seconds,
    cpu_seconds = kept.cpu_seconds + excluded.cpu_seconds,
    memory_gib_seconds = kept.memory_gib_seconds + excluded.memory_gib_seconds,
    gpu_decayed = kept.gpu_decayed + excluded.gpu_decayed,
    cpu_decayed = kept.cpu_decayed + excluded.cpu_decayed,
    memory_decayed = kept.memory_decayed + excluded.memory_decayed,
    half_life_seconds = {half_life}, window_seconds = {window}
"""
#: A slice with parts of two half-lives is of none; so no reader takes the sum for more or less than it is.
_KEEP_LABEL: Final = {
    "half_life": "CASE WHEN kept.half_life_seconds = excluded.half_life_seconds THEN kept.half_life_seconds ELSE 0 END",
    "window": "CASE WHEN kept.window_seconds = excluded.window_seconds THEN kept.window_seconds ELSE 0 END",
}
#: The recount makes a slice whole under its own.
_NEW_LABEL: Final = {"half_life": "excluded.half_life_seconds", "window": "excluded.window_seconds"}


def count_use(held: Iterable[Held]) -> None:
    """Add what has just ended; part of the transaction that ends it. Slices are locked in one fixed order."""
    decay, _ = share_rules()
    _run(_adding(_slices(held, decay), decay))


def statements_of_use(held: Iterable[Held]) -> list[Statement]:
    """The statement that does so, if there is anything to add."""
    spans = list(held)
    if not spans:
        return []
    decay, _ = share_rules()
    return _adding(_slices(spans, decay), decay)


def _slices(held: Iterable[Held], decay: Decay) -> dict[Slice, Amounts]:
    found: dict[Slice, Amounts] = {}
    for one in held:
        for part in parts_of(one.start, one.end, decay):
            sums = found.setdefault((one.project_id, one.user_id, part.starts), [0.0] * 6)
            for place, amount in enumerate((one.gpus, one.cores, one.memory_gib)):
                sums[place] += amount * part.seconds
                sums[place + 3] += amount * part.decayed
    return found


def _run(statements: Iterable[Statement]) -> None:
    for sql, parameters in statements:
        with connection.cursor() as cursor:
            cursor.execute(sql, parameters)


def _adding(
    slices: Mapping[Slice, Amounts], decay: Decay, labels: Mapping[str, str] = _KEEP_LABEL
) -> list[Statement]:
    if not slices:
        return []
    rows = [(*key, *amounts) for key, amounts in sorted(slices.items())]
    columns = [list(column) for column in zip(*rows, strict=True)]
    return [(_ADD.format(**labels), [decay.half_life_seconds, decay.window_seconds, *columns])]


# ------------------------------------------------------------------ the recount

#: One recount at a time, of all processes: two would both repair the same difference.
RECOUNT_LOCK: Final = 0x73686172
#: What sums of floats may differ by for being added in another order.
_NOISE: Final = 1e-6

_KEPT: Final = """
SELECT project_id, user_id, extract(epoch FROM starts_at)::bigint,
    gpu_seconds, cpu_seconds, memory_gib_seconds, gpu_decayed, cpu_decayed, memory_decayed,
    half_life_seconds, window_seconds
FROM quotas_shareusage WHERE starts_at >= to_timestamp(%s)
"""


def recount_shares() -> int:
    """Compare the slices of the window with what was really held, and repair them; answers how many were wrong.

    Nothing is locked against settling: one picture of the database has both the slices and what they are made
    from, for they change in the same transactions, and the repair adds the difference that was seen.
    """
    decay, _ = share_rules()
    with try_lock(RECOUNT_LOCK) as ours:
        return recount_rows(decay) if ours else 0


def recount_rows(decay: Decay) -> int:
    """One recount; the caller holds RECOUNT_LOCK."""
    at = timezone.now().timestamp()
    since = Decay(window_seconds=decay.window_seconds).edge(at)
    with transaction.atomic(), connection.cursor() as cursor:
        if len(connection.savepoint_ids) == 0:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        cursor.execute(_KEPT, [since])
        rows = cursor.fetchall()
        kept = {(row[0], row[1], row[2]): row[3:9] for row in rows}
        label = (decay.half_life_seconds, decay.window_seconds)
        relabelled = {(row[0], row[1], row[2]) for row in rows if row[9:] != label}
        made = _slices(share_source().ended_since(since), decay)
    found = {key: sums for key, sums in made.items() if key[2] >= since}
    wrong: dict[Slice, Amounts] = {}
    for key in found.keys() | kept.keys():
        now, right = kept.get(key, (0.0,) * 6), found.get(key, [0.0] * 6)
        less = [b - a for a, b in zip(now, right, strict=True)]
        drifted = any(abs(d) > 1e-3 + _NOISE * abs(b) for d, b in zip(less, right, strict=True))
        if drifted or key in relabelled:
            wrong[key] = less
    if wrong:
        with transaction.atomic():
            _run(_adding(wrong, decay, _NEW_LABEL))
        log.warning("share_drift", slices=len(wrong), gpu_seconds=round(sum(d[0] for d in wrong.values()), 3))
        outbox.wake_planners()
    return len(wrong)


# ------------------------------------------------------------------ weights and limits

Subject = Organization | Project | Membership | User
#: What may be changed of each kind.
EDITABLE: Final = {
    Organization: ("share_weight", "share_soft_percent", "share_hard_percent"),
    Project: ("share_weight", "share_soft_percent", "share_hard_percent"),
    Membership: ("share_weight",),
    #: Of the turns that people take.
    User: ("share_weight",),
}


@transaction.atomic
def set_share(
    *,
    subject: Subject,
    changes: Mapping[str, int | None],
    by: User,
    reason: str,
    seen: Mapping[str, int | None] | None = None,
) -> Subject:
    """Change a weight, or the limits of a share; `seen` are the values that the person looked at.

    Operators change those of organizations and projects, leads also the weights of their own members. Raises
    Conflict (412) with the present values when somebody has changed them since they were seen.
    """
    _require(by, subject)
    kind = type(subject)
    reason = reason.strip()
    _check(kind, changes, reason)
    row = kind.objects.select_for_update(no_key=True, of=("self",)).get(pk=subject.pk)
    now = {name: getattr(row, name) for name in EDITABLE[kind]}
    stale = {name: value for name, value in now.items() if seen and name in seen and seen[name] != value}
    if stale:
        raise Conflict(
            f"The share of {_named(row)} was changed since you read it.",
            code="stale",
            status=412,
            way_out="Read the current values, then send your change again.",
            extra={"current": now},
        )
    new = now | dict(changes)
    soft, hard = new.get("share_soft_percent"), new.get("share_hard_percent")
    if soft is not None and hard is not None and soft > hard:
        message = f"The soft limit ({soft} %) would be above the hard one ({hard} %)."
        raise InvalidInput(message, problems=[FieldProblem("share_soft_percent", message)])
    before, after = audit.changed(now, new)
    if after:
        more = {"generation": F("generation") + 1} if kind is Project else {}
        kind.objects.filter(pk=row.pk).update(**after, **more)
        for name, value in after.items():
            setattr(row, name, value)
        outbox.wake_planners()
        project = row if isinstance(row, Project) else getattr(row, "project", None)
        audit.record(
            by=by, action="share.set", thing=row, before=before, after=after, reason=reason, project=project
        )
    return row


_KINDS: Final[dict[str, type[Subject]]] = {
    "organization": Organization,
    "project": Project,
    "member": Membership,
    "user": User,
}


def share_subject(user: User, kind: str, number: int) -> Subject:
    """What `ShareLine.edit` names, for somebody who may edit it; raises NotFound for all others."""
    model = _KINDS.get(kind)
    row = None
    # Who may not edit the weights of people learns no number of theirs.
    if model is not None and (model is not User or permissions.may(user, "operate")):
        rows = model.objects.select_related("project", "user") if model is Membership else model.objects.all()
        row = rows.filter(pk=number).first()
    if row is None or not (
        isinstance(row, Organization | User) or permissions.may(user, "view", _thing(row))
    ):
        raise NotFound(
            f"There is no such {kind[:20]}, or you may not see it.", way_out="See the tree of shares."
        )
    _require(user, row)
    return row


def _require(user: User, subject: Subject) -> None:
    if isinstance(subject, User):
        permissions.require(user, "operate")
    elif not permissions.may(user, "operate"):
        permissions.require(user, "manage" if isinstance(subject, Membership) else "operate", _thing(subject))


def _thing(subject: Subject) -> Any:
    return subject.project if isinstance(subject, Membership) else subject


def _named(subject: Subject) -> str:
    if isinstance(subject, User):
        return subject.username
    return subject.user.username if isinstance(subject, Membership) else str(subject)


def _check(kind: type[Subject], changes: Mapping[str, int | None], reason: str) -> None:
    problems = []
    if not reason:
        problems.append(FieldProblem("reason", "Give a reason; it goes into the audit trail.", "required"))
    if not changes:
        problems.append(FieldProblem("", "Name the weight or a limit to change.", "required"))
    for name, value in changes.items():
        if name not in EDITABLE[kind]:
            problems.append(FieldProblem(name, f"A {kind._meta.verbose_name} has no {name[:40]!r}."))
        elif name == "share_weight":
            if type(value) is not int or not SHARE_RANGE[0] <= value <= SHARE_RANGE[1]:
                problems.append(
                    FieldProblem(
                        name, f"A weight is a whole number from {SHARE_RANGE[0]} to {SHARE_RANGE[1]:,}."
                    )
                )
        elif value is not None and (type(value) is not int or not 1 <= value <= 100):
            problems.append(FieldProblem(name, "A limit is a percentage of the site, 1 to 100, or empty."))
    if problems:
        raise InvalidInput(problems[0].message, problems=problems)
