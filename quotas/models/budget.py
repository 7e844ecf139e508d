"""Budgets: how much may be used in a period, and the counters that hold jobs to it."""

from __future__ import annotations

import pghistory
import pgtrigger
from django.db import models
from django.db.models import F, Q

from quotas.core.periods import Period


class BudgetResource(models.TextChoices):
    """What is counted: what is held times the seconds it is held, or what that costs."""

    GPU = "gpu_milli_seconds", "GPU time (thousandths of a GPU, seconds)"
    CPU = "cpu_milli_seconds", "CPU time (thousandths of a core, seconds)"
    MONEY = "money_micros", "money (millionths)"


class OnSpent(models.TextChoices):
    """What becomes of new jobs once a budget is spent."""

    REFUSE = "refuse", "jobs wait for the next period"
    DEMOTE = "demote", "jobs get the lowest priority"
    WARN = "warn", "people are notified"


@pghistory.track()
class Budget(models.Model):
    """So much of a resource in every month, week, or one window, for a project or all below an organization.

    Days begin at midnight UTC, weeks on Monday. A job is counted on every budget of its project and of the
    organizations above it.
    """

    name = models.CharField(max_length=80)
    organization = models.ForeignKey(
        "accounts.Organization", null=True, blank=True, on_delete=models.CASCADE, related_name="budgets"
    )
    project = models.ForeignKey(
        "accounts.Project", null=True, blank=True, on_delete=models.CASCADE, related_name="budgets"
    )
    resource = models.CharField(max_length=20, choices=BudgetResource)
    amount = models.BigIntegerField()
    period = models.CharField(max_length=8, choices=[(p.value, p.value) for p in Period])
    on_spent = models.CharField(max_length=8, choices=OnSpent, default=OnSpent.REFUSE)
    #: Midnights: the first day, and the day after the last.
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    generation = models.PositiveIntegerField(default=1, editable=False)

    class Meta:
        ordering = ["id"]
        constraints = [
            models.CheckConstraint(
                name="budget_of_one",
                condition=Q(organization__isnull=True, project__isnull=False)
                | Q(organization__isnull=False, project__isnull=True),
            ),
            models.CheckConstraint(name="budget_not_negative", condition=Q(amount__gte=0)),
            models.CheckConstraint(
                name="budget_resource_known", condition=Q(resource__in=BudgetResource.values)
            ),
            models.CheckConstraint(
                name="budget_window_ends", condition=~Q(period=Period.WINDOW) | Q(ends_at__isnull=False)
            ),
            models.CheckConstraint(
                name="budget_ends_after_start",
                condition=Q(ends_at__isnull=True) | Q(ends_at__gt=F("starts_at")),
            ),
        ]

    def __str__(self) -> str:
        return self.name


class BudgetPeriod(models.Model):
    """One period of a budget with its counters: the sums of the ledger's entries, kept as they are written.

    The row is the gate: every start of a job raises `held` here in the same transaction, so that jobs that
    start at once wait for each other, and the database refuses what a spent budget refuses. What runs over
    is charged all the same: it was used.
    """

    budget = models.ForeignKey(Budget, on_delete=models.CASCADE, related_name="periods", db_index=False)
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    #: As the budget says, or was changed for this period; past periods keep theirs.
    amount = models.BigIntegerField()
    enforce = models.BooleanField(default=True)
    held = models.BigIntegerField(default=0)
    charged = models.BigIntegerField(default=0)
    checked_at = models.DateTimeField(null=True, editable=False)

    class Meta:
        ordering = ["budget_id", "starts_at"]
        indexes = [models.Index(fields=["ends_at"], name="budget_period_by_end")]
        constraints = [
            models.UniqueConstraint(name="budget_period_once", fields=["budget", "starts_at"]),
            models.CheckConstraint(name="budget_period_ends", condition=Q(ends_at__gt=F("starts_at"))),
            models.CheckConstraint(name="budget_period_held_not_negative", condition=Q(held__gte=0)),
        ]
        triggers = [
            pgtrigger.Trigger(
                name="budget_never_passed",
                when=pgtrigger.Before,
                operation=pgtrigger.UpdateOf("held"),
                condition=pgtrigger.Condition(
                    "NEW.enforce AND NEW.held > OLD.held AND NEW.held + NEW.charged > NEW.amount"
                ),
                func="RAISE check_violation USING MESSAGE = 'budget passed: ' || NEW.budget_id,"
                " CONSTRAINT = 'budget_never_passed';",
            ),
        ]

    def __str__(self) -> str:
        return f"budget {self.budget_id} from {self.starts_at:%Y-%m-%d}"

    @property
    def left(self) -> int:
        return max(self.amount - self.held - self.charged, 0)
