"""Starts at a provider that decides about them: those that it refused, and what it counts for each attempt."""

from __future__ import annotations

import pgtrigger
from django.db import models
from django.db.models import Q

from quotas.models.quota import provider_choices


class RefusedStart(models.Model):
    """A waiting job that its provider has refused: until then it is not planned, and shows the provider's words.

    One row for each job, replaced by the next answer. Jobs are named by number, as in the ledger.
    """

    job_number = models.PositiveBigIntegerField(primary_key=True)
    project = models.ForeignKey("accounts.Project", on_delete=models.CASCADE, related_name="refused_starts")
    provider = models.CharField(max_length=16, choices=provider_choices)
    #: Of the job when it was refused: one that was changed since is asked about anew.
    generation = models.PositiveIntegerField()
    text = models.CharField(max_length=300)
    #: False: the provider says that this request will never be allowed.
    possible = models.BooleanField(default=True)
    #: How often in a row; each time the job waits longer.
    times = models.PositiveIntegerField(default=1)
    refused_at = models.DateTimeField()
    until = models.DateTimeField()

    class Meta:
        ordering = ["-refused_at"]
        constraints = [
            models.CheckConstraint(
                name="refused_start_ends_later", condition=Q(until__gt=models.F("refused_at"))
            ),
        ]
        indexes = [models.Index(name="refused_start_until", fields=["until"])]

    def __str__(self) -> str:
        return f"job {self.job_number}, refused by {self.get_provider_display()}"


class AllocationState(models.TextChoices):
    """What a provider knows of an attempt."""

    ASKED = "asked", "to be allocated"
    HELD = "held", "allocated"
    REFUSED = "refused", "refused"
    RELEASED = "released", "released"


#: Every way that an allocation goes; the database refuses others.
MOVES = [("asked", "held"), ("asked", "refused"), ("asked", "released"), ("held", "released")]


class ProviderAllocation(models.Model):
    """What a provider counts for one attempt: written with the start, and sent to the provider after it.

    The attempt is the key of the calls, so that they may be repeated. The attempt is named by number: the row
    outlives it until the provider has released.
    """

    attempt_id = models.PositiveBigIntegerField(primary_key=True)
    job_number = models.PositiveBigIntegerField()
    project = models.ForeignKey("accounts.Project", on_delete=models.CASCADE, related_name="+")
    provider = models.CharField(max_length=16, choices=provider_choices)
    state = models.CharField(max_length=8, choices=AllocationState, default=AllocationState.ASKED)
    #: The arguments of the calls, as `quotas.services.deciding.allocations` reads them.
    start = models.JSONField()
    #: The words of a refusal, or of the last call that failed.
    text = models.CharField(max_length=300, blank=True)
    asked_at = models.DateTimeField()
    answered_at = models.DateTimeField(null=True, blank=True)
    #: When the end of the attempt was noticed: from then on it is released.
    ended_at = models.DateTimeField(null=True, blank=True)
    released_at = models.DateTimeField(null=True, blank=True)
    #: Calls that were begun in this state, and when the next one is due; null: no call is due.
    tries = models.PositiveIntegerField(default=0)
    next_try_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-asked_at"]
        constraints = [
            models.CheckConstraint(
                name="provider_allocation_known", condition=Q(state__in=AllocationState.values)
            ),
            models.CheckConstraint(
                name="provider_allocation_answered",
                condition=Q(state="asked", answered_at__isnull=True)
                | Q(state__in=["held", "refused"], answered_at__isnull=False)
                | Q(state="released"),
            ),
            models.CheckConstraint(
                name="provider_allocation_released",
                condition=Q(state="released", released_at__isnull=False, ended_at__isnull=False)
                | (~Q(state="released") & Q(released_at__isnull=True)),
            ),
            models.CheckConstraint(
                name="provider_allocation_is_told",
                # What the provider does not know yet, and what it is to forget, is always due at some moment.
                condition=Q(next_try_at__isnull=False)
                | (~Q(state="asked") & ~Q(state="held", ended_at__isnull=False)),
            ),
        ]
        indexes = [
            models.Index(
                name="provider_allocation_due", fields=["next_try_at"], condition=Q(next_try_at__isnull=False)
            ),
            models.Index(
                name="provider_allocation_open",
                fields=["attempt_id"],
                condition=Q(state__in=["asked", "held", "refused"], ended_at__isnull=True),
            ),
        ]
        triggers = [pgtrigger.FSM(name="provider_allocation_moves", field="state", transitions=MOVES)]

    def __str__(self) -> str:
        return f"attempt {self.attempt_id} of job {self.job_number} at {self.get_provider_display()}: {self.state}"
