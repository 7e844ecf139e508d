"""Prices, budgets and limits, as the document has them: amounts in the units of the API."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from accounts.models import Organization, Project, User
from quotas.models import Budget, PriceRow, Quota, QuotaResource
from quotas.services.budgets import change_budget, make_budget, set_price
from quotas.services.project_quota import set_quota
from quotas.services.quota_lines import AMOUNTS, EDITABLE, Subject, remove_line, set_line
from scheduler.configuration.people_sections import owner_of, person_called
from scheduler.configuration.rows import Refused, Wrong
from scheduler.configuration.sections import (
    Reader,
    Section,
    Within,
    flag,
    moment,
    moment_or_none,
    said,
    text,
    text_or_none,
    whole,
    whole_or_none,
)


class Prices(Section):
    """A price from a moment on; what it was is never changed, a later one takes its place."""

    name = "prices"
    key = ("resource", "gpu_model", "valid_from")
    stage = 5
    needed = ("micros_per_hour", "valid_from")
    readers: ClassVar[Mapping[str, Reader]] = {
        "resource": text, "gpu_model": text, "micros_per_hour": whole, "valid_from": moment,
    }  # fmt: skip

    def found(self, section: str, name: str | None) -> Iterable[tuple[str, Any]]:
        return [("", row) for row in PriceRow.objects.order_by("resource", "gpu_model", "valid_from")]

    def values(self, row: PriceRow) -> dict[str, Any]:
        return {name: getattr(row, name) for name in self.readers}

    def make(self, given: dict[str, Any], scope: Within, *, by: User, reason: str) -> PriceRow:
        return set_price(**({"gpu_model": ""} | given), by=by, reason=reason)

    def change(self, row: PriceRow, changes: dict[str, Any], *, by: User, reason: str) -> None:
        raise Refused(
            [
                Wrong(
                    "micros_per_hour",
                    f"micros_per_hour: the price from {said(row.valid_from)} is {row.micros_per_hour} and does not "
                    "change; add a price that is valid from a later time.",
                )
            ]
        )


class Budgets(Section):
    """Of a project or an organization, named by what of them does not change."""

    name = "budgets"
    key = ("name", "resource", "starts_at")
    stage = 6
    needed = ("resource", "amount", "period", "starts_at")
    readers: ClassVar[Mapping[str, Reader]] = {
        "name": text, "resource": text, "amount": whole, "period": text, "on_spent": text, "starts_at": moment,
        "ends_at": moment_or_none,
    }  # fmt: skip

    def found(self, section: str, name: str | None) -> Iterable[tuple[str, Any]]:
        owner = "project" if section == "projects" else "organization"
        rows = Budget.objects.filter(**{f"{owner}__isnull": False})
        if name is not None:
            rows = rows.filter(**{f"{owner}__slug": name})
        rows = rows.select_related(owner).order_by("name", "resource", "starts_at", "pk")
        return [(getattr(row, owner).slug, row) for row in rows]

    def values(self, row: Budget) -> dict[str, Any]:
        return {name: getattr(row, name) for name in self.readers}

    def make(self, given: dict[str, Any], scope: Within, *, by: User, reason: str) -> Budget:
        subject = owner_of(scope)
        assert isinstance(subject, Organization | Project)
        return make_budget(subject=subject, by=by, reason=reason, **given)

    def change(self, row: Budget, changes: dict[str, Any], *, by: User, reason: str) -> None:
        if "period" in changes:
            raise Refused(
                [Wrong("period", "period: the period of a budget does not change; end it and make another.")]
            )
        change_budget(budget=row, changes=changes, by=by, reason=reason)


class Limits(Section):
    """Lines of quotas that bound something: of an organization, a project, a person in a project, or a person."""

    name = "limits"
    key = ("resource", "gpu_model", "job_type", "user")
    stage = 7
    can_remove = True
    readers: ClassVar[Mapping[str, Reader]] = {
        "resource": text, "gpu_model": text, "job_type": text, "user": text_or_none,
        **dict.fromkeys(AMOUNTS, whole_or_none), "enforce": flag, "converge_after_seconds": whole_or_none,
        "provider": text,
    }  # fmt: skip

    def found(self, section: str, name: str | None) -> Iterable[tuple[str, Any]]:
        rows = Quota.objects.select_related("organization", "project", "user").order_by(
            "resource", "gpu_model", "job_type", "user__username"
        )
        if section == "organizations":
            rows = rows.filter(organization__isnull=False)
            named = [(row.organization.slug, row) for row in rows if row.organization]
        elif section == "projects":
            rows = rows.filter(project__isnull=False)
            named = [(row.project.slug, row) for row in rows if row.project]
        else:
            rows = rows.filter(project=None, user__isnull=False)
            named = [(row.user.username, row) for row in rows if row.user]
        return [
            (owner, row)
            for owner, row in named
            if name in (None, owner) and any(getattr(row, amount) is not None for amount in AMOUNTS)
        ]

    def values(self, row: Quota) -> dict[str, Any]:
        found = {name: getattr(row, name) for name in self.readers}
        found["user"] = row.user.username if row.user is not None and row.project is not None else None
        return found

    def name_of(self, given: Mapping[str, Any]) -> tuple[str, ...]:
        return super().name_of({name: value for name, value in given.items() if value is not None})

    def make(self, given: dict[str, Any], scope: Within, *, by: User, reason: str) -> Quota:
        owner = owner_of(scope)
        named = given.get("user")
        if named and not isinstance(owner, Project):
            raise Refused(
                [Wrong("user", "user: only a limit inside a project is for one person of the project.")]
            )
        subject = Subject(
            organization=owner if isinstance(owner, Organization) else None,
            project=owner if isinstance(owner, Project) else None,
            user=owner if isinstance(owner, User) else person_called(named, "user") if named else None,
        )
        changes: dict[str, Any] = {name: given[name] for name in EDITABLE if name in given}
        return _set(
            subject,
            given["resource"],
            given.get("gpu_model", ""),
            given.get("job_type", ""),
            changes,
            by,
            reason,
        )

    def change(self, row: Quota, changes: dict[str, Any], *, by: User, reason: str) -> None:
        subject = Subject(row.organization, row.project, row.user)
        _set(subject, row.resource, row.gpu_model, row.job_type, changes, by, reason)

    def remove(self, row: Quota, *, by: User, reason: str) -> None:
        if row.is_plain and row.project is not None and row.resource in QuotaResource.counted():
            # Its line stays, because it counts what is in use, and bounds nothing.
            _set(Subject(project=row.project), row.resource, "", "", dict.fromkeys(AMOUNTS), by, reason)
        else:
            remove_line(line=row, by=by, reason=reason)


def _set(
    subject: Subject,
    resource: str,
    gpu_model: str,
    job_type: str,
    changes: dict[str, Any],
    by: User,
    reason: str,
) -> Quota:
    """Change a line, or make it; the plain lines of a project are counted together and set as its sheet is."""
    plain = subject.project is not None and subject.user is None and not gpu_model and not job_type
    if plain and resource in QuotaResource.counted():
        assert subject.project is not None
        set_quota(project=subject.project, changes={resource: changes}, by=by, reason=reason)
        return Quota.objects.plain().select_related("project").get(project=subject.project, resource=resource)
    return set_line(
        subject=subject,
        resource=resource,
        gpu_model=gpu_model,
        job_type=job_type,
        changes=changes,
        by=by,
        reason=reason,
    )
