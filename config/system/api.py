"""The same for programs of operators."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from accounts import permissions
from config import health
from config.system import facts
from config.system.outside import outside_systems
from scheduler.api.base import ApiView, person
from scheduler.api.serializers import moment


class CheckSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    ok = serializers.BooleanField()
    needed = serializers.BooleanField(help_text="False: the portal goes on without it.")
    text = serializers.CharField()


class OutsideSerializer(serializers.Serializer[Any]):
    name = serializers.CharField(help_text="storage:…, mail, quota:…, webhook:…")
    title = serializers.CharField()
    state = serializers.ChoiceField(
        ["closed", "open", "half-open"],
        help_text="open: not called until `open_until`. half-open: tried next.",
    )
    failures = serializers.IntegerField(help_text="In a row; 0: it answered.")
    text = serializers.CharField(help_text="What the last failure said.")
    opened_at = serializers.DateTimeField(allow_null=True)
    open_until = serializers.DateTimeField(allow_null=True)


class ProtocolsSerializer(serializers.Serializer[Any]):
    oldest = serializers.IntegerField()
    newest = serializers.IntegerField()


class SystemSerializer(serializers.Serializer[Any]):
    version = serializers.CharField()
    agent_protocols = ProtocolsSerializer(help_text="Agents that this server serves.")
    checks = CheckSerializer(many=True)
    outside = OutsideSerializer(many=True)


class SystemView(ApiView):
    """`/system`"""

    serializer_class = SystemSerializer
    required_scopes = {"GET": "nodes:read"}
    schema_tags = ["scheduler"]

    @extend_schema(operation_id="system", responses=SystemSerializer)
    def get(self, request: Request) -> Response:
        """Checks, outside systems with their circuits, and versions; operators only."""
        permissions.require(person(request), "operate")
        versions = facts.versions()
        return Response(
            {
                "version": versions["muster"],
                "agent_protocols": versions["agent_protocols"],
                "checks": [
                    {"name": check.name, "ok": check.ok, "needed": check.needed, "text": check.text}
                    for check in health.run_checks()
                ],
                "outside": [
                    {
                        "name": one.name, "title": one.title, "state": one.state, "failures": one.failures,
                        "text": one.text, "opened_at": moment(one.opened_at), "open_until": moment(one.open_until),
                    }
                    for one in outside_systems()
                ],
            }
        )  # fmt: skip
