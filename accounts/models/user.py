"""A person who signs in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pghistory
from django.contrib.auth.models import AbstractUser
from django.db import models

if TYPE_CHECKING:
    from accounts.models.token import ApiToken


class SiteRole(models.TextChoices):
    """What a person may do beyond their own projects."""

    NONE = "none", "none"
    AUDITOR = "auditor", "auditor"
    OPERATOR = "operator", "operator"
    ADMIN = "admin", "admin"


class Theme(models.TextChoices):
    SYSTEM = "system", "system"
    LIGHT = "light", "light"
    DARK = "dark", "dark"


@pghistory.track(exclude=["password", "last_login"])
class User(AbstractUser):
    """A person; `site_role` adds rights over the whole site, memberships add them per project.

    `is_staff` opens the Django admin and follows the site role: operators and admins edit there.
    """

    site_role = models.CharField(max_length=16, choices=SiteRole, default=SiteRole.NONE)
    default_project = models.ForeignKey(
        "accounts.Project", null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    #: The highest base priority this person may give a job.
    priority_ceiling = models.PositiveSmallIntegerField(default=75)
    #: This person's part of the turns where people take turns (fair queueing by person).
    share_weight = models.PositiveIntegerField(default=1, db_default=1)
    theme = models.CharField(max_length=8, choices=Theme, default=Theme.SYSTEM)
    time_zone = models.CharField(max_length=64, default="UTC")
    #: A demo account: its printed password works only on a loopback address, never in production.
    is_demo = models.BooleanField(default=False)
    #: Raised whenever rights change; sockets and caches compare it (ASVS 8.3.2).
    access_version = models.PositiveIntegerField(default=0)
    #: The token that signed this person in, where one did: its limits go wherever the person goes.
    held_by: ApiToken | None = None

    class Meta(AbstractUser.Meta):
        constraints = [
            models.CheckConstraint(
                name="user_share_range", condition=models.Q(share_weight__range=(1, 1_000_000))
            ),
            models.CheckConstraint(
                name="user_priority_ceiling_range", condition=models.Q(priority_ceiling__lte=100)
            ),
        ]

    @property
    def is_operator(self) -> bool:
        return self.is_active and (self.is_superuser or self.site_role in (SiteRole.OPERATOR, SiteRole.ADMIN))

    @property
    def is_auditor(self) -> bool:
        return self.is_active and (self.is_superuser or self.site_role in (SiteRole.AUDITOR, SiteRole.ADMIN))

    @property
    def is_site_admin(self) -> bool:
        return self.is_active and (self.is_superuser or self.site_role == SiteRole.ADMIN)
