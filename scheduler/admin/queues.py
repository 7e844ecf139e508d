"""Admin pages of queues, priority classes and scheduler profiles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from django import forms
from django.contrib import admin
from django.db.models import Count, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.decorators import display
from unfold.widgets import UnfoldAdminTextareaWidget

from accounts.admin.base import table
from scheduler.admin.base import SettingsAdmin, SettingsForm, Verb
from scheduler.core.adaptive.reading import read_time_zone
from scheduler.core.adaptive.rules import MEASURES
from scheduler.core.lifecycle import ACTIVE, PENDING, JobState
from scheduler.core.placement.plugins import PluginError, resolve
from scheduler.core.policy import ISOLATION, OPTIONS, Policy, options_of
from scheduler.models import Job, PriorityClass, ProfileVersion, Queue, SchedulerProfile
from scheduler.services.cluster.named_rows import OPTIONS_OF_THE_CLUSTER, WAY_OUT, ignored_in_queue
from scheduler.services.cluster.queues import pause_queue, resume_queue
from scheduler.services.planning.cycles import installed_plugins
from scheduler.services.planning.profiles import class_begins, refuse_unknown_shares, ruled_policy
from scheduler.services.submission.job_spec import MAX_ASSEMBLY_SECONDS
from scheduler.state.load.cluster_rows import OF_PREEMPTION, TIE_BREAKERS, preemption_of

#: The newest versions on the page of a profile; the list of versions has all.
VERSIONS_SHOWN: Final = 20


class QueueForm(SettingsForm):
    class Meta:
        model = Queue
        fields = (
            "cluster", "name", "slug", "project", "partitions", "is_default", "priority", "profile",
            "max_concurrent_jobs", "max_pending_jobs", "default_wall_seconds", "max_wall_seconds",
            "default_wait_seconds", "default_assembly_seconds", "preference_wait_seconds",
            "results_days", "results_job_mib", "results_until_fetched", "isolation", "scratch_mib",
        )  # fmt: skip
        help_texts = {
            "default_wait_seconds": "Wait limit of jobs that name none: a job that has not started by then fails. "
            "Empty: unlimited. Jobs that are in the queue keep theirs.",
            "default_assembly_seconds": "Assembly timeout of jobs of several tasks that name none: how long nodes "
            f"stay reserved while the job gathers more, at most {MAX_ASSEMBLY_SECONDS}. Empty: off.",
            "preference_wait_seconds": "How long jobs that name nothing in `relax` wait for a place that they prefer "
            "(pack, preferred affinity, soft spread) before they start elsewhere. Empty: they do not wait for it.",
            "profile": "How its jobs take turns among each other and where they go; empty: as the cluster's profile. "
            "Only the cluster's profile decides backfill, preemption and the options "
            f"{', '.join(OPTIONS_OF_THE_CLUSTER)}.",
        }

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean()
        if (cleaned.get("default_assembly_seconds") or 0) > MAX_ASSEMBLY_SECONDS:
            self.add_error("default_assembly_seconds", f"Exceeds the maximum, {MAX_ASSEMBLY_SECONDS}.")
        profile, cluster = cleaned.get("profile"), cleaned.get("cluster")
        if (
            profile
            and cluster
            and profile.pk != cluster.profile_id
            and (ignored := ignored_in_queue(profile, cluster.profile))
        ):
            self.add_error("profile", f"{ignored[:1].upper()}{ignored[1:]} {WAY_OUT}")
        default, longest = cleaned.get("default_wall_seconds"), cleaned.get("max_wall_seconds")
        if default and longest and default > longest:
            self.add_error("default_wall_seconds", f"Exceeds the maximum, {longest}.")
        partitions = cleaned.get("partitions")
        foreign = [p.name for p in partitions or () if cluster and p.cluster_id != cluster.pk]
        if foreign:
            self.add_error("partitions", f"Not of this cluster: {', '.join(foreign)}.")
        return cleaned


def _jobs_in(states: frozenset[JobState]) -> Coalesce:
    """How many jobs of the queue are in these states; finished ones, which may be millions, are not read."""
    jobs = Job.objects.in_states(states).filter(queue=OuterRef("pk")).order_by().values("queue")
    return Coalesce(Subquery(jobs.annotate(jobs=Count("number")).values("jobs")), 0)


@admin.register(Queue)
class QueueAdmin(SettingsAdmin):
    form = QueueForm
    list_display = (
        "name",
        "cluster",
        "project",
        "state",
        "priority",
        "pending",
        "active",
        "limits",
        "is_default",
    )
    list_select_related = ("cluster", "project")
    list_filter = ("cluster", "paused", "is_default")
    search_fields = ("name", "slug")
    autocomplete_fields = ("cluster", "profile", "partitions")
    prepopulated_fields = {"slug": ("name",)}
    readonly_fields = ("paused", "paused_reason", "paused_by", "paused_at", "generation", "created_at")
    removable = True
    fieldsets = (
        (
            None,
            {"fields": ("cluster", "name", "slug", "project", "partitions", "is_default", "reason", "seen")},
        ),
        ("Order", {"fields": ("priority", "profile")}),
        (
            "Limits",
            {
                "fields": (
                    ("max_concurrent_jobs", "max_pending_jobs"),
                    ("default_wall_seconds", "max_wall_seconds"),
                    ("default_wait_seconds", "default_assembly_seconds"),
                    ("preference_wait_seconds",),
                    ("scratch_mib",),
                )
            },
        ),
        (
            "Isolation",
            {
                "fields": ("isolation",),
                "description": "Jobs of this queue run only on nodes that isolate at least this much. "
                "Its profile may require more by the option “isolation”.",
            },
        ),
        (
            "Results",
            {
                "fields": ("results_days", "results_job_mib", "results_until_fetched"),
                "description": "How long nodes keep the working folders of ended jobs. Empty: the site's setting.",
            },
        ),
        (
            "Facts",
            {"fields": ("paused", "paused_reason", "paused_by", "paused_at", "generation", "created_at")},
        ),
    )
    verbs = {
        "pause": Verb(
            "Pause", "No job of these queues starts; running jobs continue, and jobs can be submitted.",
            pause_queue, "queue", "pause",
        ),
        "resume": Verb(
            "Resume", "Jobs of these queues can start again.", resume_queue, "queue", "play_arrow", needs_reason=False
        ),
    }  # fmt: skip

    def get_queryset(self, request: HttpRequest) -> QuerySet[Queue]:
        return (
            super()
            .get_queryset(request)
            .annotate(pending_jobs=_jobs_in(PENDING), active_jobs=_jobs_in(ACTIVE))
        )

    @display(description="State", label={"open": "success", "paused": "warning"})
    def state(self, queue: Queue) -> str:
        return "paused" if queue.paused else "open"

    @display(description="Pending", ordering="pending_jobs")
    def pending(self, queue: Any) -> int:
        return int(queue.pending_jobs)

    @display(description="Active", ordering="active_jobs")
    def active(self, queue: Any) -> int:
        return int(queue.active_jobs)

    @display(description="Running-job limit")
    def limits(self, queue: Queue) -> str:
        return "–" if queue.max_concurrent_jobs is None else f"{queue.max_concurrent_jobs} jobs"


@admin.register(PriorityClass)
class PriorityClassAdmin(SettingsAdmin):
    list_display = ("name", "value", "aliases", "boost_per_hour", "description")
    search_fields = ("name", "description")
    autocomplete_fields = ("preempts",)
    fields = ("name", "value", "aliases", "preempts", "boost_per_hour", "description", "reason", "seen")
    site_verb = "administer"
    removable = True


class _Shape(NamedTuple):
    """What a field of JSON has to hold, and what an empty one means."""

    empty: Any
    fits: Callable[[Any], bool]
    message: str


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _whole_numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(type(one) is int for one in value.values())


def _objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, dict) for one in value)


def _object(value: Any) -> bool:
    return isinstance(value, dict)


_SHAPES: Final = {
    "tie_breakers": _Shape([], _texts, f"A list of names out of {', '.join(sorted(TIE_BREAKERS))}."),
    "score_weights": _Shape(
        {}, _whole_numbers, 'An object of whole numbers, such as {"placement_quality": 3}.'
    ),
    "plugins": _Shape([], _texts, "A list of plugin names."),
    "options": _Shape({}, _object, 'An object, such as {"backfill_promises": 16}.'),
    "rules": _Shape([], _objects, "A list of objects, each with a name, when it applies and what it sets."),
    "preemption": _Shape({}, _object, 'An object, such as {"grace_seconds": 120}.'),
}


def _policy(values: Mapping[str, Any]) -> Policy:
    """The policy that a planner would make of these values; raises ValueError for one that none can follow."""
    return Policy(
        name=values["policy"],
        tie_breakers=tuple(TIE_BREAKERS.get(name, name) for name in values["tie_breakers"]),
        placement=values["placement"],
        weights=tuple(sorted(values["score_weights"].items())),
        plugins=tuple(values["plugins"]),
        strict_order=bool(values.get("strict_order")),
        backfill=values["backfill"],
        **options_of(values["options"], class_begins()),
    )


RULES_HELP: Final = (
    "Rules that choose order, placement and weights; the first that applies is in force, else the profile's own "
    'settings. A list such as [{"name": "night", "when": {"times": ["22:00-06:00"]}, "policy": "sjf"}]. '
    f"When: times, weekdays, {', '.join(MEASURES)}, the last with at_least, at_most and leave (and gpus, for a large "
    "job). Sets: policy, tie_breakers, factors, placement, score_weights. In the profile of a queue, jobs of the queue "
    "are counted."
)


class ProfileForm(SettingsForm):
    """Refuses what a planner could not follow: a broken profile would stop every cycle of its cluster."""

    class Meta:
        model = SchedulerProfile
        fields = ("name", "policy", "tie_breakers", "strict_order", "placement", "score_weights", "plugins",
                  "backfill", "options", "preemption_enabled", "preemption", "rules", "rule_hold_seconds",
                  "rule_time_zone")  # fmt: skip
        help_texts = {
            "tie_breakers": f"Tie-breakers, a list out of {', '.join(sorted(TIE_BREAKERS))}.",
            "strict_order": "Later jobs wait until every earlier one has started.",
            "options": 'Further options by name, such as {"backfill_promises": 16}; out of '
            f"{', '.join((*OPTIONS, ISOLATION))}.",
            "score_weights": 'Weights of sub-scores, such as {"placement_quality": 3}; empty: those of the placement.',
            "plugins": "A list of the names of installed plugins, in order.",
            "rules": RULES_HELP,
            "rule_hold_seconds": "How long the choice of a rule is kept at least, so that the order does not flap.",
            "rule_time_zone": "By which clock rules read times and weekdays, such as Europe/Berlin.",
            "backfill": "How jobs may pass others that wait; the profile of the cluster decides, so choose none, or "
            "the cluster's, in the profile of a queue.",
            "preemption_enabled": "Whether jobs may be stopped for others; the profile of the cluster decides.",
            "preemption": 'Preemption options, such as {"mode": "suspend", "grace_seconds": 120}; out of '
            f"{', '.join(OF_PREEMPTION)}.",
        }
        widgets = {
            name: UnfoldAdminTextareaWidget(attrs={"rows": 3})
            for name in ("tie_breakers", "options", "score_weights", "plugins", "preemption", "rules")
        }

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean()
        try:
            if "rule_time_zone" in cleaned:
                read_time_zone(cleaned["rule_time_zone"])
        except ValueError as error:
            self.add_error("rule_time_zone", f"{str(error)[:1].upper()}{str(error)[1:]}.")
        given = {name: cleaned.get(name) or shape.empty for name, shape in _SHAPES.items()}
        for name, shape in _SHAPES.items():
            if not shape.fits(given[name]):
                self.add_error(name, shape.message)
        if self.errors:
            return cleaned
        self._refuse_what_no_planner_follows({**cleaned, **given})
        if self.errors:
            return cleaned
        self._refuse_what_queues_ignore({**cleaned, **given})
        return cleaned

    def _refuse_what_no_planner_follows(self, values: dict[str, Any]) -> None:
        """An error at the field that is wrong, or of the whole form where fields do not go together."""
        unknown = [repr(name) for name in values["tie_breakers"] if name not in TIE_BREAKERS]
        if unknown:
            self.add_error(
                "tie_breakers",
                f"There is no {', '.join(unknown)}; there are {', '.join(sorted(TIE_BREAKERS))}.",
            )
            return
        at: str | None = "preemption"
        try:
            preemption_of(True, values["preemption"])
            at = "options"
            options_of(values["options"], class_begins())
            at = None
            _policy({**values, "options": {}})
            at = "options"
            policy = _policy(values)
            refuse_unknown_shares(policy)
            at = "rules"
            policy = ruled_policy(
                policy, profile=values["name"], rules=values["rules"], time_zone=values["rule_time_zone"],
                hold_seconds=values["rule_hold_seconds"],
            )  # fmt: skip
            at = None
            for variant in policy.variants():
                resolve(variant, installed_plugins())
        except (ValueError, PluginError) as error:
            self.add_error(at, f"Not a valid policy: {error}.")

    def _refuse_what_queues_ignore(self, values: Mapping[str, Any]) -> None:
        """A queue's own profile says nothing that only the cluster's decides."""
        if self.instance.pk is None:
            return
        queues = Queue.objects.filter(profile=self.instance.pk).exclude(cluster__profile=self.instance.pk)
        asked = SchedulerProfile(
            **{
                name: values.get(name)
                for name in ("name", "backfill", "options", "preemption_enabled", "preemption")
            }
        )
        for queue in queues.select_related("cluster__profile").order_by("slug"):
            if ignored := ignored_in_queue(asked, queue.cluster.profile):
                raise forms.ValidationError(f"Queue {queue.slug}: {ignored} {WAY_OUT}")


@admin.register(SchedulerProfile)
class SchedulerProfileAdmin(SettingsAdmin):
    form = ProfileForm
    list_display = ("name", "policy", "backfill", "placement", "strict_order", "version", "updated_at")
    search_fields = ("name",)
    list_filter = ("policy", "placement")
    readonly_fields = ("version", "updated_at", "versions")
    fields = (
        "name", "policy", "tie_breakers", "strict_order", "placement", "backfill", "options", "score_weights",
        "plugins", "preemption_enabled", "preemption", "rules", "rule_hold_seconds", "rule_time_zone",
        "version", "updated_at", "versions", "reason", "seen",
    )  # fmt: skip
    site_verb = "administer"
    removable = True

    @display(description="Versions")
    def versions(self, profile: SchedulerProfile) -> SafeString:
        rows = ProfileVersion.objects.filter(profile_id=profile.pk).order_by("-number")[:VERSIONS_SHOWN]
        return table(
            ("Version", "Made at", "By", "Reason"),
            [
                (
                    format_html(
                        '<a class="text-primary-600 underline" href="{}">{}</a>',
                        reverse("admin:scheduler_profileversion_change", args=[row.pk]),
                        row.number,
                    ),
                    f"{row.made_at:%Y-%m-%d %H:%M:%S}",
                    row.made_by or "Muster",
                    row.reason or row.get_origin_display(),
                )
                for row in rows
            ],
            "Kept from the first change on.",
        )
