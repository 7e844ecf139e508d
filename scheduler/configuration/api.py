"""What operators set of the site, as one YAML document that is read and applied."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from accounts import permissions
from accounts.api.permissions import require_scope
from scheduler.api.base import ApiView, body_of, person
from scheduler.configuration.apply import apply_configuration, export_configuration
from scheduler.configuration.document import written


class ConfigurationSerializer(serializers.Serializer[Any]):
    yaml = serializers.CharField(
        help_text="The document: people, organizations, projects, prices, classes, profiles, and clusters."
    )


class ConfigurationRequestSerializer(serializers.Serializer[Any]):
    yaml = serializers.CharField(
        help_text="Fields and rows that the document does not name stay as they are."
    )
    reason = serializers.CharField(max_length=200, help_text="Recorded in the audit trail.")
    dry_run = serializers.BooleanField(default=False, help_text="Only answer what would change.")
    prune = serializers.BooleanField(
        default=False,
        help_text="Delete rows of the document's sections that it does not name; "
        "clusters, nodes, people, organizations, projects, budgets and prices stay.",
    )


class ConfigurationChangeSerializer(serializers.Serializer[Any]):
    kind = serializers.CharField(help_text="The section of the row.")
    name = serializers.CharField()
    action = serializers.ChoiceField(["create", "change", "delete"])
    before = serializers.DictField(help_text="Fields that change, as they were; empty for a new row.")
    after = serializers.DictField(help_text="The same fields as they are then; empty for a deleted row.")


class ConfigurationAppliedSerializer(serializers.Serializer[Any]):
    applied = serializers.BooleanField(help_text="False for a dry run.")
    changes = ConfigurationChangeSerializer(many=True)


class Configuration(ApiView):
    """`/configuration`"""

    serializer_class = ConfigurationSerializer
    required_scopes = {"GET": "nodes:read", "POST": "admin"}
    schema_tags = ["configuration"]

    @extend_schema(operation_id="configuration_get", responses=ConfigurationSerializer)
    def get(self, request: Request) -> Response:
        """Everything that can be applied, as it is now; for operators and auditors.

        A token needs the scopes projects:read and quota:read as well.
        """
        for scope in ("projects:read", "quota:read"):
            require_scope(request, scope)
        return Response({"yaml": written(export_configuration(by=person(request)))})

    @extend_schema(
        operation_id="configuration_apply",
        request=ConfigurationRequestSerializer,
        responses=ConfigurationAppliedSerializer,
    )
    def post(self, request: Request) -> Response:
        """Apply a document, all of it or nothing; operators.

        People, organizations, projects, classes and profiles are changed by site admins only.
        """
        permissions.require(person(request), "operate")
        asked = ConfigurationRequestSerializer(data=body_of(request))
        asked.is_valid(raise_exception=True)
        words = asked.validated_data
        changes = apply_configuration(
            text=words["yaml"], by=person(request), reason=words["reason"], dry_run=words["dry_run"],
            prune=words["prune"],
        )  # fmt: skip
        return Response({"applied": not words["dry_run"], "changes": [asdict(change) for change in changes]})
