"""A request for more quota, and the grant that it becomes: asked, decided, begun, ended."""

from __future__ import annotations

from typing import Any

import pghistory
from django.conf import settings
from django.db import models
from django.db.models import F, Q

from quotas.models.budget import BudgetResource
from quotas.models.quota import QuotaResource


class GrantState(models.TextChoices):
    ASKED = "asked", "awaiting decision"
    SECONDING = "seconding", "awaiting second approval"
    APPROVED = "approved", "approved, begins later"
    ACTIVE = "active", "active"
    DECLINED = "declined", "declined"
    WITHDRAWN = "withdrawn", "withdrawn"
    ENDED = "ended", "ended"


#: Nothing more becomes of these.
CLOSED = (GrantState.DECLINED, GrantState.WITHDRAWN, GrantState.ENDED)
OPEN = tuple(state for state in GrantState if state not in CLOSED)


def _person(**words: Any) -> models.ForeignKey[Any, Any]:
    return models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+", **words
    )


@pghistory.track()
class Grant(models.Model):
    """So much more of a resource for a project, from a day until a day: of a limit, or of a budget of the project.

    `amount` is what was asked for on top of the present bound, `granted` what was approved of it, both in the
    units of the line or the budget. While it is in force the line's hard bound, and its share where it has one, are
    higher by `raised_hard` and `raised_nominal`, or the budget's amount by `raised_hard`; they are lowered by as
    much when it ends. `evidence` is what was known
    of the project's use when it was asked.
    """

    project = models.ForeignKey("accounts.Project", on_delete=models.CASCADE, related_name="grants")
    #: Of a limit, or with `budget` what that counts.
    resource = models.CharField(max_length=20, choices=[*QuotaResource.choices, *BudgetResource.choices])
    budget = models.ForeignKey(
        "quotas.Budget", null=True, blank=True, on_delete=models.CASCADE, related_name="grants"
    )
    gpu_model = models.CharField(max_length=80, blank=True, default="")
    amount = models.BigIntegerField()
    reason = models.TextField()
    evidence = models.JSONField(default=dict)
    starts_at = models.DateTimeField(null=True, blank=True)
    ends_at = models.DateTimeField(null=True, blank=True)
    renews = models.ForeignKey(
        "self", null=True, blank=True, on_delete=models.SET_NULL, related_name="renewals"
    )
    asked_by = _person()
    asked_at = models.DateTimeField()

    state = models.CharField(max_length=10, choices=GrantState, default=GrantState.ASKED)
    granted = models.BigIntegerField(null=True, blank=True)
    decided_by = _person()
    decided_at = models.DateTimeField(null=True, blank=True)
    decision = models.TextField(blank=True)
    seconded_by = _person()
    seconded_at = models.DateTimeField(null=True, blank=True)
    begun_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    raised_hard = models.BigIntegerField(default=0)
    raised_nominal = models.BigIntegerField(default=0)
    generation = models.PositiveIntegerField(default=1)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.CheckConstraint(name="grant_state_known", condition=Q(state__in=GrantState.values)),
            models.CheckConstraint(
                name="grant_of_a_line_or_a_budget",
                condition=Q(budget__isnull=False, resource__in=BudgetResource.values)
                | Q(budget__isnull=True, resource__in=QuotaResource.values),
            ),
            models.CheckConstraint(name="grant_asks_for_some", condition=Q(amount__gt=0)),
            models.CheckConstraint(
                name="grant_no_more_than_asked",
                condition=Q(granted__isnull=True) | (Q(granted__gt=0) & Q(granted__lte=F("amount"))),
            ),
            models.CheckConstraint(
                name="grant_ends_after_start",
                condition=Q(ends_at__isnull=True) | Q(starts_at__isnull=True) | Q(ends_at__gt=F("starts_at")),
            ),
            models.CheckConstraint(
                name="grant_two_people_decide",
                condition=Q(seconded_by__isnull=True)
                | Q(decided_by__isnull=True)
                | ~Q(seconded_by=F("decided_by")),
            ),
            models.CheckConstraint(
                name="grant_in_force_was_approved",
                condition=~Q(state__in=[GrantState.APPROVED, GrantState.ACTIVE]) | Q(granted__isnull=False),
            ),
        ]
        indexes = [
            models.Index(
                name="grant_open", fields=["state", "starts_at"],
                condition=~Q(state__in=["declined", "withdrawn", "ended"]),
            ),
        ]  # fmt: skip

    def __str__(self) -> str:
        return f"request {self.pk}"

    @property
    def is_open(self) -> bool:
        return self.state not in CLOSED
