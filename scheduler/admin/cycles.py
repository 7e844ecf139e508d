"""Admin pages of planning: cycles one can look inside and replay, and the leases of planners."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import BooleanField, ExpressionWrapper, Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.urls import path, reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from unfold.decorators import display

from accounts.admin.base import table
from scheduler.admin.base import FactsAdmin, LongTable, milliseconds
from scheduler.core.placement.plugins import PluginError
from scheduler.core.plan import Plan
from scheduler.core.reason_codes import CATEGORY
from scheduler.core.reasons.messages import GATE_WORDS, sentence
from scheduler.core.snapshot import codec
from scheduler.core.snapshot.codec import CodecError
from scheduler.core.snapshot.snapshot import Snapshot
from scheduler.models import Cycle, Lease
from scheduler.services.planning.replay import replay
from scheduler.state.records import recordings
from scheduler.state.records.recordings import NotRecorded

#: A plan may start thousands; the page shows the first, and says how many there are.
STARTS_SHOWN: Final = 200
REASONS_SHOWN: Final = 50
JOBS_NAMED: Final = 8


@lru_cache(maxsize=8)
def _decoded(plan: bytes, snapshot: bytes) -> tuple[Plan, Snapshot]:
    """The recording of one page, decoded once for its fields."""
    return codec.decode_plan(plan), codec.decode_snapshot(snapshot)


def _opened(field: Callable[[Any, Plan, Snapshot], Any]) -> Callable[[Any, Cycle], Any]:
    """A field about a recording; says so when there is none any more."""

    def show(self: Any, cycle: Cycle) -> Any:
        try:
            recording = recordings.load(cycle.pk)
            plan, snapshot = _decoded(recording.plan, recording.snapshot)
        except NotRecorded:
            return "The recording was pruned by age; the counts remain."
        except CodecError as error:
            return f"The recording cannot be read: {error}"
        return field(self, plan, snapshot)

    return show


COUNTS = ("pending_count", "started_count", "refused_count")
TIMES = ("load", "plan_time", "apply")


@admin.register(Cycle)
class CycleAdmin(LongTable):
    list_display = ("id", "cluster", "started_at", "trigger", *COUNTS, *TIMES, "kept")
    list_select_related = ("cluster",)
    list_filter = ("cluster", "trigger", "started_at")
    search_fields = ("=plan_digest",)
    number_field = "id"
    ordering = ("-id",)
    fieldsets = (
        (None, {"fields": ("id", "cluster", "started_at", "trigger", "fencing_token")}),
        ("Counts and times", {"fields": (COUNTS, TIMES)}),
        ("Snapshot", {"fields": ("saw", "policy_words", "profiles_followed", "rules_in_force")}),
        ("Starts", {"fields": ("starts",)}),
        ("Pending jobs and reasons", {"fields": ("waits",)}),
        ("Refused on apply", {"fields": ("refusals",)}),
        ("Replay", {"fields": ("replay_hint", "snapshot_digest", "plan_digest")}),
    )  # fmt: skip
    readonly_fields = (
        "load",
        "plan_time",
        "apply",
        "saw",
        "policy_words",
        "profiles_followed",
        "rules_in_force",
        "starts",
        "waits",
        "refusals",
        "replay_hint",
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Cycle]:
        """The recordings, which may be megabytes each, are read only on a cycle's own page."""
        cycles = super().get_queryset(request)
        if request.resolver_match and request.resolver_match.url_name == "scheduler_cycle_changelist":
            cycles = cycles.defer("snapshot", "policy", "plan", "refused").annotate(
                has_recording=ExpressionWrapper(Q(snapshot__isnull=False), output_field=BooleanField())
            )
        return cycles

    def get_urls(self) -> list[Any]:
        own = path(
            "<path:object_id>/replay/",
            self.admin_site.admin_view(self.replay_view),
            name="scheduler_cycle_replay",
        )
        return [own, *super().get_urls()]

    def replay_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Plan it again and say whether the same plan comes out; writes nothing."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        cycle = get_object_or_404(
            Cycle.objects.only("pk"),
            pk=int(object_id) if object_id.isdecimal() and len(object_id) < 19 else 0,
        )
        if request.method == "POST":
            try:
                result = replay(cycle_id=cycle.pk)
            except (NotRecorded, CodecError, PluginError) as problem:
                messages.error(request, f"The cycle cannot be replayed: {problem}.")
            else:
                if result.identical:
                    messages.success(
                        request, f"Replayed: identical plan, byte for byte ({result.digest[:12]}…)."
                    )
                else:
                    messages.error(request, f"The plan differs. First difference: {result.difference}.")
        return HttpResponseRedirect(reverse("admin:scheduler_cycle_change", args=[cycle.pk]))

    @display(description="Load")
    def load(self, cycle: Cycle) -> str:
        return milliseconds(cycle.load_us)

    @display(description="Plan")
    def plan_time(self, cycle: Cycle) -> str:
        return milliseconds(cycle.plan_us)

    @display(description="Apply")
    def apply(self, cycle: Cycle) -> str:
        return milliseconds(cycle.apply_us)

    @display(description="Kept", boolean=True)
    def kept(self, cycle: Any) -> bool:
        return bool(cycle.has_recording)

    @display(description="Snapshot")
    def saw(self, cycle: Cycle) -> Any:
        return _SAW(self, cycle)

    @display(description="Policy")
    def policy_words(self, cycle: Cycle) -> str:
        if cycle.policy is None:
            return "–"
        try:
            policy = codec.decode_policy(bytes(cycle.policy))
        except CodecError as error:
            return f"The recording cannot be read: {error}"
        ties = ", ".join(policy.tie_breakers) or "none"
        strict = ", strict order" if policy.strict_order else ""
        return f"{policy.name}, placement {policy.placement}, tie-breakers {ties}{strict}"

    @display(description="Profiles")
    def profiles_followed(self, cycle: Cycle) -> str:
        return (
            "; ".join(
                f"{one['profile']} version {one['version']}"
                + (f", for queue {one['queue']}" if one["queue"] else "")
                for one in cycle.profiles
            )
            or "–"
        )  # the default policy, or a recording of an earlier release

    @display(description="Rules in force")
    def rules_in_force(self, cycle: Cycle) -> str:
        return (
            "; ".join(
                (f"{one['rule']}" if one["rule"] else "none")
                + f" of profile {one['profile']}"
                + (f", for queue {one['queue_id']}" if one["queue_id"] else "")
                + f", since {datetime.fromtimestamp(one['since_ms'] / 1000, tz=UTC):%Y-%m-%d %H:%M:%S} UTC"
                for one in cycle.rules
            )
            or "–"
        )  # no profile has rules

    @display(description="Starts")
    def starts(self, cycle: Cycle) -> Any:
        return _STARTS(self, cycle)

    @display(description="Pending jobs")
    def waits(self, cycle: Cycle) -> Any:
        return _WAITS(self, cycle)

    @display(description="Refused")
    def refusals(self, cycle: Cycle) -> SafeString:
        rows = [
            (_job_link(int(one["job"])) if str(one.get("job", "")).isdecimal() else one.get("job", ""),
             one.get("code", ""), one.get("message", ""))
            for one in cycle.refused
        ]  # fmt: skip
        return table(("Job", "Code", "Why"), rows, "Nothing was refused.")

    @display(description="Replay")
    def replay_hint(self, cycle: Cycle) -> SafeString:
        return format_html(
            '<button type="submit" form="replay-form" class="font-medium text-primary-600 underline">'
            "Replay and compare</button><p>or on the command line:"
            " <code>manage.py replay_cycle {} --show</code></p>",
            cycle.pk,
        )

    change_form_after_template = "admin/muster_replay.html"


def _saw(_: Any, plan: Plan, snapshot: Snapshot) -> str:
    return (
        f"{len(snapshot.nodes)} nodes, {len(snapshot.devices)} devices, {len(snapshot.running)} running and"
        f" {len(snapshot.pending)} pending jobs, {len(snapshot.queues)} queues"
    )


def _starts(_: Any, plan: Plan, snapshot: Snapshot) -> SafeString:
    names = dict(zip(snapshot.nodes.id.tolist(), snapshot.nodes.name, strict=True))
    rows = []
    for start in plan.starts[:STARTS_SHOWN]:
        places = "; ".join(
            f"rank {place.rank} on {names.get(place.node_id, place.node_id)}"
            + (f", devices {', '.join(map(str, place.device_ids))}" if place.device_ids else "")
            + (f", NUMA {place.numa}" if place.numa >= 0 else "")
            for place in start.placements[:16]
        )
        more = f" and {len(start.placements) - 16} more" if len(start.placements) > 16 else ""
        scores = ", ".join(f"{name} {value}" for name, value in start.scores)
        rows.append((_job_link(start.job_id), places + more, scores or "–"))
    shown = table(("Job", "Where", "Scores of the first node"), rows, "No job could start.")
    if len(plan.starts) > STARTS_SHOWN:
        return format_html("{}<p>The first {} of {}.</p>", shown, STARTS_SHOWN, len(plan.starts))
    return shown


def _waits(_: Any, plan: Plan, snapshot: Snapshot) -> SafeString:
    rows = []
    groups = sorted(plan.by_decision(), key=lambda group: (-len(group[1]), group[0].reason))
    for decision, jobs in groups[:REASONS_SHOWN]:
        if not len(jobs):
            continue
        gates = ", ".join(f"{gate.first} {GATE_WORDS.get(gate.gate, gate.gate)}" for gate in decision.gates)
        named = format_html_join(", ", "{}", ((_job_link(job),) for job in jobs[:JOBS_NAMED].tolist()))
        more = f" and {len(jobs) - JOBS_NAMED} more" if len(jobs) > JOBS_NAMED else ""
        rows.append(
            (
                len(jobs),
                f"{decision.reason.value} ({CATEGORY[decision.reason].value})",
                sentence(decision.reason, decision.facts),
                f"Of {decision.nodes} nodes {gates}" if gates else "–",
                format_html("{}{}", named, more),
            )
        )
    shown = table(("Jobs", "Reason", "Reason", "Excluded nodes", "Which"), rows, "No pending jobs.")
    if len(groups) > REASONS_SHOWN:
        return format_html("{}<p>The {} most frequent of {} answers.</p>", shown, REASONS_SHOWN, len(groups))
    return shown


def _job_link(number: int) -> SafeString:
    return format_html(
        '<a class="text-primary-600 underline" href="{}">{}</a>',
        reverse("admin:scheduler_job_change", args=[number]),
        number,
    )


_SAW, _STARTS, _WAITS = _opened(_saw), _opened(_starts), _opened(_waits)


@admin.register(Lease)
class LeaseAdmin(FactsAdmin):
    list_display = ("scope", "holder", "token", "expires_at")
    search_fields = ("scope", "holder")
