"""People, projects, queues and quotas to try Muster with; run once, changes nothing that is there."""

from __future__ import annotations

from typing import Any, Final

from django.core.management.base import BaseCommand
from django.db import transaction

from accounts.models import Membership, Organization, Project, ProjectRole, SiteRole, User
from quotas.models import Quota, QuotaResource
from scheduler.models import Cluster, Queue
from scheduler.services.cluster.defaults import ensure_defaults

#: Name, site role, who they are in words.
PEOPLE: Final = (
    ("admin", SiteRole.ADMIN, "runs the site", "Ada", "Admin"),
    ("operator", SiteRole.OPERATOR, "keeps the machines", "Olu", "Operator"),
    ("auditor", SiteRole.AUDITOR, "reads the audit log", "Aya", "Auditor"),
    ("alice", SiteRole.NONE, "leads project vision", "Alice", "Arendt"),
    ("bob", SiteRole.NONE, "leads project genomics, member of vision", "Bob", "Bose"),
    ("carol", SiteRole.NONE, "member of genomics", "Carol", "Cho"),
)
#: Project, its organization, its members, and its hard limits: cores, GiB, GPUs.
PROJECTS: Final = (
    ("Vision", "computing", {"alice": ProjectRole.LEAD, "bob": ProjectRole.MEMBER}, (16, 128, 8)),
    ("Genomics", "biology", {"bob": ProjectRole.LEAD, "carol": ProjectRole.MEMBER}, (24, 192, 4)),
)


def demo_password(username: str) -> str:
    """The printed password of a demo account; it opens nothing but this machine's loopback address."""
    return f"{username}-demo"


class Command(BaseCommand):
    help = "Loads demo people, projects, queues and quotas."
    requires_system_checks: list[str] = []

    @transaction.atomic
    def handle(self, *args: Any, **options: Any) -> None:
        cluster = ensure_defaults()
        _queues(cluster)
        people = {person[0]: _person(*person) for person in PEOPLE}
        university, _ = Organization.objects.get_or_create(
            slug="example-university", defaults={"name": "Example University"}
        )
        for name, department, members, limits in PROJECTS:
            _project(
                university, name, department, {people[who]: role for who, role in members.items()}, limits
            )
        self.stdout.write(f"Demo data is there: {len(people)} people, {len(PROJECTS)} projects.")


def _person(username: str, role: SiteRole, what: str, first: str, last: str) -> User:
    person, created = User.objects.get_or_create(
        username=username,
        defaults={
            "first_name": first,
            "last_name": last,
            "email": f"{username}@example.org",
            "site_role": role,
            "is_staff": role in (SiteRole.ADMIN, SiteRole.OPERATOR),
            "is_superuser": role == SiteRole.ADMIN,
            "priority_ceiling": 100 if role == SiteRole.ADMIN else 75,
            "is_demo": True,
        },
    )
    if created:
        person.set_password(demo_password(username))
        person.save(update_fields=["password"])
    return person


def _project(
    parent: Organization,
    name: str,
    department: str,
    members: dict[User, ProjectRole],
    limits: tuple[int, int, int],
) -> None:
    organization, _ = Organization.objects.get_or_create(
        slug=department, defaults={"name": f"Department of {department.title()}", "parent": parent}
    )
    project, created = Project.objects.get_or_create(
        slug=name.lower(), defaults={"name": name, "organization": organization}
    )
    if not created:
        return
    for person, role in members.items():
        Membership.objects.create(user=person, project=project, role=role)
        if person.default_project is None:
            person.default_project = project
            person.save(update_fields=["default_project"])
    cores, gib, gpus = limits
    for resource, hard in (
        (QuotaResource.CPU_MILLIS, cores * 1000),
        (QuotaResource.MEMORY_MIB, gib * 1024),
        (QuotaResource.GPU_MILLIS, gpus * 1000),
    ):
        Quota.objects.create(
            project=project, resource=resource, nominal=hard // 2, soft=hard * 3 // 4, hard=hard
        )


#: Seconds.
DAY = 86_400


def _queues(cluster: Cluster) -> None:
    """Every queue has a time limit for jobs that name none, so that backfill knows when they end.

    Only the first time: what an operator changes afterwards stays.
    """
    if not Queue.objects.filter(slug="urgent").exists():
        Queue.objects.filter(cluster=cluster, default_wall_seconds=None).update(default_wall_seconds=DAY)
    for slug, priority, usual, limit in (("urgent", 80, 3600, 4 * 3600), ("low", 20, DAY, None)):
        Queue.objects.get_or_create(
            slug=slug,
            defaults={
                "cluster": cluster,
                "name": slug,
                "priority": priority,
                "default_wall_seconds": usual,
                "max_wall_seconds": limit,
            },
        )
