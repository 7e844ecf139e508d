"""What one person may use when submitting: projects, queues, priority names, quotas; read once a request."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from types import NoneType
from typing import Any, Final, NamedTuple, TypeVar

from accounts.models import Project, User
from accounts.selectors import submit_projects_statement, visible_projects
from infra.db.prepared import Rows, Statement, ask_together
from infra.db.row_loader import RowLoader
from scheduler.models import PriorityClass, Queue
from scheduler.services.submission.fields import Inputs, read_integer

T = TypeVar("T")

DEFAULT_PRIORITY: Final = 50
#: Sizes and kinds of requests of one person that are remembered.
MOST_FITTING: Final = 2000
MAX_PRIORITY: Final = 100

# Read with every submission: building these statements anew each time costs more than running them.
_QUEUES: Final = (
    "SELECT {columns}, (SELECT c.backend FROM scheduler_cluster c WHERE c.id = q.cluster_id),"
    " (SELECT CASE WHEN bool_and(p.max_wall_seconds IS NOT NULL) THEN max(p.max_wall_seconds) END"
    " FROM scheduler_queue_partitions part JOIN scheduler_partition p ON p.id = part.partition_id"
    " WHERE part.queue_id = q.id)"
    " FROM scheduler_queue q ORDER BY cluster_id, is_default DESC, priority DESC, name"
)
#: The bounds on the way from each project of each of these people to the root, and the people's own.
_BOUNDS: Final = """
WITH RECURSIVE up(user_id, project_id, organization_id) AS (
    SELECT m.user_id, p.id, p.organization_id FROM accounts_project p
        JOIN accounts_membership m ON m.project_id = p.id AND m.user_id = ANY(%s::bigint[])
    UNION SELECT up.user_id, up.project_id, o.parent_id FROM up
        JOIN accounts_organization o ON o.id = up.organization_id WHERE o.parent_id IS NOT NULL
), mine AS (SELECT DISTINCT user_id, project_id FROM up), line AS (
    SELECT mine.user_id AS of_user, mine.project_id AS of_project, q.* FROM mine JOIN quotas_quota q
        ON q.project_id = mine.project_id AND (q.user_id IS NULL OR q.user_id = mine.user_id)
    UNION ALL SELECT up.user_id, up.project_id, q.* FROM up
        JOIN quotas_quota q ON q.organization_id = up.organization_id
    UNION ALL SELECT mine.user_id, mine.project_id, q.* FROM mine JOIN quotas_quota q
        ON q.project_id IS NULL AND q.user_id = mine.user_id
)
SELECT line.of_user, line.of_project, line.resource, LEAST(line.hard, line.nominal + line.borrowing_limit,
        CASE WHEN organization.id IS NOT NULL AND organization.parent_id IS NULL
            AND line.borrowing_limit IS NULL THEN line.nominal END),
    CASE WHEN organization.id IS NOT NULL THEN 'organization ' || organization.slug
        WHEN line.project_id IS NULL THEN 'user ' || person.username
        ELSE coalesce(person.username || ' in ', '') || 'project ' || project.slug END,
    line.gpu_model, line.job_type, line.id
FROM line LEFT JOIN accounts_organization organization ON organization.id = line.organization_id
    LEFT JOIN accounts_project project ON project.id = line.project_id
    LEFT JOIN accounts_user person ON person.id = line.user_id
WHERE line.enforce AND (line.hard IS NOT NULL OR line.nominal IS NOT NULL)
ORDER BY line.of_user, line.of_project, line.organization_id NULLS FIRST, line.resource, line.id
"""
_PRIORITIES: Final = "SELECT {columns} FROM scheduler_priorityclass c ORDER BY value DESC"


class Bound(NamedTuple):
    """The most that one line lets a job of a project have."""

    project_id: int
    resource: str
    hard: int
    owner: str
    gpu_model: str
    job_type: str
    line_id: int


def _bounded(queue: Queue | None, most_of_partitions: int | None) -> Queue | None:
    """The queue with the longest time that a job of it may take: all its partitions may allow less than it."""
    if queue is not None and most_of_partitions is not None:
        queue.max_wall_seconds = min(queue.max_wall_seconds or most_of_partitions, most_of_partitions)
    return queue


class Catalogue:
    """Answers for many requests of one person with a fixed number of queries."""

    def __init__(self, user: User) -> None:
        self.user = user
        self._fitting: dict[Any, Any] = {}
        #: What requests had in common that were read before (`parse_request.JobKind`).
        self.kinds: dict[str, Any] = {}
        #: What the requests of a batch called a project or queue, and which one it was.
        self._found: dict[tuple[Any, ...], Any] = {}

    def project(self, inputs: Inputs) -> Project | None:
        """The project a request names, or the person's default or only one."""
        return self._once("project", inputs, self._find_project)

    def backend_of(self, queue: Queue) -> str:
        """The name of the backend that runs the queue's jobs."""
        return self._built.backends.get(queue.pk) or str(queue.cluster.backend)

    def queue(self, inputs: Inputs, project: Project | None) -> Queue | None:
        """The queue a request names, or the default one, if the project may use it."""
        within = project.pk if project is not None else None
        return self._once("queue", inputs, lambda given: self._find_queue(given, project), within)

    def _once(self, field: str, inputs: Inputs, find: Callable[[Inputs], T], *beside: Any) -> T:
        """Look for the first of those that call it the same; what was wrong is found, and said, each time."""
        value = inputs.given(field)
        key = (field, type(value), value, *beside)
        if not isinstance(value, (str, int, NoneType)):
            return find(inputs)
        if key not in self._found:
            problems = len(inputs.problems)
            found = find(inputs)
            if len(inputs.problems) > problems:
                return found
            self._found[key] = found
        return self._found[key]  # type: ignore[no-any-return]

    def _find_project(self, inputs: Inputs) -> Project | None:
        value = inputs.given("project")
        if value is None:
            return self._own_project(inputs)
        wanted = _name_or_id(inputs, "project", value)
        if wanted is None:
            return None
        found = next((project for project in self._projects if _is_called(project, wanted)), None)
        if found is None:
            self._refuse_project(inputs, wanted)
        return found

    def _own_project(self, inputs: Inputs) -> Project | None:
        default = next((p for p in self._projects if p.pk == self.user.default_project_id), None)
        if default is not None:
            return default
        if len(self._projects) == 1:
            return self._projects[0]
        if self._projects:
            names = ", ".join(project.slug for project in self._projects[:20])
            inputs.wrong("project", f"Must be one of yours: {names}.", code="required")
        else:
            inputs.wrong(
                "project",
                "You are not a member of an open project; ask a project lead to add you.",
                code="project-not-usable",
                denied=True,
            )
        return None

    def _refuse_project(self, inputs: Inputs, wanted: str) -> None:
        # One that exists and is not theirs reads like one that does not exist: names are not for strangers.
        seen = next((p for p in visible_projects(self.user) if _is_called(p, wanted)), None)
        if seen is not None and not seen.active:
            message = f"Project {seen.slug} is closed and accepts no new jobs."
        elif seen is not None:
            message = f"You can view project {seen.slug} but not submit to it; the project lead can make you a member."
        else:
            message = f"There is no project {wanted[:60]!r} that you may submit to{self._near(wanted)}."
        inputs.wrong("project", message, code="project-not-usable", denied=True)

    def _near(self, wanted: str) -> str:
        near = difflib.get_close_matches(wanted, [p.slug for p in self._projects], n=1, cutoff=0.5)
        return f"; did you mean {near[0]!r}?" if near else "; ask its lead to add you"

    def _find_queue(self, inputs: Inputs, project: Project | None) -> Queue | None:
        value = inputs.given("queue")
        if value is None:
            return self._default_queue(inputs, project)
        wanted = _name_or_id(inputs, "queue", value)
        if wanted is None:
            return None
        found = next((queue for queue in self._queues if _is_called(queue, wanted)), None)
        if found is None:
            near = difflib.get_close_matches(wanted, [q.slug for q in self._queues], n=1, cutoff=0.5)
            hint = (
                f"did you mean {near[0]!r}?"
                if near
                else f"there are {', '.join(q.slug for q in self._queues)}."
            )
            inputs.wrong("queue", f"There is no queue {wanted[:60]!r}; {hint}", code="not-found")
        elif project is not None and found.project_id not in (None, project.pk):
            inputs.wrong(
                "queue",
                f"Queue {found.slug} is for another project; use another queue, or submit to that project.",
                code="queue-not-usable",
                denied=True,
            )
        return found

    def _default_queue(self, inputs: Inputs, project: Project | None) -> Queue | None:
        if project is None:
            return next((queue for queue in self._queues if queue.is_default), None)
        usable = [queue for queue in self._queues if queue.project_id in (None, project.pk)]
        chosen = next((queue for queue in usable if queue.is_default), usable[0] if usable else None)
        if chosen is None:
            inputs.wrong(
                "queue",
                f"No queue accepts jobs of project {project.slug}; ask an operator.",
                code="not-found",
            )
        return chosen

    def bounded(self, queue: Queue) -> Queue:
        """A queue with the longest time that a job of it may take."""
        return next((found for found in self._queues if found.pk == queue.pk), queue)

    def priority(self, inputs: Inputs) -> int:
        """The priority that a request asks for by number or name, at most the person's ceiling."""
        value = inputs.given("priority")
        if value is None:
            return min(DEFAULT_PRIORITY, int(self.user.priority_ceiling))
        number = read_integer(value)
        if number is None:
            number = self.priority_named(value)
        if number is None:
            names = ", ".join(self.priority_names())
            inputs.wrong("priority", f"Must be 0 to {MAX_PRIORITY} or one of {names}.", code="unknown-choice")
            return DEFAULT_PRIORITY
        if not 0 <= number <= MAX_PRIORITY:
            inputs.wrong(
                "priority", f"Must be from 0 to {MAX_PRIORITY}; {number} is not.", code="out-of-range"
            )
            return DEFAULT_PRIORITY
        ceiling = self.user.priority_ceiling
        if number > ceiling:
            inputs.wrong(
                "priority",
                f"Requests priority {number}; your maximum is {ceiling}. "
                "Ask an operator to raise the ceiling.",
                code="above-priority-ceiling",
                denied=True,
            )
        return number

    def fits(self, what: Any, machines: Any) -> bool:
        """Whether requests of this size, or of this kind, were found to fit these machines."""
        return self._fitting.get(what) is machines

    def found_to_fit(self, machines: Any, *what: Any) -> None:
        """Remember it of these sizes and kinds; while a person's rights and limits are the same, it stays true."""
        if len(self._fitting) > MOST_FITTING:
            self._fitting.clear()
        self._fitting.update(dict.fromkeys(what, machines))

    def bounds(self, project: Project) -> list[Bound]:
        return [bound for bound in self._built.bounds if bound.project_id == project.pk]

    def priority_named(self, name: Any) -> int | None:
        """The number behind a priority's name or alias, in any case."""
        wanted = str(name).strip().upper()
        for row in self._priorities:
            if wanted == row.name.upper() or wanted in (str(alias).upper() for alias in row.aliases):
                return int(row.value)
        return None

    def priority_names(self) -> list[str]:
        return [row.name for row in self._priorities]

    @property
    def _projects(self) -> list[Project]:
        return self._built.projects

    @property
    def _queues(self) -> list[Queue]:
        return self._built.queues

    @property
    def _priorities(self) -> list[PriorityClass]:
        return self._built.priorities

    @cached_property
    def _built(self) -> _Built:
        return _build(_read_rows([self.user])[0])


def catalogue_of_change(by: User, *, owner: User) -> Catalogue:
    """What `by` may use in a change of a job: projects, queues and limits of its owner, the ceiling of `by`."""
    catalogue = Catalogue(by)
    catalogue._built = _build(_read_rows([owner])[0])
    return catalogue


class Catalogues:
    """Catalogues of many people, read in one round trip; what has not changed since is not built again.

    Every use reads all rows anew: nothing that was taken back, closed or lowered is allowed any longer.
    """

    #: Of the people who asked last.
    MOST_KEPT: Final = 500

    def __init__(self) -> None:
        #: By person and token.
        self._kept: dict[tuple[int, int | None], tuple[_RowsOfOne, Catalogue]] = {}

    def of(self, people: Sequence[User], answers: Sequence[Rows] | None = None) -> list[Catalogue]:
        """The catalogue of each of these people, as of now, or of what `catalogue_statements` found just now."""
        rows_of_each = _read_rows(people) if answers is None else _rows_of_each(people, answers)
        found = []
        for person, rows in zip(people, rows_of_each, strict=True):
            key = (person.pk, person.held_by.pk if person.held_by is not None else None)
            kept = self._kept.get(key)
            if kept is None or kept[1].user is not person or kept[0] != rows:
                catalogue = Catalogue(person)
                catalogue._built = _build(rows)
                if len(self._kept) >= self.MOST_KEPT:
                    self._kept.clear()
                kept = self._kept[key] = (rows, catalogue)
            found.append(kept[1])
        return found


class _RowsOfOne(NamedTuple):
    """What the database has about one person: values as they came."""

    projects: Sequence[Sequence[Any]]
    queues: Sequence[Sequence[Any]]
    bounds: Sequence[Sequence[Any]]
    priorities: Sequence[Sequence[Any]]


class _Built(NamedTuple):
    """Queues are those open to all and those of the person's projects: others are not for their eyes."""

    projects: list[Project]
    queues: list[Queue]
    bounds: list[Bound]
    priorities: list[PriorityClass]
    #: By queue, the name of the backend of its cluster.
    backends: dict[int, str]


def _read_rows(people: Sequence[User]) -> list[_RowsOfOne]:
    """In one round trip: projects to submit to, queues, hard quotas and names of priorities."""
    return _rows_of_each(people, ask_together(*catalogue_statements(people)))


def catalogue_statements(people: Sequence[User]) -> list[Statement]:
    """What reads the catalogues of these people; `Catalogues.of` takes the answers."""
    project_rows, queue_rows, priority_rows = _readers()
    return [
        submit_projects_statement(people, project_rows.columns),
        (_with_columns(_QUEUES, queue_rows.columns), []),
        (_BOUNDS, [[person.pk for person in people]]),
        (_with_columns(_PRIORITIES, priority_rows.columns), []),
    ]


def _rows_of_each(people: Sequence[User], answers: Sequence[Rows]) -> list[_RowsOfOne]:
    projects, queues, bounds, priorities = answers
    of_place: dict[int, list[Sequence[Any]]] = {}
    for place, *row in projects:
        of_place.setdefault(place, []).append(row)
    of_user: dict[int, list[Sequence[Any]]] = {}
    for user_id, *row in bounds:
        of_user.setdefault(user_id, []).append(row)
    return [
        _RowsOfOne(of_place.get(place, []), queues, of_user.get(person.pk, []), priorities)
        for place, person in enumerate(people, 1)
    ]


def _build(rows: _RowsOfOne) -> _Built:
    project_rows, queue_rows, priority_rows = _readers()
    projects = [project for row in rows.projects if (project := project_rows.read(row))]
    usable = {None, *(project.pk for project in projects)}
    queues = [queue for row in rows.queues if (queue := _bounded(queue_rows.read(row[:-2]), row[-1]))]
    return _Built(
        projects,
        [queue for queue in queues if queue.project_id in usable],
        [Bound(*row) for row in rows.bounds if row[2] is not None],
        [priority for row in rows.priorities if (priority := priority_rows.read(row))],
        {queue.pk: row[-2] for queue, row in zip(queues, rows.queues, strict=True)},
    )


@cache
def _with_columns(sql: str, columns: str) -> str:
    return sql.format(columns=columns)


@cache
def _readers() -> tuple[RowLoader[Project], RowLoader[Queue], RowLoader[PriorityClass]]:
    return RowLoader(Project, "p"), RowLoader(Queue, "q"), RowLoader(PriorityClass, "c")


def _name_or_id(inputs: Inputs, field: str, value: Any) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    text = inputs.text(field, most=120)
    if not text and isinstance(value, str):
        return None
    return text or None


def _is_called(thing: Project | Queue, wanted: str) -> bool:
    return wanted == thing.slug or wanted.casefold() == thing.name.casefold() or wanted == str(thing.pk)
