"""Shadow runs: a draft of a profile, planned on recorded cycles, and how its plans differ from those carried out."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q


class ShadowState(models.TextChoices):
    RUNNING = "running", "is planned beside the profile in force"
    ENDED = "ended", "its time is over"
    STOPPED = "stopped", "stopped by a person"
    FAILED = "failed", "could not be planned"
    PUBLISHED = "published", "published"


class ShadowRun(models.Model):
    """A draft of the profile of a cluster, or of a queue with its own, for some time."""

    cluster = models.ForeignKey(
        "scheduler.Cluster", on_delete=models.CASCADE, related_name="+", db_index=False
    )
    #: Whose own profile the draft is of; null = the cluster's.
    queue = models.ForeignKey(
        "scheduler.Queue", null=True, blank=True, on_delete=models.CASCADE, related_name="+", db_index=False
    )
    profile = models.ForeignKey(
        "scheduler.SchedulerProfile", on_delete=models.CASCADE, related_name="+", db_index=False
    )
    #: Of the profile when the draft was made; publishing it refuses another one.
    profile_version = models.PositiveIntegerField()
    #: The values of PROFILE_FIELDS.
    content = models.JSONField()
    state = models.CharField(max_length=9, choices=ShadowState, default=ShadowState.RUNNING)
    #: Why it ended.
    cause = models.CharField(max_length=500, blank=True)
    #: One of this number of recorded cycles is planned.
    every = models.PositiveIntegerField(default=1)
    until = models.DateTimeField()
    made_at = models.DateTimeField()
    made_by = models.CharField(max_length=150)
    reason = models.CharField(max_length=200)
    ended_at = models.DateTimeField(null=True, blank=True)
    #: The last recorded cycle that was looked at, and sums over those that were planned.
    last_cycle = models.BigIntegerField(default=0)
    compared = models.PositiveIntegerField(default=0)
    skipped = models.PositiveIntegerField(default=0)
    starts = models.BigIntegerField(default=0)
    shadow_starts = models.BigIntegerField(default=0)
    plan_us = models.BigIntegerField(default=0)
    shadow_us = models.BigIntegerField(default=0)
    #: Jobs whose start differs and that are not listed, because the list is full.
    jobs_left_out = models.PositiveIntegerField(default=0)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.CheckConstraint(name="shadow_state_known", condition=Q(state__in=ShadowState.values)),
            models.CheckConstraint(
                name="shadow_ended_has_time",
                condition=Q(state="running", ended_at=None)
                | (~Q(state="running") & Q(ended_at__isnull=False)),
            ),
            models.CheckConstraint(name="shadow_every_positive", condition=Q(every__gte=1)),
            models.CheckConstraint(name="shadow_until_after_start", condition=Q(until__gt=F("made_at"))),
            models.UniqueConstraint(
                name="shadow_one_running", fields=["cluster"], condition=Q(state="running")
            ),
        ]

    def __str__(self) -> str:
        return f"shadow run {self.pk}"


class ShadowCycle(models.Model):
    """One recorded cycle, planned by the draft: how many jobs started, and would have."""

    run = models.ForeignKey(ShadowRun, on_delete=models.CASCADE, related_name="cycles", db_index=False)
    #: Number of the recorded cycle, which may be gone.
    cycle = models.BigIntegerField()
    at = models.DateTimeField()
    starts = models.PositiveIntegerField()
    shadow_starts = models.PositiveIntegerField()
    #: Starts in one plan only, and starts of both on other nodes.
    only_real = models.PositiveIntegerField()
    only_shadow = models.PositiveIntegerField()
    elsewhere = models.PositiveIntegerField()
    #: Jobs left waiting, and the sum of their waits until then.
    waiting = models.PositiveIntegerField()
    shadow_waiting = models.PositiveIntegerField()
    waited_seconds = models.BigIntegerField()
    shadow_waited_seconds = models.BigIntegerField()
    #: Running jobs that were asked to end or to be suspended.
    stops = models.PositiveIntegerField()
    shadow_stops = models.PositiveIntegerField()
    plan_us = models.BigIntegerField()
    shadow_us = models.BigIntegerField()

    class Meta:
        ordering = ["-cycle"]
        constraints = [models.UniqueConstraint(name="shadow_cycle_once", fields=["run", "cycle"])]

    def __str__(self) -> str:
        return f"cycle {self.cycle} of {self.run}"


class ShadowJob(models.Model):
    """A job whose start differs: when it was planned to start first, by each of both."""

    run = models.ForeignKey(ShadowRun, on_delete=models.CASCADE, related_name="jobs", db_index=False)
    #: Number of the job, which may be gone.
    job = models.BigIntegerField()
    #: At the recorded cycle that started it; null = it waits still, as far as is known.
    started_at = models.DateTimeField(null=True, blank=True)
    #: At the first recorded cycle at which the draft would have started it; null = at none yet.
    shadow_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["job"]
        constraints = [models.UniqueConstraint(name="shadow_job_once", fields=["run", "job"])]

    def __str__(self) -> str:
        return f"job {self.job} of {self.run}"
