"""Admin pages of machines: clusters, partitions, nodes, devices, reservations, join tokens."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import Count, QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.safestring import SafeString
from unfold.decorators import display
from unfold.widgets import UnfoldAdminIntegerFieldWidget

from accounts import permissions
from accounts.admin.base import table
from accounts.models import User
from infra.errors import InvalidInput
from quotas.core.resources import show_cpus, show_mib
from scheduler.admin.base import FactsAdmin, FactsInline, LongTable, SettingsAdmin, SettingsForm, Verb
from scheduler.backends.registry import check_settings, installed
from scheduler.models import (
    Allocation,
    Cluster,
    Device,
    JoinToken,
    Node,
    NodeHeartbeat,
    Partition,
    PolicyFault,
    Reservation,
    UnknownTask,
)
from scheduler.models.cluster import BackendKind
from scheduler.services.cluster.nodes import cordon_node, drain_node, issue_join_token, uncordon_node
from scheduler.services.cluster.settings import (
    pause_cluster,
    remove_settings,
    resume_cluster,
    revoke_join_token,
)
from scheduler.services.reservations.reserve import cancel_reservation, reserve


class ClusterForm(SettingsForm):
    """Offers the backends that are installed."""

    class Meta:
        model = Cluster
        fields = (
            "slug",
            "name",
            "backend",
            "backend_settings",
            "profile",
            "cpu_overcommit_percent",
            "memory_overcommit_percent",
        )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        there = installed()
        field = self.fields["backend"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = [(name, label) for name, label in BackendKind.choices if name in there]
        field.error_messages["invalid_choice"] = (
            f"The backend %(value)s is not installed; there {'is' if len(there) == 1 else 'are'} {', '.join(there)}."
        )

    def clean(self) -> dict[str, Any]:
        """The settings are what the backend needs; a backend that nodes or jobs depend on stays."""
        cleaned = super().clean() or {}
        data = cleaned.get("backend_settings")
        if "backend" in cleaned and "backend_settings" in cleaned:
            cleaned["backend_settings"] = data or {}
            try:
                check_settings(cleaned["backend"], cleaned["backend_settings"])
            except InvalidInput as error:
                wrong = "; ".join(f"{one.field} {one.message}" for one in error.problems)
                self.add_error(
                    "backend_settings", " ".join(filter(None, (error.message, wrong, error.way_out)))
                )
        if self.instance.pk and "backend" in self.changed_data and self.instance.nodes.exists():
            self.add_error(
                "backend",
                f"Cluster {self.instance.slug} has nodes of its backend; remove these first, or make another cluster.",
            )
        return cleaned


@admin.register(Cluster)
class ClusterAdmin(SettingsAdmin):
    form = ClusterForm
    list_display = ("name", "slug", "backend", "node_count", "state", "profile", "overcommit")
    ordering = ("id",)  # said here: a model's own order is lost where rows are counted along
    list_select_related = ("profile",)
    search_fields = ("name", "slug")
    list_filter = ("backend", "paused")
    readonly_fields = ("paused", "paused_reason", "paused_by", "paused_at", "generation", "created_at")
    prepopulated_fields = {"slug": ("name",)}
    fieldsets = (
        (None, {"fields": ("name", "slug", "backend", "backend_settings", "profile", "reason", "seen")}),
        ("Overcommit", {"fields": (("cpu_overcommit_percent", "memory_overcommit_percent"),)}),
        (
            "Facts",
            {"fields": ("paused", "paused_reason", "paused_by", "paused_at", "generation", "created_at")},
        ),
    )
    verbs = {
        "pause": Verb(
            "Pause", "No job starts in the cluster; running jobs continue, and jobs can be submitted.",
            pause_cluster, "cluster", "pause",
        ),
        "resume": Verb(
            "Resume", "Jobs of the cluster can start again.", resume_cluster, "cluster", "play_arrow",
            needs_reason=False,
        ),
    }  # fmt: skip

    def get_queryset(self, request: HttpRequest) -> QuerySet[Cluster]:
        return super().get_queryset(request).annotate(nodes_there=Count("nodes"))

    @display(description="Nodes", ordering="nodes_there")
    def node_count(self, cluster: Any) -> int:
        return int(cluster.nodes_there)

    @display(description="State", label={"scheduling": "success", "paused": "warning"})
    def state(self, cluster: Cluster) -> str:
        return "paused" if cluster.paused else "scheduling"

    @display(description="CPU, memory")
    def overcommit(self, cluster: Cluster) -> str:
        return f"{cluster.cpu_overcommit_percent} %, {cluster.memory_overcommit_percent} %"


@admin.register(PolicyFault)
class PolicyFaultAdmin(FactsAdmin):
    """Plugins and rules out of use, and profiles that cannot be followed; deleting a row puts them back into use."""

    list_display = ("subject", "cluster", "reason", "began_at")
    list_select_related = ("cluster",)
    list_filter = ("cluster",)
    search_fields = ("subject", "reason")
    fields = ("cluster", "subject", "reason", "began_at")

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return permissions.may(request.user, "operate")

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        remove_settings(thing=obj, by=request.user)  # type: ignore[arg-type]

    def log_deletions(self, request: HttpRequest, queryset: Any) -> None:
        """The audit trail has it."""


@admin.register(UnknownTask)
class UnknownTaskAdmin(FactsAdmin):
    """Tasks that nodes run and the database does not know; uncordoning the node ends them."""

    list_display = ("task", "epoch", "node", "job", "username", "found_at", "stop_asked_at")
    list_select_related = ("node",)
    list_filter = ("node",)
    search_fields = ("username", "job")
    fields = (
        "node",
        "task",
        "epoch",
        "job",
        "job_uuid",
        "username",
        "found_at",
        "stop_asked_at",
        "stopped_because",
    )


@admin.register(Partition)
class PartitionAdmin(SettingsAdmin):
    list_display = ("name", "cluster", "node_count", "max_wall_seconds")
    ordering = ("cluster", "name")
    list_select_related = ("cluster",)
    list_filter = ("cluster",)
    search_fields = ("name",)
    autocomplete_fields = ("cluster",)
    readonly_fields = ("created_at",)
    fields = (
        "cluster",
        "name",
        "max_wall_seconds",
        ("cpu_overcommit_percent", "memory_overcommit_percent"),
        "created_at",
        "reason",
        "seen",
    )
    removable = True

    def get_queryset(self, request: HttpRequest) -> QuerySet[Partition]:
        return super().get_queryset(request).annotate(nodes_there=Count("nodes"))

    @display(description="Nodes", ordering="nodes_there")
    def node_count(self, partition: Any) -> int:
        return int(partition.nodes_there)


class DeviceInline(FactsInline):
    model = Device
    fields = ("index", "kind", "model", "memory_mib", "numa_domain", "healthy", "fake", "gone", "used_millis")
    readonly_fields = fields


DRAINED = ("drain_reason", "drained_by", "drained_at", "drain_deadline_at")
HARDWARE = ("cpu", "memory", "storage", "gpus", "numa_domains", "domains", "labels", "extras")
AGENT = (
    "address", "agent_version", "agent_protocol", "agent_key_prefix", "boot_id", "registered_at", "last_contact",
    "silent_from", "clock_skew_ms", "generation", "created_at",
)  # fmt: skip
NODE_LABELS = {
    "up": "success", "draining": "warning", "cordoned": "warning", "unknown": "warning", "down": "danger",
}  # fmt: skip


class NodeForm(SettingsForm):
    class Meta:
        model = Node
        fields = (
            "partitions",
            "rack",
            "zone",
            "region",
            "taints",
            "cpu_overcommit_percent",
            "memory_overcommit_percent",
        )

    def clean_taints(self) -> list[dict[str, str]]:
        taints = self.cleaned_data["taints"] or []
        effects = ("NoSchedule", "PreferNoSchedule", "NoExecute")
        if not isinstance(taints, list) or not all(
            isinstance(taint, dict) and taint.get("key") and taint.get("effect") in effects
            for taint in taints
        ):
            raise forms.ValidationError(
                f'A list such as [{{"key": "dedicated", "value": "vision", "effect": "NoSchedule"}}];'
                f" effects are {', '.join(effects)}."
            )
        return taints


@admin.register(Node)
class NodeAdmin(SettingsAdmin):
    form = NodeForm
    list_display = ("name", "cluster", "state_words", "cpu", "memory", "gpus", "drain_reason", "last_contact")
    list_select_related = ("cluster", "heartbeat")
    list_filter = ("state", "cordoned", "draining", "cluster", "partitions")
    search_fields = ("name", "address", "rack")
    inlines = (DeviceInline,)
    autocomplete_fields = ("partitions",)
    fieldsets = (
        (None, {"fields": ("name", "cluster", "state_words", "trouble", *DRAINED)}),
        (
            "Settings",
            {
                "fields": (
                    "partitions",
                    ("rack", "zone", "region"),
                    "taints",
                    ("cpu_overcommit_percent", "memory_overcommit_percent"),
                    "reason",
                    "seen",
                )
            },
        ),
        ("Capacity", {"fields": HARDWARE}),
        ("Allocations", {"fields": ("held",)}),
        ("Agent", {"fields": AGENT}),
    )
    readonly_fields = ("name", "cluster", "state_words", "trouble", *DRAINED, *HARDWARE, "held", *AGENT)
    verbs = {
        "drain": Verb(
            "Drain", "The nodes accept no new jobs; running jobs end.", drain_node, "node", "logout"
        ),
        "cordon": Verb(
            "Cordon", "The nodes accept no new jobs; running jobs continue.", cordon_node, "node", "block"
        ),
        "uncordon": Verb(
            "Uncordon",
            "The nodes accept jobs again.",
            uncordon_node,
            "node",
            "check_circle",
            needs_reason=False,
        ),
    }

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False  # a node comes into being when its agent registers

    @display(description="State", ordering="state", label=NODE_LABELS)
    def state_words(self, node: Node) -> str:
        return (
            node.state
            if node.state != "up"
            else "draining"
            if node.draining
            else "cordoned"
            if node.cordoned
            else "up"
        )

    @display(description="CPUs in use", ordering="used_cpu_millis")
    def cpu(self, node: Node) -> str:
        return f"{show_cpus(node.used_cpu_millis)} of {show_cpus(node.cpu_millis_capacity)}"

    @display(description="Memory in use", ordering="used_memory_mib")
    def memory(self, node: Node) -> str:
        return f"{show_mib(node.used_memory_mib)} of {show_mib(node.memory_mib_capacity)}"

    @display(description="Storage in use")
    def storage(self, node: Node) -> str:
        return f"{show_mib(node.used_storage_mib)} of {show_mib(node.storage_mib)}"

    @display(description="GPUs in use", ordering="used_gpu_millis")
    def gpus(self, node: Node) -> str:
        return (
            f"{show_cpus(node.used_gpu_millis)} of {show_cpus(node.gpu_millis)}" if node.gpu_millis else "–"
        )

    @display(description="Last heartbeat", ordering="heartbeat__last_seen_at")
    def last_contact(self, node: Node) -> datetime | None:
        return node.last_seen_at

    @display(description="Silent from")
    def silent_from(self, node: Node) -> datetime | None:
        heartbeat = NodeHeartbeat.objects.filter(node=node).first()
        return heartbeat.lease_expires_at if heartbeat else None

    @display(description="Allocations")
    def held(self, node: Node) -> SafeString:
        rows = (
            Allocation.objects.held()
            .filter(node=node)
            .select_related("attempt__job__user")
            .order_by("held_at")
        )
        return table(
            ("Job", "Person", "Rank", "CPUs", "Memory", "GPUs", "Since"),
            [
                (row.attempt.job, row.attempt.job.user, row.rank, show_cpus(row.cpu_millis),
                 show_mib(row.memory_mib), len(row.device_ids), f"{row.held_at:%Y-%m-%d %H:%M:%S}")
                for row in rows[:100]
            ],
            "No allocations.",
        )  # fmt: skip


@admin.register(Device)
class DeviceAdmin(FactsAdmin):
    list_display = (
        "__str__",
        "model",
        "memory",
        "used",
        "healthy",
        "fake",
        "gone",
        "utilisation_percent",
        "temperature_c",
        "power_watts",
        "trouble",
    )
    list_select_related = ("node",)
    list_filter = ("model", "healthy", "fake", "gone", "node__cluster")
    search_fields = ("node__name", "uuid", "model")

    @display(description="Memory", ordering="memory_mib")
    def memory(self, device: Device) -> str:
        return show_mib(device.memory_mib)

    @display(description="Allocatable", ordering="used_millis")
    def used(self, device: Device) -> str:
        return f"{device.used_millis / 10:g} %"


class ReservationForm(forms.ModelForm):  # type: ignore[type-arg]
    class Meta:
        model = Reservation
        fields = ("cluster", "name", "nodes", "project", "starts_at", "ends_at", "reason")

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or {}
        starts_at, ends_at = cleaned.get("starts_at"), cleaned.get("ends_at")
        if starts_at and ends_at and ends_at <= max(starts_at, timezone.now()):
            self.add_error("ends_at", "Must be after the start, and in the future.")
        return cleaned


@admin.register(Reservation)
class ReservationAdmin(FactsAdmin):
    """Made and cancelled by the same services as through the API; what is booked is not edited."""

    form = ReservationForm
    list_display = ("name", "cluster", "project", "job", "starts_at", "ends_at", "state", "created_by")
    list_select_related = ("cluster", "project", "job", "created_by")
    list_filter = ("cluster", "cancelled_at", "starts_at")
    search_fields = ("name", "reason", "nodes__name")
    autocomplete_fields = ("cluster", "nodes")
    fields = ("cluster", "name", "nodes", "project", "starts_at", "ends_at", "reason")
    verbs = {
        "cancel": Verb(
            "Cancel", "The nodes accept other jobs again.", cancel_reservation, "reservation", "event_busy",
            needs_reason=False,
        )
    }  # fmt: skip

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return permissions.may(request.user, "operate")

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return (
            self.fields if obj is None else (*self.fields, "job", "created_by", "created_at", "cancelled_at")
        )

    def save_model(self, request: HttpRequest, obj: Reservation, form: Any, change: bool) -> None:
        data = form.cleaned_data
        made = reserve(
            payload={
                "cluster": data["cluster"].slug,
                "name": data["name"],
                "nodes": [node.name for node in data["nodes"]],
                "project": data["project"].slug if data["project"] else None,
                "starts_at": data["starts_at"].isoformat(),
                "ends_at": data["ends_at"].isoformat(),
                "reason": data["reason"],
            },
            by=request.user,  # type: ignore[arg-type]
        )
        obj.__dict__.update(made.__dict__)

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        """The service has written the nodes."""

    @display(description="State", label={"now": "warning", "coming": "info", "over": "", "cancelled": ""})
    def state(self, reservation: Reservation) -> str:
        now = timezone.now()
        if reservation.cancelled_at:
            return "cancelled"
        return "over" if reservation.ends_at <= now else "now" if reservation.starts_at <= now else "coming"


class JoinTokenForm(forms.ModelForm):  # type: ignore[type-arg]
    days = forms.IntegerField(
        min_value=1,
        max_value=365,
        initial=30,
        label="Valid for (days)",
        widget=UnfoldAdminIntegerFieldWidget(),
    )

    class Meta:
        model = JoinToken
        fields = ("cluster",)


@admin.register(JoinToken)
class JoinTokenAdmin(FactsAdmin):
    """Its plain text is shown once, after it was made."""

    form = JoinTokenForm
    list_display = ("__str__", "cluster", "created_by", "created_at", "expires_at", "state")
    list_select_related = ("cluster",)
    list_filter = ("cluster", "revoked_at")
    search_fields = ("prefix", "created_by")
    verbs = {
        "revoke": Verb(
            "Revoke", "No machine can register with these tokens; registered machines keep working.",
            revoke_join_token, "token", "key_off", needs_reason=False,
        )
    }  # fmt: skip

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return permissions.may(request.user, "operate")

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        facts = ("cluster", "prefix", "created_by", "created_at", "expires_at", "revoked_at")
        return ("cluster", "days") if obj is None else facts

    def save_model(self, request: HttpRequest, obj: JoinToken, form: Any, change: bool) -> None:
        user = request.user
        assert isinstance(user, User)
        made, plain = issue_join_token(cluster=obj.cluster, by=user, days=form.cleaned_data["days"])
        obj.__dict__.update(made.__dict__)
        messages.warning(
            request,
            f"Copy it now, it is not shown again: {plain}. On the machine:"
            f" python -m scheduler.agent --server {request.build_absolute_uri('/')} --join-token {plain}",
        )

    @display(description="State", label={"valid": "success", "expired": "", "revoked": "danger"})
    def state(self, token: JoinToken) -> str:
        if token.revoked_at:
            return "revoked"
        return "valid" if token.expires_at > timezone.now() else "expired"


@admin.register(Allocation)
class AllocationAdmin(LongTable):
    list_display = ("attempt", "rank", "node", "cpus", "memory", "gpus", "held_at", "released_at")
    list_select_related = ("attempt__job", "node")
    list_filter = (("released_at", admin.EmptyFieldListFilter), "node__cluster")
    search_fields = ("node__name",)
    number_field = "attempt__job"
    ordering = ("-id",)

    @display(description="CPUs")
    def cpus(self, allocation: Allocation) -> str:
        return show_cpus(allocation.cpu_millis)

    @display(description="Memory")
    def memory(self, allocation: Allocation) -> str:
        return show_mib(allocation.memory_mib)

    @display(description="GPUs")
    def gpus(self, allocation: Allocation) -> str:
        return show_cpus(allocation.gpu_millis)
