"""Which quota lines a job counts on, and which line stands above which."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Generic, Protocol, TypeVar


class OwnedLine(Protocol):
    """A line with its subject, and what it limits."""

    @property
    def id(self) -> int: ...

    @property
    def organization_id(self) -> int | None: ...

    @property
    def project_id(self) -> int | None: ...

    @property
    def user_id(self) -> int | None: ...

    @property
    def resource(self) -> str: ...

    @property
    def gpu_model(self) -> str: ...

    @property
    def job_type(self) -> str: ...


L = TypeVar("L", bound=OwnedLine)


class LinePaths(Generic[L]):
    """Lines of some projects, people, and of the organizations above them, with what stands above what."""

    def __init__(
        self,
        rows: Iterable[L],
        *,
        above: Mapping[int, int | None],
        organization_of: Mapping[int, int | None],
    ) -> None:
        """`above` is the organization above each, `organization_of` that of each project."""
        self.rows = {row.id: row for row in rows}
        self._above = above
        self._organization = organization_of
        self._of_project: defaultdict[int, list[L]] = defaultdict(list)
        self._of_organization: defaultdict[int, list[L]] = defaultdict(list)
        self._of_person: defaultdict[int, list[L]] = defaultdict(list)
        for row in self.rows.values():
            if row.organization_id is not None:
                self._of_organization[row.organization_id].append(row)
            elif row.project_id is not None:
                self._of_project[row.project_id].append(row)
            elif row.user_id is not None:
                self._of_person[row.user_id].append(row)
        self._paths: dict[int, list[L]] = {}
        self.has_people = bool(self._of_person)
        self.has_models = any(row.gpu_model for row in self.rows.values())

    def of_project(self, project_id: int) -> list[L]:
        """Every line that some job of the project may count on: its people's, its own, those above."""
        if project_id not in self._paths:
            found = sorted(self._of_project[project_id], key=lambda row: (row.user_id is None, row.id))
            for organization_id in self.organizations_of(project_id):
                found.extend(self._of_organization[organization_id])
            self._paths[project_id] = found
        return self._paths[project_id]

    def organizations_of(self, project_id: int) -> Iterator[int]:
        """The project's organization and all above it."""
        return self._up(self._organization.get(project_id))

    def of_job(self, project_id: int, user_id: int, job_type: str) -> list[L]:
        """The lines that a job counts on, each before the one above it."""
        return [
            row
            for row in (*self.of_project(project_id), *self._of_person.get(user_id, ()))
            if row.user_id in (None, user_id) and row.job_type in ("", job_type)
        ]

    def of_person(self, user_id: int) -> list[L]:
        """The lines of one person, whatever the project."""
        return self._of_person.get(user_id, [])

    def parent_of(self, row: L) -> int:
        """The line above that limits the same thing; 0 = none."""
        if row.organization_id is not None:
            above = self._up(self._above.get(row.organization_id))
        elif row.project_id is not None:
            own = self._of_project[row.project_id] if row.user_id is not None else []
            for other in own:
                if other.user_id is None and limits_what(other) == limits_what(row):
                    return other.id
            above = self.organizations_of(row.project_id)
        else:
            return 0
        for organization_id in above:
            for other in self._of_organization[organization_id]:
                if limits_what(other) == limits_what(row):
                    return other.id
        return 0

    def parents(self) -> dict[int, int]:
        """The line above each; 0 = none. No line stands above itself."""
        return _without_circles({row.id: self.parent_of(row) for row in self.rows.values()})

    def _up(self, organization_id: int | None) -> Iterator[int]:
        met: set[int] = set()
        while organization_id is not None and organization_id not in met:
            met.add(organization_id)
            yield organization_id
            organization_id = self._above.get(organization_id)


def limits_what(row: OwnedLine) -> tuple[str, str, str]:
    """Lines below and above each other limit the same thing."""
    return row.resource, row.gpu_model, row.job_type


def _without_circles(parents: dict[int, int]) -> dict[int, int]:
    """Organizations can be put below each other by mistake: the lowest of such lines then has none above."""
    for line in sorted(parents):
        one, met = line, {0}
        while one not in met:
            met.add(one)
            one = parents.get(one, 0)
        if one:
            parents[one] = 0
    return parents
