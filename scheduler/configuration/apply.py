"""Apply: what a document changes, all of it or nothing; a dry run does the same and takes it back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from django.db import IntegrityError, models, transaction
from django.db.models import ProtectedError
from django.forms import ModelMultipleChoiceField

from accounts import permissions
from accounts.models import User
from accounts.services import audit
from infra.errors import FieldProblem, InvalidInput, MusterError, NotAllowed
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
    WrongType,
    initial,
    plain,
    posted,
)
from scheduler.core.lifecycle import NodeState
from scheduler.models import Cluster, Node, Queue
from scheduler.services.cluster.settings import remove_settings, save_settings

VERSION: Final = 1
MOST_PROBLEMS: Final = 100
#: What a row cannot be made without, in the order in which problems are shown.
_HEAD: Final = ("version", *(kind.section for kind in SITE))


@dataclass(slots=True)
class Change:
    """One row that is created, changed or deleted: its fields before and after; None where there is no row."""

    kind: str
    name: str
    action: str
    before: dict[str, Any] = field(default_factory=dict)
    after: dict[str, Any] = field(default_factory=dict)


class _DryRun(Exception):
    """Ends the transaction of a dry run."""


def apply_configuration(
    *, text: str, by: User, reason: str, dry_run: bool = False, prune: bool = False
) -> list[Change]:
    """Make the site as the document says; fields and rows that it does not name stay as they are.

    With `prune`, rows of the sections that are there and that it does not name are deleted; clusters and nodes never.
    Raises InvalidInput with a problem for each wrong line, NotAllowed, and Conflict; nothing is changed then.
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
        self.unfinished: set[tuple[str, str]] = set()  # named by the document, and refused

    def all(self, document: Lines) -> None:
        """Rows in the order in which they refer to each other; a profile before the cluster that has it."""
        if document.get("version", VERSION) != VERSION:
            self.wrong(document.line_of("version"), f"Has to be {VERSION}, the version of the form.")
        self.unknown(document, (*_HEAD,), "section")
        classes = list(self.entries(document, CLASSES))
        for entry in classes:  # a class may name one that comes later
            if self.existing(CLASSES, entry, {}) is None:
                self.write(CLASSES, entry, {}, without="preempts")
        for entry in classes:
            self.write(CLASSES, entry, {})
        for entry in self.entries(document, PROFILES):
            self.write(PROFILES, entry, {})
        for entry in self.entries(document, CLUSTERS):
            cluster = self.write(CLUSTERS, entry, {}, also=tuple(kind.section for kind in OF_CLUSTER))
            if isinstance(cluster, Cluster):
                self.of_cluster(entry, cluster)
        if self.prune and not self.problems:
            self.delete_unnamed(PROFILES, document, SITE[1].model._default_manager.all())
            self.delete_unnamed(CLASSES, document, CLASSES.model._default_manager.all())

    def of_cluster(self, entry: Lines, cluster: Cluster) -> None:
        scope = {"cluster": cluster}
        for item in self.entries(entry, PARTITIONS):
            self.write(PARTITIONS, item, scope)
        # Of two queues that change their places the one that is no longer the default goes first.
        queues = sorted(self.entries(entry, QUEUES), key=lambda item: bool(item.get("is_default")))
        for item in queues:
            self.write(QUEUES, item, scope)
        for item in self.entries(entry, NODES):
            self.write(NODES, item, scope)
        if self.prune and not self.problems:
            for kind in (QUEUES, PARTITIONS):
                self.delete_unnamed(kind, entry, kind.model._default_manager.filter(cluster=cluster))

    # ------------------------------------------------------------ entries

    def entries(self, within: Lines, kind: Kind) -> Iterator[Lines]:
        """The entries of a section that have a name, each name once."""
        if kind.section not in within:
            return
        seen: dict[str, int] = {}
        for entry in items_of(within[kind.section], kind.section, within.line_of(kind.section)):
            name = entry.get(kind.key)
            if not isinstance(name, str) or not name:
                self.wrong(entry.line, f"{kind.key}: an entry of {kind.section} needs this text.")
            elif name in seen:
                self.wrong(entry.line, f"{name} is there twice, first in line {seen[name]}.")
            else:
                seen[name] = entry.line
                yield entry

    def existing(self, kind: Kind, entry: Lines, scope: Mapping[str, Any]) -> models.Model | None:
        rows = kind.model._default_manager.filter(**{kind.key: entry[kind.key]})
        if kind.within and kind is not QUEUES:
            rows = rows.filter(cluster=scope["cluster"])
        return rows.first()

    def write(
        self,
        kind: Kind,
        entry: Lines,
        scope: Mapping[str, Any],
        *,
        without: str = "",
        also: tuple[str, ...] = (),
    ) -> models.Model | None:
        """Save the row of an entry; None where something of the entry is wrong."""
        self.unknown(entry, (*kind.fields, *also), "field")
        row = self.existing(kind, entry, scope)
        new = row is None
        if isinstance(row, Queue) and row.cluster_id != scope["cluster"].pk:
            self.wrong(
                entry.line, f"the queue {row.slug} is of the cluster {row.cluster.slug}, and stays there."
            )
            return None
        if row is None:
            row = self.blank(kind, entry, scope)
        names = [name for name in kind.form.base_fields if name not in ("reason", "seen")]
        data = initial(kind, row, names)
        wrong = len(self.problems)
        for name in names:
            if name not in entry or name == without:
                continue
            field = kind.form.base_fields[name]
            in_order = not isinstance(field, ModelMultipleChoiceField)
            if new or not _same(plain(row, name), entry[name], in_order=in_order):
                try:
                    data[name] = posted(field, entry[name], scope)
                except WrongType as error:
                    self.wrong(entry.line_of(name), f"{name} {error}.")
        if len(self.problems) > wrong:
            return None
        return self.save(kind, entry, row, data, new=new)

    def blank(self, kind: Kind, entry: Lines, scope: Mapping[str, Any]) -> models.Model:
        row = kind.model(**{kind.key: entry[kind.key]})
        if kind.within:
            row.cluster = scope["cluster"]  # type: ignore[attr-defined]
        if isinstance(row, Node):
            # Until its agent registers: a node that was declared gets no jobs.
            row.state = NodeState.DOWN
            with transaction.atomic():
                row.save()
                audit.record(
                    by=self.by,
                    action="node.declare",
                    thing=row,
                    after={"cluster": row.cluster.slug},
                    reason=self.reason,
                )
        elif kind.model is Cluster or kind is QUEUES:
            row.name = entry.get("name", entry[kind.key])  # type: ignore[attr-defined]
        return row

    def save(
        self, kind: Kind, entry: Lines, row: models.Model, data: dict[str, Any], *, new: bool
    ) -> models.Model | None:
        before = {} if new else _shown(kind, row)
        form = kind.form({**data, "reason": self.reason, "seen": ""}, instance=row)
        if not form.is_valid():
            for name, messages in form.errors.items():
                line = entry.line_of(name) if name != "__all__" else entry.line
                label = "" if name == "__all__" else f"{name}: "
                for message in messages:
                    self.wrong(line, f"{label}{message}")
            return None
        if not form.changed_data and not new:
            return row
        form.save(commit=False)
        try:
            with transaction.atomic():
                saved = save_settings(
                    thing=form.instance, changed_fields=form.changed_data, by=self.by, reason=self.reason,
                    save_relations=form.save_m2m,
                )  # fmt: skip
        except NotAllowed:
            raise
        except MusterError as error:
            self.wrong(entry.line, str(error))
            return None
        except IntegrityError as error:
            self.wrong(entry.line, f"the database refuses this: {str(error).splitlines()[0]}.")
            return None
        self.note(kind, str(entry[kind.key]), before, _shown(kind, saved), new=new)
        return saved

    def note(
        self, kind: Kind, name: str, before: dict[str, Any], after: dict[str, Any], *, new: bool
    ) -> None:
        known = self.changes.get((kind.section, name))
        if known is not None:
            known.after = after
            return
        if not new:
            before, after = audit.changed(before, after)
            if not after:
                return
        self.changes[kind.section, name] = Change(
            kind.section, name, "create" if new else "change", before, after
        )

    def delete_unnamed(self, kind: Kind, within: Lines, rows: models.QuerySet[Any]) -> None:
        if kind.section not in within:
            return
        named = {entry.get(kind.key) for entry in within[kind.section]}
        for row in rows.exclude(**{f"{kind.key}__in": named}).order_by("pk"):
            name, before = str(getattr(row, kind.key)), _shown(kind, row)
            try:
                with transaction.atomic():
                    remove_settings(thing=row, by=self.by, reason=self.reason)
            except NotAllowed:
                raise
            except MusterError as error:
                self.wrong(within.line_of(kind.section), f"{name} cannot be deleted: {error}")
            except ProtectedError:
                self.wrong(within.line_of(kind.section), f"{name} cannot be deleted: other rows refer to it.")
            else:
                self.changes[kind.section, name] = Change(kind.section, name, "delete", before)

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


def _same(there: Any, wanted: Any, *, in_order: bool) -> bool:
    """Whether a value is the one that the row has; names of other rows have no order."""
    if not in_order and isinstance(wanted, list) and all(isinstance(one, str) for one in wanted):
        wanted = sorted(wanted)
    return bool(there == wanted) and isinstance(there, bool) == isinstance(wanted, bool)


def _shown(kind: Kind, row: models.Model) -> dict[str, Any]:
    fresh = kind.model._default_manager.get(pk=row.pk)
    return {name: plain(fresh, name) for name in kind.fields}


def export_configuration(*, by: User) -> dict[str, Any]:
    """The document of this site, which another portal can apply; for operators and auditors."""
    if not permissions.may(by, "audit"):
        permissions.require(by, "operate")
    document: dict[str, Any] = {"version": VERSION}
    for kind in SITE:
        rows = kind.model._default_manager.order_by(kind.key)
        document[kind.section] = [_entry(kind, row) for row in rows]
    return document


def _entry(kind: Kind, row: models.Model) -> dict[str, Any]:
    entry = {name: plain(row, name) for name in kind.fields}
    if isinstance(row, Cluster):
        for inner in OF_CLUSTER:
            rows = inner.model._default_manager.filter(cluster=row).order_by(inner.key)
            entry[inner.section] = [_entry(inner, one) for one in rows]
    return entry
