"""From things that happened to notifications and messages: who wants each, and what is counted together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, TypeVar

from django.conf import settings
from django.db.models import Q

from accounts.models import User
from accounts.permissions import current_memberships
from infra.notifications import announce_many
from notifications.core.grouping import ARRAY_SECONDS, MOST_JOBS
from notifications.core.kinds import Channel, Kind, is_on
from notifications.models import (
    Bundle,
    Endpoint,
    Mail,
    MailState,
    Message,
    MessageState,
    Notification,
    Preference,
)


class Occurrence(NamedTuple):
    """One thing that happened to one person, as a source found it.

    `event` is its number in `source`, and rises. `mail` is what a job's own words say: True, False, or None where
    they leave it to the person. `only_mail` keeps it out of the portal: nobody but the job's own words asked for it.
    `sent` says that webhooks get it.
    """

    kind: Kind
    source: str
    event: int
    at: datetime
    user_id: int
    group: str
    text: str
    project_id: int | None = None
    job: int | None = None
    name: str = ""
    thing: str = ""
    mail: bool | None = None
    only_mail: bool = False
    sent: bool = True


class Wishes(NamedTuple):
    """Who wants what, as far as some occurrences need it."""

    #: People who may be notified, by id.
    people: Mapping[int, User]
    #: (person, project) of current memberships, and people who see every project.
    members: frozenset[tuple[int, int]]
    chosen: Mapping[tuple[int, str, str], bool]
    endpoints_of_people: Mapping[int, Sequence[Endpoint]]
    endpoints_of_projects: Mapping[int, Sequence[Endpoint]]

    def may_know(self, one: Occurrence) -> bool:
        """Whether the person is active and still sees the project: who has left it is not notified of its jobs."""
        person = self.people.get(one.user_id)
        if person is None:
            return False
        if one.project_id is None or (one.user_id, one.project_id) in self.members:
            return True
        return person.is_operator or person.is_auditor

    def wants(self, user_id: int, kind: Kind, channel: Channel) -> bool:
        return self.chosen.get((user_id, kind.value, channel.value), is_on(kind, channel))


def mail_is_on() -> bool:
    """Whether this site sends mail at all."""
    return bool(settings.MUSTER_ALERT_MAIL_FROM)


def wishes_of(occurrences: Sequence[Occurrence]) -> Wishes:
    """Four queries, however many there are."""
    users = {one.user_id for one in occurrences}
    projects = {one.project_id for one in occurrences if one.project_id is not None}
    of_people: defaultdict[int, list[Endpoint]] = defaultdict(list)
    of_projects: defaultdict[int, list[Endpoint]] = defaultdict(list)
    endpoints = Endpoint.objects.filter(Q(user__in=users) | Q(project__in=projects), disabled_at__isnull=True)
    for endpoint in endpoints:
        if endpoint.user_id is not None:
            of_people[endpoint.user_id].append(endpoint)
        elif endpoint.project_id is not None:
            of_projects[endpoint.project_id].append(endpoint)
    members = current_memberships().filter(user__in=users, project__in=projects)
    return Wishes(
        people={user.pk: user for user in User.objects.filter(pk__in=users, is_active=True)},
        members=frozenset(members.values_list("user_id", "project_id")),
        chosen={
            (row.user_id, row.kind, row.channel): row.on for row in Preference.objects.filter(user__in=users)
        },
        endpoints_of_people=of_people,
        endpoints_of_projects=of_projects,
    )


def take_in(occurrences: Sequence[Occurrence], *, now: datetime) -> int:
    """Write the notifications, mails and messages of these, in the caller's transaction; answers how many rows.

    The same occurrences again change nothing: each row knows the last event that it counts.
    """
    if not occurrences:
        return 0
    wishes = wishes_of(occurrences)
    for_people: defaultdict[tuple[int, str, str], list[Occurrence]] = defaultdict(list)
    for_endpoints: defaultdict[tuple[int, str, str], list[Occurrence]] = defaultdict(list)
    shown: dict[tuple[int, str, str], bool] = {}
    mailed: dict[tuple[int, str, str], bool] = {}
    for one in occurrences:
        known = wishes.may_know(one)
        if known:
            key = (one.user_id, one.kind.value, one.group)
            in_portal = not one.only_mail and wishes.wants(one.user_id, one.kind, Channel.PORTAL)
            by_mail = _by_mail(one, wishes)
            if in_portal or by_mail:
                for_people[key].append(one)
                shown[key] = shown.get(key, False) or in_portal
                mailed[key] = mailed.get(key, False) or by_mail
        for endpoint in _endpoints(one, wishes, known=known):
            for_endpoints[endpoint.pk, one.kind.value, one.group].append(one)
    written = _notifications(for_people, shown, mailed, now=now)
    return written + _messages(for_endpoints, now=now)


def _by_mail(one: Occurrence, wishes: Wishes) -> bool:
    if not mail_is_on() or not wishes.people[one.user_id].email:
        return False
    if one.mail is not None:
        return one.mail
    return not one.only_mail and wishes.wants(one.user_id, one.kind, Channel.MAIL)


def _endpoints(one: Occurrence, wishes: Wishes, *, known: bool) -> list[Endpoint]:
    if not one.sent:
        return []
    found = list(wishes.endpoints_of_people.get(one.user_id, ())) if known else []
    if one.project_id is not None and one.job is not None:
        found += wishes.endpoints_of_projects.get(one.project_id, ())
    return [endpoint for endpoint in found if one.kind.value in endpoint.kinds]


# ---------------------------------------------------------------- counting together

_Groups = Mapping[tuple[int, str, str], Sequence[Occurrence]]
B = TypeVar("B", bound=Bundle)
_COUNTED: Final = ("count", "jobs", "lines", "text", "last_at", "last_event")


def _notifications(
    groups: _Groups, shown: Mapping[Any, bool], mailed: Mapping[Any, bool], *, now: datetime
) -> int:
    if not groups:
        return 0
    open_ones = {
        (row.user_id, row.kind, row.group_key): row
        for row in Notification.objects.select_for_update()
        .filter(
            _lasting(now),
            user__in={user for user, _, _ in groups},
            group_key__in={group for _, _, group in groups},
            read_at__isnull=True,
        )
        .order_by("id")
    }
    changed: list[Notification] = []
    new: list[Notification] = []
    for key, ones in groups.items():
        found = open_ones.get(key)
        if found is not None and found.in_portal == shown[key]:
            if _count(found, ones):
                changed.append(found)
        else:
            new.append(_first(Notification(user_id=key[0], in_portal=shown[key]), ones))
    Notification.objects.bulk_update(changed, _COUNTED)
    Notification.objects.bulk_create(new, ignore_conflicts=True)
    _mails(groups, mailed, [*changed, *new], now=now)
    announce_many({topic_of(user_id) for user_id, _, _ in groups})
    return len(changed) + len(new)


def _lasting(now: datetime) -> Q:
    """Which rows count on: for the length of a burst; arrays for a day; quotas for the time between two digests."""
    burst = timedelta(seconds=settings.MUSTER_NOTIFICATION_BURST_SECONDS)
    array = timedelta(seconds=ARRAY_SECONDS)
    return (
        Q(last_at__gte=now - burst)
        | Q(group_key__startswith="array:", last_at__gte=now - array)
        | Q(kind=Kind.QUOTA, first_at__gte=now - _between_digests())
    )


def _between_digests() -> timedelta:
    return timedelta(seconds=settings.MUSTER_ALERT_DIGEST_SECONDS)


def topic_of(user_id: int) -> str:
    """The hint that a person's notifications have changed."""
    return f"notifications:{user_id}"


def _mails(
    groups: _Groups, mailed: Mapping[Any, bool], rows: Iterable[Notification], *, now: datetime
) -> None:
    """A mail for each that wants one, after a wait for the rest of its burst; again at the earliest an hour later."""
    wanted = [row for row in rows if mailed[row.user_id, row.kind, row.group_key]]
    if not wanted:
        return
    made = [row for row in wanted if row.pk is not None] + _with_keys(
        [row for row in wanted if row.pk is None]
    )
    due = now + timedelta(seconds=settings.MUSTER_MAIL_WAIT_SECONDS)
    Mail.objects.bulk_create([Mail(notification=row, due_at=due) for row in made], ignore_conflicts=True)
    again = timedelta(seconds=settings.MUSTER_MAIL_AGAIN_SECONDS)
    kinds = {row.pk: row.kind for row in made}
    for mail in Mail.objects.select_for_update().filter(
        notification__in=made, state=MailState.SENT, sent_at__isnull=False
    ):
        assert mail.sent_at is not None
        wait = _between_digests() if kinds[mail.pk] == Kind.QUOTA else again
        mail.state, mail.due_at, mail.tries = MailState.PENDING, max(due, mail.sent_at + wait), 0
        mail.save(update_fields=["state", "due_at", "tries"])


def _with_keys(rows: Sequence[Notification]) -> list[Notification]:
    """New rows as they were stored: an insert that may meet the same row gives no keys back."""
    if not rows:
        return []
    wanted = {(row.user_id, row.kind, row.source, row.group_key, row.first_event) for row in rows}
    stored = Notification.objects.filter(
        user__in={row.user_id for row in rows}, first_event__in={row.first_event for row in rows}
    )
    return [
        row for row in stored if (row.user_id, row.kind, row.source, row.group_key, row.first_event) in wanted
    ]


def _messages(groups: _Groups, *, now: datetime) -> int:
    """What was not tried yet counts on; a message that a receiver may have seen stays as it is."""
    if not groups:
        return 0
    open_ones = {
        (row.endpoint_id, row.kind, row.group_key): row
        for row in Message.objects.select_for_update()
        .filter(
            endpoint__in={endpoint for endpoint, _, _ in groups},
            group_key__in={group for _, _, group in groups},
            state=MessageState.PENDING,
            tries=0,
            body="",
        )
        .order_by("id")
    }
    changed: list[Message] = []
    new: list[Message] = []
    due = now + timedelta(seconds=settings.MUSTER_WEBHOOK_WAIT_SECONDS)
    for key, ones in groups.items():
        found = open_ones.get(key)
        if found is None:
            new.append(_first(Message(endpoint_id=key[0], user_id=ones[0].user_id, due_at=due), ones))
        elif _count(found, ones):
            changed.append(found)
    Message.objects.bulk_update(changed, _COUNTED)
    Message.objects.bulk_create(new, ignore_conflicts=True)
    return len(changed) + len(new)


def _first(row: B, ones: Sequence[Occurrence]) -> B:
    first, last = ones[0], ones[-1]
    row.kind, row.group_key, row.project_id = first.kind.value, first.group, first.project_id
    row.name, row.thing, row.text = first.name[:200], first.thing, last.text[:300]
    row.first_at, row.last_at = first.at, last.at
    row.source, row.first_event, row.last_event = first.source, first.event, last.event
    row.count, row.jobs, row.lines = len(ones), _jobs(ones), _lines(ones)
    return row


def _count(row: Bundle, ones: Sequence[Occurrence]) -> bool:
    """Count what this row does not count yet; False where there is nothing."""
    fresh = [one for one in ones if one.source != row.source or one.event > row.last_event]
    if not fresh:
        return False
    last = fresh[-1]
    row.count += len(fresh)
    row.jobs = [*row.jobs, *_jobs(fresh)][:MOST_JOBS]
    row.lines = [*row.lines, *_lines(fresh)][:MOST_JOBS]
    row.text, row.last_at = last.text[:300], max(row.last_at, last.at)
    row.last_event = max(row.last_event, last.event)
    return True


def _jobs(ones: Sequence[Occurrence]) -> list[int]:
    return [one.job for one in ones if one.job is not None][:MOST_JOBS]


def _lines(ones: Sequence[Occurrence]) -> list[str]:
    return [one.text[:300] for one in ones if one.job is None][:MOST_JOBS]
