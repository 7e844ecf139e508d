"""The ledger over HTTP: its lines, page by page or streamed whole; sums of them; corrections."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.conf import settings
from django.db.models import QuerySet
from django.utils import timezone
from django.utils.dateparse import parse_date, parse_datetime
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from accounts.api.once import KEY, once
from accounts.api.person import person
from accounts.api.serializers import StrictSerializer
from accounts.selectors import project_by_ref, visible_users
from infra.api.fields import ChoiceField
from infra.api.rest import NewestFirst
from infra.api.views import ApiView
from infra.errors import FieldProblem, InvalidInput
from infra.exports import EXPORTS
from quotas.api.exports import ledger_file
from quotas.core.budgets import COUNTED
from quotas.core.ledger import Kind
from quotas.core.resources import MAX_AMOUNT
from quotas.models import LedgerEntry
from quotas.selectors.usage import GROUPS, MOST_DAYS, usage, visible_entries, within
from quotas.services.budgets import adjust


class EntrySerializer(serializers.Serializer[LedgerEntry]):
    """One ledger entry: the allocated amounts, times the seconds added to the two sums."""

    id = serializers.IntegerField()
    kind = serializers.ChoiceField(choices=[kind.value for kind in Kind])
    project = serializers.CharField(source="project.slug")
    user = serializers.CharField(source="user.username", allow_null=True, default=None)
    job = serializers.IntegerField(source="job_number", allow_null=True)
    attempt = serializers.IntegerField(source="attempt_id", allow_null=True)
    gpu_model = serializers.CharField()
    cpu_millis = serializers.IntegerField()
    memory_mib = serializers.IntegerField()
    gpu_millis = serializers.IntegerField()
    storage_mib = serializers.IntegerField()
    held_seconds = serializers.IntegerField(help_text="Reserved by this entry; negative: released.")
    charged_seconds = serializers.IntegerField(help_text="Charged by this entry; negative: refunded.")
    held_micros = serializers.IntegerField()
    charged_micros = serializers.IntegerField()
    unused_seconds = serializers.IntegerField(
        allow_null=True,
        help_text="Of the last charge of an attempt without a budget: what it did not use of its time limit.",
    )
    starts_at = serializers.DateTimeField(help_text="Time that decides the day and the period of the entry.")
    ends_at = serializers.DateTimeField()
    at = serializers.DateTimeField()
    reason = serializers.CharField()
    rolled_up_at = serializers.DateTimeField(
        source="roll_up.at", allow_null=True, default=None,
        help_text="When the entries of a day were summed into this entry; null: an original entry.",
    )  # fmt: skip


class UsageSerializer(serializers.Serializer[Any]):
    """Sums of ledger entries; `ledger` lists the same entries."""

    group = serializers.DictField(child=serializers.JSONField())
    gpu_milli_seconds = serializers.IntegerField()
    cpu_milli_seconds = serializers.IntegerField()
    memory_mib_seconds = serializers.IntegerField()
    storage_mib_seconds = serializers.IntegerField()
    money_micros = serializers.IntegerField()
    forgiven_gpu_milli_seconds = serializers.IntegerField()
    adjusted_gpu_milli_seconds = serializers.IntegerField()
    unused_gpu_milli_seconds = serializers.IntegerField()
    unused_cpu_milli_seconds = serializers.IntegerField()
    held_gpu_milli_seconds = serializers.IntegerField()
    efficiency_percent = serializers.FloatField(allow_null=True)


class AdjustSerializer(StrictSerializer):
    project = serializers.CharField(max_length=80)
    user = serializers.CharField(max_length=150, required=False)
    resource = ChoiceField(choices=list(COUNTED))
    amount = serializers.IntegerField(min_value=-MAX_AMOUNT, max_value=MAX_AMOUNT)
    gpu_model = serializers.CharField(max_length=80, required=False, allow_blank=True)
    reason = serializers.CharField(max_length=200)


def _parameter(name: str, type_: Any, text: str, **words: Any) -> OpenApiParameter:
    return OpenApiParameter(name, type_, OpenApiParameter.QUERY, description=text, **words)


FILTERS: Final = [
    _parameter("project", str, "Slug or id."),
    _parameter("user", str, "Username."),
    _parameter("job", int, "Number of the job."),
    _parameter("kind", str, "hold, charge, refund or adjust; several with commas."),
    _parameter("gpu_model", str, "Only this model; empty for lines without a GPU."),
    _parameter("since", OpenApiTypes.DATETIME, "Entries from this date or time."),
    _parameter("until", OpenApiTypes.DATETIME, "Entries before this date or time."),
]


def entries_of(request: Request) -> QuerySet[LedgerEntry]:
    """The lines that the person may see and the query asks for."""
    asked, user = request.query_params, person(request)
    problems: list[FieldProblem] = []
    kinds = [kind for kind in asked.get("kind", "").split(",") if kind]
    problems += [FieldProblem("kind", f"There is no {k[:20]!r}.") for k in kinds if k not in list(Kind)]
    job = asked.get("job", "")
    if job and not (job.isascii() and job.isdecimal() and len(job) < 19):
        problems.append(FieldProblem("job", "Must be the number of a job."))
    moments = {name: _moment(asked.get(name, ""), name, problems) for name in ("since", "until")}
    if problems:
        raise InvalidInput(problems[0].message, code="bad-filter", status=400, problems=problems)
    return within(
        visible_entries(user),
        begin=moments["since"],
        end=moments["until"],
        project_ids=[project_by_ref(user, asked["project"]).pk] if asked.get("project") else None,
        user_id=_user_id(user, asked["user"]) if asked.get("user") else None,
        job_number=int(job) if job else None,
        kinds=kinds,
        gpu_model=asked.get("gpu_model"),
    )


def _user_id(asker: Any, name: str) -> int:
    """-1 for nobody: a name that the caller may not see looks like one that does not exist."""
    found = visible_users(asker).filter(username=name).values_list("pk", flat=True).first()
    return -1 if found is None else found


def _moment(text: str, name: str, problems: list[FieldProblem]) -> datetime | None:
    if not text:
        return None
    try:
        moment = parse_datetime(text)
        if moment is None and (day := parse_date(text)) is not None:
            moment = datetime(day.year, day.month, day.day, tzinfo=UTC)
    except ValueError:
        moment = None
    if moment is None:
        problems.append(
            FieldProblem(name, "Write a day such as 2026-11-01, or a time such as 2026-11-01T12:00Z.")
        )
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


class LedgerView(ApiView):
    """The ledger entries behind every figure of usage."""

    required_scopes = {"GET": "quota:read", "POST": "quota:write"}
    pagination_class = NewestFirst
    schema_tags = ["quota"]

    @extend_schema(
        parameters=[
            *FILTERS,
            _parameter(
                "export",
                str,
                "Stream all entries: CSV, or a bare JSON array.",
                enum=["csv", "json"],
            ),
            _parameter("cursor", str, "From `next` or `previous`."),
            _parameter("limit", int, "Entries per page, 1 to 500."),
        ],
        responses={
            (200, "application/json"): EntrySerializer(many=True),
            (200, "text/csv"): OpenApiTypes.STR,
        },
        summary="Ledger entries, newest first",
    )
    def get(self, request: Request) -> Any:
        entries = entries_of(request)
        export = request.query_params.get("export", "")
        if export in EXPORTS:
            return ledger_file(entries.order_by("id"), export)
        if export:
            message = "Exports are csv or json."
            raise InvalidInput(message, status=400, problems=[FieldProblem("export", message)])
        pages = NewestFirst()
        page = pages.paginate_queryset(entries, request, view=self)
        return pages.get_paginated_response(EntrySerializer(page, many=True).data)

    @extend_schema(
        parameters=[KEY],
        request=AdjustSerializer,
        responses={201: EntrySerializer},
        summary="Correct charges; operators only",
    )
    @once
    def post(self, request: Request) -> Response:
        serializer = AdjustSerializer(data=request.data)
        serializer.is_valid(raise_exception=True)
        data = dict(serializer.validated_data)
        project = project_by_ref(person(request), data.pop("project"))
        name = data.pop("user", "")
        owner = visible_users(person(request)).filter(username=name).first() if name else None
        if name and owner is None:
            message = f"There is no user {name[:80]!r}."
            raise InvalidInput(message, problems=[FieldProblem("user", message, "unknown")])
        entry = adjust(project=project, by=person(request), user=owner, **data)
        return Response(EntrySerializer(entry).data, status=201)


class UsageView(ApiView):
    """Sums of the ledger."""

    required_scopes = {"GET": "quota:read"}
    schema_tags = ["quota"]

    @extend_schema(
        parameters=[
            *FILTERS,
            _parameter("group", str, f"{', '.join(GROUPS)}; several separated by commas. Absent: one total."),
        ],
        responses=UsageSerializer(many=True),
        summary="Usage by day, GPU model, project or person",
    )
    def get(self, request: Request) -> Response:
        groups = tuple(name for name in request.query_params.get("group", "").split(",") if name)
        unknown = [name for name in groups if name not in GROUPS]
        if unknown or len(set(groups)) != len(groups):
            message = f"Group by {', '.join(GROUPS)}, each once."
            raise InvalidInput(message, status=400, problems=[FieldProblem("group", message)])
        entries = entries_of(request)
        if not request.query_params.get("since"):
            entries = within(entries, begin=timezone.now() - timedelta(days=MOST_DAYS))
        names = [name for group in groups for name in NAMES[group]]
        rows = [
            UsageSerializer(_Row(one, dict(zip(names, one.group, strict=True)))).data
            for one in usage(entries, groups, most=settings.MUSTER_MAX_ROWS)
        ]
        return Response({"results": rows})


#: What the columns of a group are called.
NAMES: Final = {
    "day": ("day",),
    "gpu_model": ("gpu_model",),
    "project": ("project_id", "project", "project_name"),
    "user": ("user_id", "user"),
}


class _Row:
    def __init__(self, one: Any, group: dict[str, Any]) -> None:
        self.one, self.group = one, group

    def __getattr__(self, name: str) -> Any:
        return getattr(self.one, name)
