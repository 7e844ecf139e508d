"""Apply: what a document changes, all of it or nothing; a dry run does the same and takes it back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from django.db import models, transaction
from django.db.models import ProtectedError

from accounts import permissions
from accounts.models import User
from infra.errors import FieldProblem, InvalidInput, MusterError, NotAllowed
from scheduler.configuration import rows
from scheduler.configuration.document import Lines, items_of, parse
from scheduler.configuration.kinds import (
    CLASSES,
    CLUSTERS,
    NODES,
    OF_CLUSTER,
    PARTITIONS,
    PROFILES,
    QUEUES,
    SITE,
    Kind,
    plain,
)
from scheduler.configuration.operations import (
    Blocked,
    LineProblem,
    Operation,
    OperationRefused,
    carry_out,
)
from scheduler.configuration.rows import Change, Refused, Wrong
from scheduler.configuration.sections import Section, Within
from scheduler.configuration.site_sections import OF_SITE
from scheduler.models import Cluster, Queue
from scheduler.services.cluster.settings import remove_settings

VERSION: Final = 1
MOST_PROBLEMS: Final = 100
#: Rows that one request changes: each is a form, a service and an audit row, which take the time of a request together.
MOST_CHANGES: Final = 1000
#: The sections of a document, in the order in which they are exported.
_HEAD: Final = ("version", *(one.name for one in OF_SITE), *(kind.section for kind in SITE))


class _DryRun(Exception):
    """Ends the transaction of a dry run."""


def apply_configuration(
    *, text: str, by: User, reason: str, dry_run: bool = False, prune: bool = False
) -> list[Change]:
    """Make the site as the document says; fields and rows that it does not name stay as they are.

    With `prune`, rows of the sections that are there and that it does not name are deleted; clusters, nodes, people,
    organizations, projects, budgets and prices never. Raises InvalidInput with a problem for each wrong line,
    NotAllowed, and Conflict; nothing is changed then.
    """
    permissions.require(by, "operate")
    document = parse(text)
    run = _Run(by=by, reason=reason, prune=prune)
    try:
        with transaction.atomic():
            run.all(document)
            if run.problems:
                raise run.refusal()
            if dry_run:
                raise _DryRun
    except _DryRun:
        pass
    return list(run.changes.values())


class _Run:
    """One pass over a document."""

    def __init__(self, *, by: User, reason: str, prune: bool) -> None:
        self.by, self.reason, self.prune = by, reason, prune
        self.changes: dict[tuple[str, str], Change] = {}
        self.problems: list[FieldProblem] = []
        self.operations: list[Operation] = []
        #: The rows of each section that is written, by name; of sections of a cluster with its slug.
        self.there: dict[tuple[str, str], dict[str, models.Model]] = {}
        #: The same of sections that services write.
        self.known: dict[tuple[str, str], dict[tuple[str, tuple[str, ...]], Any]] = {}

    def all(self, document: Lines) -> None:
        """Collect what is to be done, row by row, and do it."""
        if document.get("version", VERSION) != VERSION:
            self.wrong(document.line_of("version"), f"Has to be {VERSION}, the version of the form.")
        self.unknown(document, _HEAD, "section")
        for section in OF_SITE:
            self.section(section, document, Within())
        for entry in self.entries(document, CLASSES):  # a class may name one that comes later
            self.add(10, self.write, CLASSES, entry, "", without="preempts")
            self.add(11, self.write, CLASSES, entry, "")
        for entry in self.entries(document, PROFILES):
            self.add(12, self.write, PROFILES, entry, "")
        for entry in self.entries(document, CLUSTERS):
            self.add(13, self.write, CLUSTERS, entry, "", also=tuple(kind.section for kind in OF_CLUSTER))
            self.of_cluster(entry)
        if self.prune:
            for kind in (PROFILES, CLASSES):
                self.delete_unnamed(30, kind, document, "")
        for problem in carry_out(self.operations):
            self.wrong(problem.line, problem.message)

    def add(self, stage: int, do: Callable[..., None], *args: Any, **words: Any) -> None:
        self.operations.append(Operation(partial(do, *args, **words), stage))

    def of_cluster(self, entry: Lines) -> None:
        slug = entry["slug"]
        for item in self.entries(entry, PARTITIONS):
            self.add(14, self.write, PARTITIONS, item, slug)
        # Of two queues that change their places the one that is no longer the default goes first.
        for item in sorted(self.entries(entry, QUEUES), key=lambda item: bool(item.get("is_default"))):
            self.add(15, self.write, QUEUES, item, slug)
        for item in self.entries(entry, NODES):
            self.add(16, self.write, NODES, item, slug)
        if self.prune:
            for kind in (QUEUES, PARTITIONS):
                self.delete_unnamed(20, kind, entry, slug)

    # ------------------------------------------------------------ rows that forms check

    def entries(self, within: Lines, kind: Kind) -> Iterator[Lines]:
        """The entries of a section that have a name, each name once."""
        yield from self.named(within, kind.section, (kind.key,))

    def named(self, within: Lines, section: str, key: tuple[str, ...]) -> Iterator[Lines]:
        if section not in within:
            return
        seen: dict[tuple[Any, ...], int] = {}
        for entry in items_of(within[section], section, within.line_of(section)):
            name = entry.get(key[0])
            full = tuple(str(entry.get(part, "")) for part in key)
            if not isinstance(name, str) or not name:
                self.wrong(entry.line, f"{key[0]}: an entry of {section} needs this text.")
            elif full in seen:
                words = " ".join(part for part in full if part)
                self.wrong(entry.line, f"{words} is there twice, first in line {seen[full]}.")
            else:
                seen[full] = entry.line
                yield entry

    def rows_of(self, kind: Kind, cluster: str) -> dict[str, models.Model]:
        """All rows of a section by their names, read once; queues of all clusters: their names are the site's."""
        at = (kind.section, "" if kind is QUEUES else cluster)
        if at not in self.there:
            found = with_references(kind)
            if at[1]:
                found = found.filter(cluster__slug=cluster)
            self.there[at] = {str(getattr(row, kind.key)): row for row in found}
        return self.there[at]

    def scope(self, kind: Kind, cluster: str) -> dict[str, Any]:
        if not kind.within:
            return {}
        found = self.rows_of(CLUSTERS, "").get(cluster)
        if found is None:
            raise Blocked
        return {"cluster": found}

    def write(
        self, kind: Kind, entry: Lines, cluster: str, *, without: str = "", also: tuple[str, ...] = ()
    ) -> None:
        """Save the row of an entry; raises OperationRefused where something of the entry is wrong."""
        _refuse_unknown(entry, (*kind.fields, *also))
        scope, there = self.scope(kind, cluster), self.rows_of(kind, cluster)
        row = there.get(entry[kind.key])
        if row is not None and without:
            return
        if isinstance(row, Queue) and row.cluster_id != scope["cluster"].pk:
            message = f"the queue {row.slug} is of the cluster {row.cluster.slug}, and stays there."
            raise OperationRefused([LineProblem(entry.line, message)])
        given = {name: value for name, value in entry.items() if name not in also}
        if row is not None and not rows.differing(kind, given, row, without):
            return
        try:
            with transaction.atomic():
                saved, change = rows.save(
                    kind, given, row or rows.blank(kind, given, scope), by=self.by, reason=self.reason, scope=scope,
                    without=without,
                )  # fmt: skip
        except NotAllowed:
            raise
        except (Refused, MusterError) as error:
            if row is not None:  # the form has filled it in
                there[entry[kind.key]] = with_references(kind).get(pk=row.pk)
            raise _at_lines(error, entry) from None
        if change is not None:
            new = row is None
            there[entry[kind.key]] = saved if new else with_references(kind).get(pk=saved.pk)
            self.note(change)

    def note(self, change: Change) -> None:
        """One change of a row, also where it takes two steps."""
        known = self.changes.setdefault((change.kind, change.name), change)
        if len(self.changes) > MOST_CHANGES:
            raise InvalidInput(
                f"The document changes more than {MOST_CHANGES:,} rows, the most of one request.",
                code="bad-document",
                way_out="Nothing was changed. Apply the document in parts; rows that do not differ do not count.",
            )
        if known is not change:
            known.before = change.before | known.before if known.action == "change" else known.before
            known.after |= change.after

    def delete_unnamed(self, stage: int, kind: Kind, within: Lines, cluster: str) -> None:
        if kind.section not in within or not isinstance(within[kind.section], list):
            return
        named = {entry.get(kind.key) for entry in within[kind.section] if isinstance(entry, Lines)}
        line = within.line_of(kind.section)
        there = with_references(kind)
        for row in (there.filter(cluster__slug=cluster) if cluster else there).order_by("pk"):
            if getattr(row, kind.key) not in named:
                self.add(stage, self.delete, kind, row, line)

    def delete(self, kind: Kind, row: models.Model, line: int) -> None:
        name, before = str(getattr(row, kind.key)), rows.shown(kind, row)
        try:
            with transaction.atomic():
                remove_settings(
                    thing=kind.model._default_manager.get(pk=row.pk), by=self.by, reason=self.reason
                )
        except NotAllowed:
            raise
        except MusterError as error:
            raise OperationRefused([LineProblem(line, f"{name} cannot be deleted: {error}")]) from None
        except ProtectedError:
            message = f"{name} cannot be deleted: other rows refer to it."
            raise OperationRefused([LineProblem(line, message)]) from None
        self.changes[kind.section, name] = Change(kind.section, name, "delete", before)

    # ------------------------------------------------------------ rows that services write

    def section(self, section: Section, within: Lines, scope: Within) -> None:
        """What a section that services write asks for, and the sections inside its entries."""
        entries = list(self.named(within, section.name, section.key))
        for entry in entries:
            self.unknown(entry, (*section.fields, *(one.name for one in section.inside)), "field")
            self.add(section.stage, self.write_by_service, section, entry, scope)
            for inner in section.inside:
                self.section(inner, entry, Within(section.name, entry[section.key[0]]))
        if self.prune and section.name in within and section.can_remove:
            self.add(
                section.stage + 20, self.remove_unnamed, section, within.line_of(section.name),
                [section.name_of(entry) for entry in entries], scope,
            )  # fmt: skip

    def write_by_service(self, section: Section, entry: Lines, scope: Within) -> None:
        given = {name: entry[name] for name in section.fields if name in entry}
        row = self.row_of(section, entry, scope)
        if row is not None and section.is_same(given, row):
            return
        try:
            with transaction.atomic():
                change = section.write(given, row, scope, by=self.by, reason=self.reason)
        except NotAllowed:
            raise
        except (Refused, MusterError) as error:
            raise _at_lines(error, entry) from None
        if change is not None:
            self.note(change)

    def row_of(self, section: Section, entry: Lines, scope: Within) -> Any:
        """The row of an entry, None where there is none; all rows of a section are read at once."""
        at = (section.name, scope.section)
        if at not in self.known:
            self.known[at] = section.known(scope.section)
        return self.known[at].get((scope.name, section.name_of(entry)))

    def remove_unnamed(self, section: Section, line: int, named: list[Any], scope: Within) -> None:
        try:
            with transaction.atomic():
                gone = section.remove_others(named, scope, by=self.by, reason=self.reason)
        except NotAllowed:
            raise
        except MusterError as error:
            raise OperationRefused([LineProblem(line, str(error))]) from None
        for change in gone:
            self.changes[change.kind, change.name] = change

    # ------------------------------------------------------------ problems

    def unknown(self, entry: Lines, known: tuple[str, ...], word: str) -> None:
        for key in entry:
            if key not in known:
                self.wrong(entry.line_of(key), f"There is no {word} {key}; there are {', '.join(known)}.")

    def wrong(self, line: int, message: str) -> None:
        self.problems.append(FieldProblem(f"line {line}", message, "bad-document"))

    def refusal(self) -> InvalidInput:
        first, more = self.problems[0], len(self.problems) - 1
        rest = f" {more} more {'line is' if more == 1 else 'problems are'} named below." if more else ""
        return InvalidInput(
            f"{first.field[:1].upper()}{first.field[1:]}: {first.message}{rest}",
            code="bad-document",
            way_out="Nothing was changed.",
            problems=self.problems[:MOST_PROBLEMS],
        )


def _refuse_unknown(entry: Lines, known: tuple[str, ...]) -> None:
    """Raise OperationRefused where an entry has other fields than these."""
    unknown = [key for key in entry if key not in known]
    if unknown:
        raise OperationRefused(
            LineProblem(entry.line_of(key), f"There is no field {key}; there are {', '.join(known)}.")
            for key in unknown
        )


def _at_lines(error: Refused | MusterError, entry: Lines) -> OperationRefused:
    """What was refused, at the lines of the fields that it is about."""
    if isinstance(error, Refused):
        wrongs = error.problems
    elif error.problems:
        wrongs = tuple(Wrong(one.field, f"{one.field}: {one.message}") for one in error.problems)
    else:
        wrongs = (Wrong("", str(error)),)
    return OperationRefused(LineProblem(entry.line_of(one.name), one.message) for one in wrongs)


def with_references(kind: Kind) -> models.QuerySet[Any]:
    """The rows of a kind with what their fields name, in a fixed number of queries."""
    fields = [
        kind.model._meta.get_field(name) for name in (*kind.fields, *(["cluster"] if kind.within else []))
    ]
    single = [one.name for one in fields if one.many_to_one]
    many = [one.name for one in fields if one.many_to_many]
    return kind.model._default_manager.select_related(*single).prefetch_related(*many)


def export_configuration(*, by: User) -> dict[str, Any]:
    """The document of this site, which another portal can apply; for operators and auditors."""
    if not permissions.may(by, "audit"):
        permissions.require(by, "operate")
    document: dict[str, Any] = {"version": VERSION}
    for section in OF_SITE:
        document[section.name] = section.export().get("", [])
    for kind in SITE:
        document[kind.section] = [_entry(kind, row) for row in with_references(kind).order_by(kind.key)]
    return document


def _entry(kind: Kind, row: models.Model) -> dict[str, Any]:
    entry = _fields(kind, row)
    if isinstance(row, Cluster):
        for inner in OF_CLUSTER:
            found = with_references(inner).filter(cluster=row).order_by(inner.key)
            entry[inner.section] = [_fields(inner, one) for one in found]
    return entry


def _fields(kind: Kind, row: Any) -> dict[str, Any]:
    return {name: plain(row, name) for name in kind.fields}
