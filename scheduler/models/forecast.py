"""Predicted starts of pending jobs, the first prediction, and the real start."""

from __future__ import annotations

from django.conf import settings
from django.db import models


class StartForecast(models.Model):
    """The latest forecast of one waiting job. `first_*` is the first range, whose accuracy is measured."""

    job = models.OneToOneField(
        "scheduler.Job", primary_key=True, on_delete=models.CASCADE, related_name="forecast"
    )
    #: One, five and nine of ten times it starts by then; null = unknown.
    p10_at = models.DateTimeField(null=True)
    p50_at = models.DateTimeField(null=True)
    p90_at = models.DateTimeField(null=True)
    #: Why the latest start is not known, in a sentence.
    unknown = models.CharField(max_length=400, blank=True)
    #: Running jobs that end before it, if all run to their limits, and jobs that go first.
    ends_first = models.PositiveIntegerField(default=0)
    ahead_jobs = models.PositiveIntegerField(default=0)
    #: The moment of the snapshot it was made from.
    computed_at = models.DateTimeField()
    first_p10_at = models.DateTimeField(null=True)
    first_p90_at = models.DateTimeField(null=True)
    first_told_at = models.DateTimeField(null=True)
    #: The ends of the first range as the planner found them, before calibration; null = they were not calibrated.
    first_raw_p10_at = models.DateTimeField(null=True)
    first_raw_p90_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"start of job {self.job_id}"

    @property
    def is_range(self) -> bool:
        return self.p10_at is not None and self.p90_at is not None


class ForecastOutcome(models.Model):
    """A start that had a forecast: the first range, and the real start."""

    cluster = models.ForeignKey(
        "scheduler.Cluster", on_delete=models.CASCADE, related_name="+", db_index=False
    )
    job_number = models.PositiveBigIntegerField()
    told_at = models.DateTimeField()
    p10_at = models.DateTimeField()
    p90_at = models.DateTimeField()
    #: The ends before calibration, which later ranges are calibrated by; null = the range was not calibrated.
    raw_p10_at = models.DateTimeField(null=True)
    raw_p90_at = models.DateTimeField(null=True)
    started_at = models.DateTimeField()
    #: Seconds before the range (negative) or after it (positive), by the minutes that were shown; 0 = inside.
    missed_seconds = models.BigIntegerField()

    class Meta:
        indexes = [models.Index(fields=["cluster", "-started_at"], name="outcome_by_start")]

    def __str__(self) -> str:
        return f"start of job {self.job_number}"

    @property
    def missed_by_seconds(self) -> int:
        return abs(self.missed_seconds)


class ForecastRun(models.Model):
    """The last time a cluster's starts were forecast, so that it is not done too often."""

    cluster = models.OneToOneField(
        "scheduler.Cluster", primary_key=True, on_delete=models.CASCADE, related_name="+"
    )
    ended_at = models.DateTimeField()
    took_ms = models.PositiveIntegerField()
    jobs = models.PositiveIntegerField()

    def __str__(self) -> str:
        return f"forecast of cluster {self.cluster_id}"


class PredictionAccuracy(models.Model):
    """How good the predictions of a cluster were over the last days: one row, which pages and the API read."""

    cluster = models.OneToOneField(
        "scheduler.Cluster", primary_key=True, on_delete=models.CASCADE, related_name="+"
    )
    updated_at = models.DateTimeField()
    #: Starts of jobs that had a range, those inside the first one, and the median of the widths of these ranges and
    #: of the waits from the forecast on; null = no start has been judged.
    starts = models.PositiveIntegerField()
    inside = models.PositiveIntegerField()
    width_seconds = models.PositiveBigIntegerField(null=True)
    waited_seconds = models.PositiveBigIntegerField(null=True)
    #: Ended runs of jobs without a time limit that had a prediction, those that ran longer, and the median of
    #: predicted by real run times in thousandths; null = there are none.
    runs = models.PositiveIntegerField()
    longer = models.PositiveIntegerField()
    ratio_millis = models.PositiveBigIntegerField(null=True)

    def __str__(self) -> str:
        return f"accuracy of cluster {self.cluster_id}"


class RuntimePrediction(models.Model):
    """How long the jobs of one name of one person run, from their last runs: what is expected of the next one.

    It plans jobs without a time limit, and stops none. Attempts keep what was predicted as they started.
    """

    cluster = models.ForeignKey(
        "scheduler.Cluster", on_delete=models.CASCADE, related_name="+", db_index=False
    )
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+", db_index=False
    )
    name = models.CharField(max_length=200)
    #: Earlier runs that it is made from, the last ones.
    runs = models.PositiveSmallIntegerField()
    #: The median of these runs, and what plans count with: `scheduler.core.forecast.runtimes.Prediction`.
    usual_seconds = models.PositiveBigIntegerField()
    planned_seconds = models.PositiveBigIntegerField()
    #: Rises each time the numbers change.
    version = models.PositiveIntegerField(default=1)
    updated_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(name="prediction_once", fields=["user", "name", "cluster"]),
            models.CheckConstraint(
                name="prediction_positive", condition=models.Q(planned_seconds__gt=0, usual_seconds__gt=0)
            ),
        ]

    def __str__(self) -> str:
        return f"run time of {self.name} of user {self.user_id}"
