"""The shape of a quota in the API: amounts people say at the top, exact integers in `lines`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from accounts.api.serializers import StrictSerializer
from infra.api.fields import ChoiceField
from infra.errors import FieldProblem, InvalidInput
from quotas.core.resources import MAX_AMOUNT, BadAmount, bytes_to_mib, cores_to_millis, parse_mib
from quotas.models import ProviderStatus, QuotaResource
from quotas.providers.base import QuotaSheet
from quotas.providers.view import ProviderView

#: The short name in `cpu_quota`, `used_cpu`, ... and how many of the line's units make one of what is shown:
#: cores, GiB, GPUs.
SHOWN: Final[dict[str, tuple[QuotaResource, int]]] = {
    "cpu": (QuotaResource.CPU_MILLIS, 1000),
    "memory": (QuotaResource.MEMORY_MIB, 1024),
    "gpu": (QuotaResource.GPU_MILLIS, 1000),
    "storage": (QuotaResource.STORAGE_MIB, 1024),
}
GIB: Final = 2**30


class LineSerializer(serializers.Serializer[Any]):
    """One line in its own units: thousandths of cores and GPUs, MiB, jobs."""

    resource = serializers.CharField()
    nominal = serializers.IntegerField(allow_null=True)
    soft = serializers.IntegerField(allow_null=True)
    hard = serializers.IntegerField(allow_null=True)
    enforce = serializers.BooleanField()
    used = serializers.IntegerField()
    available = serializers.IntegerField(allow_null=True)
    usage_percent = serializers.FloatField(allow_null=True)
    over = serializers.BooleanField(help_text="Usage exceeds the limit, from before the limit was lowered.")
    generation = serializers.IntegerField()


class DifferenceSerializer(serializers.Serializer[Any]):
    key = serializers.CharField()
    here = serializers.CharField()
    there = serializers.CharField()


class ProviderStateSerializer(serializers.Serializer[ProviderView]):
    """A quota kept outside Muster, as of the last exchange with the provider."""

    status = serializers.ChoiceField(choices=ProviderStatus.choices)
    text = serializers.CharField(help_text="Last message of the provider while the limits are not in sync.")
    since = serializers.DateTimeField(help_text="Start of the present status.")
    synced_at = serializers.DateTimeField(allow_null=True)
    next_try_at = serializers.DateTimeField(allow_null=True)
    jobs_wait = serializers.BooleanField(
        help_text="True: no job of the project starts until the provider responds."
    )
    differences = DifferenceSerializer(
        many=True, help_text="Limits that differ between Muster and the provider."
    )
    used = serializers.DictField(
        child=serializers.CharField(), help_text="Usage at the provider, by the provider's names."
    )
    left_out = serializers.ListField(
        child=serializers.CharField(),
        help_text="Limits that the provider does not support; enforced by Muster only.",
    )
    facts = serializers.DictField(help_text="Other figures of the provider, such as Slurm's fair share.")


class QuotaSerializer(serializers.Serializer[QuotaSheet]):
    """The quota of a project: limits, usage and free amounts. Null: no limit."""

    project_id = serializers.IntegerField()
    project = serializers.SerializerMethodField()
    cpu_quota = serializers.FloatField(allow_null=True, help_text="Cores.")
    memory_quota = serializers.FloatField(allow_null=True, help_text="GiB.")
    gpu_quota = serializers.FloatField(allow_null=True, help_text="GPUs.")
    storage_quota = serializers.FloatField(allow_null=True, help_text="GiB.")
    enforce_quota = serializers.BooleanField(help_text="Limits block new jobs; false: limits only report.")
    used_cpu = serializers.FloatField()
    available_cpu = serializers.FloatField(allow_null=True)
    cpu_usage_percent = serializers.FloatField(allow_null=True)
    used_memory = serializers.FloatField()
    available_memory = serializers.FloatField(allow_null=True)
    memory_usage_percent = serializers.FloatField(allow_null=True)
    used_gpu = serializers.FloatField()
    available_gpu = serializers.FloatField(allow_null=True)
    gpu_usage_percent = serializers.FloatField(allow_null=True)
    used_storage = serializers.FloatField()
    available_storage = serializers.FloatField(allow_null=True)
    storage_usage_percent = serializers.FloatField(allow_null=True)
    provider = serializers.CharField()
    synced_at = serializers.DateTimeField(
        allow_null=True,
        help_text="Time of the last comparison with the allocations or with the provider.",
    )
    provider_state = ProviderStateSerializer(
        allow_null=True,
        help_text="State at an external provider; null: Muster manages the quota.",
    )
    generation = serializers.IntegerField(help_text="Incremented by each edit; also in the ETag.")
    lines = LineSerializer(many=True)

    @extend_schema_field(OpenApiTypes.STR)
    def get_project(self, sheet: QuotaSheet) -> str:
        return str(self.context["project"].slug)

    def to_representation(self, sheet: QuotaSheet) -> dict[str, Any]:
        body: dict[str, Any] = {"project_id": sheet.project_id, "project": self.get_project(sheet)}
        lines = {name: (sheet.line(resource), unit) for name, (resource, unit) in SHOWN.items()}
        for name, (line, unit) in lines.items():
            body[f"{name}_quota"] = _shown(line.hard, unit, whole=name == "gpu")
        body["enforce_quota"] = sheet.enforced
        for name, (line, unit) in lines.items():
            body[f"used_{name}"] = _shown(line.used, unit, whole=name == "gpu")
            body[f"available_{name}"] = _shown(line.available, unit, whole=name == "gpu")
            body[f"{name}_usage_percent"] = line.usage_percent
        outside: ProviderView | None = self.context.get("provider_state")
        synced_at = outside.synced_at if outside else sheet.synced_at
        body["provider"] = sheet.provider
        body["synced_at"] = self.fields["synced_at"].to_representation(synced_at) if synced_at else None
        body["provider_state"] = ProviderStateSerializer(outside).data if outside else None
        body["generation"] = sheet.generation
        body["lines"] = LineSerializer(sheet.lines, many=True).data
        return body


class DriftSerializer(serializers.Serializer[Any]):
    resource = serializers.CharField()
    was = serializers.IntegerField()
    found = serializers.IntegerField()


class SyncedQuotaSerializer(QuotaSerializer):
    """The quota after a recount, with the counters that were wrong."""

    drift = DriftSerializer(many=True)

    def to_representation(self, sheet: QuotaSheet) -> dict[str, Any]:
        drift = DriftSerializer(self.context["drift"], many=True).data
        return super().to_representation(sheet) | {"drift": drift}


class LineChangesSerializer(StrictSerializer):
    resource = ChoiceField(choices=[resource.value for resource in QuotaResource.counted()])
    nominal = serializers.IntegerField(min_value=0, max_value=MAX_AMOUNT, allow_null=True, required=False)
    soft = serializers.IntegerField(min_value=0, max_value=MAX_AMOUNT, allow_null=True, required=False)
    hard = serializers.IntegerField(min_value=0, max_value=MAX_AMOUNT, allow_null=True, required=False)
    enforce = serializers.BooleanField(required=False)


class AmountField(serializers.Field[Any, Any, Any, Any]):
    """A number of cores, GPUs or GiB, or a text with a unit such as 500Gi; null for no bound."""

    def __init__(self, *, of_bytes: bool, **kwargs: Any) -> None:
        super().__init__(required=False, allow_null=True, **kwargs)
        self.of_bytes = of_bytes

    def to_internal_value(self, data: Any) -> int:
        if isinstance(data, bool) or not isinstance(data, (int, float, str)):
            raise serializers.ValidationError("Write a number, or null for no limit.", code="invalid")
        try:
            if not self.of_bytes:
                return cores_to_millis(data)
            if isinstance(data, str):
                return parse_mib(data, bare_unit="gi")
            if not 0 <= data * GIB <= MAX_AMOUNT:
                raise BadAmount(f"{data} GiB is not from 0 to {MAX_AMOUNT // GIB} GiB")
            return bytes_to_mib(round(data * GIB))
        except BadAmount as bad:
            raise serializers.ValidationError(
                str(bad)[:1].upper() + str(bad)[1:] + ".", code="invalid"
            ) from bad


class QuotaChangesSerializer(StrictSerializer):
    """`cpu_quota` and similar fields set the share and the hard limit alike; `lines` sets each limit separately."""

    cpu_quota = extend_schema_field(OpenApiTypes.NUMBER)(AmountField)(of_bytes=False, help_text="Cores.")
    memory_quota = extend_schema_field(OpenApiTypes.NUMBER)(AmountField)(
        of_bytes=True, help_text='GiB, or a text with a unit: "500Gi".'
    )
    gpu_quota = extend_schema_field(OpenApiTypes.NUMBER)(AmountField)(of_bytes=False, help_text="GPUs.")
    storage_quota = extend_schema_field(OpenApiTypes.NUMBER)(AmountField)(
        of_bytes=True, help_text='GiB, or a text with a unit: "2Ti".'
    )
    enforce_quota = serializers.BooleanField(required=False)
    provider = serializers.CharField(
        max_length=16, required=False, help_text="local, k8s, slurm, or a provider of this site."
    )
    lines = LineChangesSerializer(many=True, required=False)
    reason = serializers.CharField(
        max_length=1000, default="changed over the API", help_text="Reason; recorded in the audit trail."
    )


def changes_from(data: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What the service takes, from a valid body; a resource that is named twice is refused."""
    changes: dict[str, dict[str, Any]] = {}
    for name, (resource, _) in SHOWN.items():
        if f"{name}_quota" in data:
            bound = data[f"{name}_quota"]
            changes[resource.value] = {"nominal": bound, "hard": bound}
    for number, line in enumerate(data.get("lines", [])):
        resource = line["resource"]
        if resource in changes:
            message = f"{resource} is given twice."
            raise InvalidInput(
                message, problems=[FieldProblem(f"lines/{number}/resource", message, "repeated")]
            )
        changes[resource] = {name: value for name, value in line.items() if name != "resource"}
    for name, field in (("enforce", "enforce_quota"), ("provider", "provider")):
        if field in data:
            for resource in QuotaResource.counted():
                changes.setdefault(resource, {}).setdefault(name, data[field])
    return {resource: wanted for resource, wanted in changes.items() if wanted}


def _shown(amount: int | None, unit: int, *, whole: bool) -> float | int | None:
    if amount is None:
        return None
    if whole and amount % unit == 0:
        return amount // unit
    return round(amount / unit, 3)


class RepairSerializer(StrictSerializer):
    reason = serializers.CharField(max_length=1000, help_text="Reason; recorded in the audit trail.")
