"""Admin pages of work: jobs, attempts, tasks, events; facts, and the few verbs an operator has."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.decorators import display

from quotas.core.resources import show_cpus, show_mib
from scheduler.admin.base import FactsAdmin, FactsInline, LongTable, Verb
from scheduler.core.lifecycle import PublicState
from scheduler.models import Attempt, Dataset, Job, JobDependency, JobEvent, Task
from scheduler.services.jobs.datasets import withdraw_dataset
from scheduler.services.jobs.verbs import cancel_job, hold_job, release_job, requeue_job

STATE_LABELS = {
    "queued": "warning", "scheduled": "info", "running": "info", "preempted": "warning",
    "completed": "success", "failed": "danger", "cancelled": "",
}  # fmt: skip


WHY = ("reason_code", "reason_category", "reason_text", "reason_at", "expected_start_at")
ASKED = (
    "tasks",
    "nodes",
    "tasks_per_node",
    "min_tasks",
    "pack",
    "pack_required",
    "on_task_failure",
    "assembly_timeout_seconds",
    "assemblies_failed",
    "asks",
    "storage",
    "gpu_model",
    "extras",
    "time_limit",
)
WHEN = (
    "created_at", "begin_at", "depends_until_at", "depends_on_timeout", "deadline_at",
    "deadline_action", "wait_limit_seconds", "check_at",
    "eligible_at", "scheduled_at", "started_at", "completed_at",
)  # fmt: skip
ENDED = ("exit_code", "exit_signal", "end_text", "epoch", "restart_policy", "max_restarts", "preemptible")
#: Of an attempt, where its row is one of several.
TRY = ("epoch", "backend", "state", "stop_reason", "scheduled_at", "started_at", "ended_at", "exit_code")
TASK = ("rank", "node", "state", "pid", "started_at", "ended_at", "exit_code", "exit_signal")
#: Big columns, which the list does not show.
LONG = ("script", "command", "env", "reason_details", "affinity", "tolerations")


class StateFilter(admin.SimpleListFilter):
    """The seven states that people see."""

    title = "state"
    parameter_name = "public_state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(state.value, state.value) for state in PublicState]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        return queryset.in_public_states([self.value()]) if self.value() in list(PublicState) else queryset


class DoorFilter(admin.SimpleListFilter):
    """Django's own would look through all jobs for what there is."""

    title = "submitted via"
    parameter_name = "submitted_via"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(door, door) for door in ("api", "web", "sbatch")]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        return queryset.filter(submitted_via=self.value()) if self.value() else queryset


class AttemptInline(FactsInline):
    model = Attempt
    fields = (*TRY, "end_text")
    readonly_fields = fields


class EventInline(FactsInline):
    model = JobEvent
    fields = ("at", "kind", "because", "actor")
    readonly_fields = fields

    def get_queryset(self, request: HttpRequest) -> QuerySet[JobEvent]:
        return super().get_queryset(request).select_related("actor")


class DependencyInline(FactsInline):
    model = JobDependency
    fk_name = "job"
    verbose_name_plural = "Dependencies"
    fields = ("kind", "on", "data", "group", "need", "satisfied")
    readonly_fields = fields

    def get_queryset(self, request: HttpRequest) -> QuerySet[JobDependency]:
        return super().get_queryset(request).select_related("on")


@admin.register(Dataset)
class DatasetAdmin(FactsAdmin):
    """Declared through the API by those who make them; an operator may withdraw one."""

    list_display = ("name", "project", "ready_at", "path", "declared_by")
    list_select_related = ("project", "declared_by")
    search_fields = ("name", "project__slug")
    verbs = {
        "withdraw": Verb(
            "Withdraw", "Jobs submitted from now on wait until the data are declared again.",
            withdraw_dataset, "dataset", "unpublished",
        )
    }  # fmt: skip


@admin.register(Job)
class JobAdmin(LongTable):
    list_display = (
        "number",
        "name",
        "shown_state",
        "reason_code",
        "user",
        "project",
        "queue",
        "asks",
        "created_at",
        "node_names",
    )
    list_display_links = ("number", "name")
    list_select_related = ("user", "project", "queue")
    list_filter = (StateFilter, "reason_category", "queue", DoorFilter, "preemptible")
    search_fields = ("name", "=user__username", "=project__slug")
    number_field = "number"
    ordering = ("-number",)
    inlines = (DependencyInline, AttemptInline, EventInline)
    fieldsets = (
        (None, {"fields": ("number", "uuid", "name", "shown_state", "state", "held_by", "page")}),
        ("Pending reason", {"fields": WHY}),
        ("Whose", {"fields": ("user", "project", "queue", "priority", "submitted_via", "job_type")}),
        ("Command", {"fields": ("command", "script", "working_dir", "env_names")}),
        ("Resources per task", {"fields": ASKED}),
        ("Where", {"fields": ("node_selector", "tolerations", "affinity", "labels")}),
        ("When", {"fields": WHEN}),
        ("Result", {"fields": ENDED}),
        ("Array", {"fields": ("array_number", "array_index", "array_max_running")}),
    )
    readonly_fields = ("shown_state", "asks", "storage", "env_names", "time_limit", "page")
    verbs = {
        "cancel": Verb(
            "Cancel", "Pending jobs leave the queue; running jobs are stopped. This cannot be undone.",
            cancel_job, "job", "cancel",
        ),
        "hold": Verb("Hold", "The jobs wait until released.", hold_job, "job", "pause"),
        "release": Verb(
            "Release", "The jobs can start again.", release_job, "job", "play_arrow", needs_reason=False
        ),
        "requeue": Verb(
            "Requeue", "Running jobs are stopped; these and ended jobs start again from the beginning.",
            requeue_job, "job", "replay"
        ),
    }  # fmt: skip

    def get_queryset(self, request: HttpRequest) -> QuerySet[Job]:
        """Big columns are read only on a job's own page."""
        jobs = super().get_queryset(request)
        if request.resolver_match and request.resolver_match.url_name == "scheduler_job_changelist":
            jobs = jobs.defer(*LONG).prefetch_related("attempts__allocations__node")
        return jobs

    @display(description="State", label=STATE_LABELS)
    def shown_state(self, job: Job) -> str:
        return job.public_state.value

    @display(description="Request")
    def asks(self, job: Job) -> str:
        words = [f"{show_cpus(job.cpu_millis)} CPU"]
        if job.memory_mib:
            words.append(show_mib(job.memory_mib))
        if job.gpus:
            share = f" ({job.gpu_millis / 10:g} %)" if job.gpu_millis else ""
            words.append(f"{job.gpus} {job.gpu_model or 'GPU'}{share}")
        return (f"{job.tasks} × " if job.tasks > 1 else "") + ", ".join(words)

    @display(description="Nodes")
    def node_names(self, job: Job) -> str:
        latest = [attempt for attempt in job.attempts.all() if attempt.epoch == job.epoch]
        names = list(
            dict.fromkeys(held.node.name for attempt in latest for held in attempt.allocations.all())
        )
        return ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "") or "–"

    @display(description="Storage")
    def storage(self, job: Job) -> str:
        return show_mib(job.storage_mib)

    @display(description="Environment")
    def env_names(self, job: Job) -> str:
        """Names only: values may be somebody's secrets."""
        return ", ".join(sorted(job.env)) or "–"

    @display(description="Time limit")
    def time_limit(self, job: Job) -> str:
        return "none" if job.time_limit_seconds is None else str(timedelta(seconds=job.time_limit_seconds))

    @display(description="Job page")
    def page(self, job: Job) -> SafeString:
        return format_html(
            '<a class="text-primary-600 underline" href="{}">Job {}</a>',
            reverse("job", args=[job.number]),
            job.number,
        )


class TaskInline(FactsInline):
    model = Task
    fields = (
        *TASK,
        "peak_memory_mib",
        "cpu_time_ms",
        "gpu_watched_ms",
        "gpu_busy_ms",
        "peak_gpu_memory_mib",
    )
    readonly_fields = fields

    def get_queryset(self, request: HttpRequest) -> QuerySet[Task]:
        return super().get_queryset(request).select_related("node")


@admin.register(Attempt)
class AttemptAdmin(LongTable):
    list_display = ("job", *TRY)
    list_select_related = ("job",)
    list_filter = ("state", "stop_reason")
    search_fields = ("job__name",)
    number_field = "job"
    ordering = ("-id",)
    inlines = (TaskInline,)


@admin.register(Task)
class TaskAdmin(LongTable):
    list_display = ("attempt", *TASK)
    list_select_related = ("attempt__job", "node")
    list_filter = ("state", "node__cluster")
    search_fields = ("node__name",)
    number_field = "attempt__job"
    ordering = ("-id",)


@admin.register(JobEvent)
class JobEventAdmin(LongTable):
    list_display = ("at", "job", "kind", "because", "actor")
    list_select_related = ("job", "actor")
    search_fields = ("=kind",)
    number_field = "job"
    #: As their key: those of the newest jobs first.
    ordering = ("-job", "-id")
