"""How the audit trail is searched."""

from __future__ import annotations

from typing import Any

import django_filters
from django.db.models import QuerySet

from accounts.models import AuditEvent, AuditOutcome
from infra.api.filters import FilterSet


class AuditFilter(FilterSet):
    """`?actor=alice&action=token.*&object=job:12&since=2026-01-31T00:00:00Z`."""

    actor = django_filters.CharFilter(field_name="actor_name", help_text="A user name.")
    action = django_filters.CharFilter(
        method="by_action", help_text="`token.issue`, or `token.*` for all of a kind."
    )
    object = django_filters.CharFilter(method="by_object", help_text="`job:12`, or `job` for all of a kind.")
    outcome = django_filters.ChoiceFilter(choices=AuditOutcome.choices)
    project = django_filters.CharFilter(field_name="project__slug")
    token = django_filters.CharFilter(field_name="token_prefix")
    request_id = django_filters.CharFilter()
    address = django_filters.CharFilter()
    since = django_filters.IsoDateTimeFilter(field_name="at", lookup_expr="gte")
    until = django_filters.IsoDateTimeFilter(field_name="at", lookup_expr="lt")

    class Meta:
        model = AuditEvent
        fields: list[str] = []

    def by_action(self, events: QuerySet[AuditEvent], name: str, value: Any) -> QuerySet[AuditEvent]:
        if value.endswith("*"):
            return events.filter(action__startswith=value[:-1])
        return events.filter(action=value)

    def by_object(self, events: QuerySet[AuditEvent], name: str, value: Any) -> QuerySet[AuditEvent]:
        kind, _, object_id = value.partition(":")
        events = events.filter(object_type=kind)
        return events.filter(object_id=object_id) if object_id else events
