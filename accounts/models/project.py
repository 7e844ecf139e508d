"""Organizations, their projects, and who belongs to them."""

from __future__ import annotations

import pghistory
from django.conf import settings
from django.db import models
from django.db.models import F, Q

#: A weight of 0 would be a share of nothing: its owner could only starve.
SHARE_RANGE = (1, 1_000_000)


def _share_in_range() -> Q:
    limits = Q(share_weight__range=SHARE_RANGE)
    for name in ("share_soft_percent", "share_hard_percent"):
        limits &= Q(**{f"{name}__isnull": True}) | Q(**{f"{name}__range": (1, 100)})
    return limits


@pghistory.track()
class Organization(models.Model):
    """A node of the tree that projects hang from: a university, a department, a group."""

    name = models.CharField(max_length=120)
    slug = models.SlugField(max_length=80, unique=True)
    parent = models.ForeignKey(
        "self", null=True, blank=True, on_delete=models.PROTECT, related_name="children"
    )
    created_at = models.DateTimeField(auto_now_add=True)
    #: Its part of what its siblings have together, and limits of it in percent of the site.
    share_weight = models.PositiveIntegerField(default=1)
    share_soft_percent = models.PositiveSmallIntegerField(null=True, blank=True)
    share_hard_percent = models.PositiveSmallIntegerField(null=True, blank=True)

    class Meta:
        ordering = ["name", "id"]
        constraints = [
            models.CheckConstraint(name="organization_not_own_parent", condition=~Q(parent=F("id"))),
            models.CheckConstraint(name="organization_share_range", condition=_share_in_range()),
        ]

    def __str__(self) -> str:
        return self.name


@pghistory.track()
class Project(models.Model):
    """What jobs are charged to and quotas are set on."""

    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="projects")
    name = models.CharField(max_length=120)
    slug = models.SlugField(max_length=80, unique=True)
    description = models.TextField(blank=True)
    #: A closed project keeps its history and takes no new jobs.
    active = models.BooleanField(default=True)
    members = models.ManyToManyField(
        settings.AUTH_USER_MODEL, through="accounts.Membership", related_name="projects"
    )
    created_at = models.DateTimeField(auto_now_add=True)
    generation = models.PositiveIntegerField(default=1)
    share_weight = models.PositiveIntegerField(default=1)
    share_soft_percent = models.PositiveSmallIntegerField(null=True, blank=True)
    share_hard_percent = models.PositiveSmallIntegerField(null=True, blank=True)

    class Meta:
        ordering = ["name", "id"]
        constraints = [models.CheckConstraint(name="project_share_range", condition=_share_in_range())]
        indexes = [
            models.Index(
                fields=["organization"],
                name="project_share_limited",
                condition=Q(share_soft_percent__isnull=False) | Q(share_hard_percent__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return self.name


class ProjectRole(models.TextChoices):
    """Each role may do what the one before it may."""

    VIEWER = "viewer", "viewer"
    MEMBER = "member", "member"
    LEAD = "lead", "lead"


@pghistory.track()
class Membership(models.Model):
    """One person in one project: viewers look, members submit, leads manage."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="memberships")
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=8, choices=ProjectRole, default=ProjectRole.MEMBER)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    #: This person's part of what the project's members have together.
    share_weight = models.PositiveIntegerField(default=1)

    class Meta:
        ordering = ["project_id", "id"]
        # Asked in every cycle, and usually there are none.
        indexes = [
            models.Index(fields=["project"], name="membership_weighed", condition=~Q(share_weight=1)),
        ]
        constraints = [
            models.CheckConstraint(
                name="membership_share_range", condition=Q(share_weight__range=SHARE_RANGE)
            ),
            models.UniqueConstraint(name="membership_once", fields=["user", "project"]),
            models.CheckConstraint(name="membership_role_known", condition=Q(role__in=ProjectRole.values)),
        ]

    def __str__(self) -> str:
        return f"{self.user} is {self.role} of {self.project}"
