"""The description of the API, made once by each process: it changes with the program and with nothing else."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import cache
from typing import Any, Final, TypeAlias

from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.utils import extend_schema_field
from drf_spectacular.views import SpectacularAPIView
from rest_framework import serializers
from rest_framework.request import Request

from scheduler.services.submission.declaration import Declared, Kind, Schema

AnyField: TypeAlias = serializers.Field[Any, Any, Any, Any]


class MadeOnce(SchemaGenerator):
    """Everybody gets the same: what an address may be used for is said there, not left out here."""

    def get_schema(self, request: Request | None = None, public: bool = False) -> dict[str, Any]:
        return _public_schema()


class ApiSchema(SpectacularAPIView):
    generator_class = MadeOnce


@cache
def _public_schema() -> dict[str, Any]:
    schema: dict[str, Any] = SchemaGenerator().get_schema(request=None, public=True)
    return schema


# ---------------------------------------------------------------- requests that are declared


def serializer_of(
    schema: Schema[Any], *, name: str, about: str, only: Collection[str] | None = None
) -> type[serializers.Serializer[Any]]:
    """A serializer with a field for each name that the schema declares; it describes and reads nothing.

    With `only`, it has these fields and no defaults: what is left out stays as it is, and null resets it.
    """
    fields: dict[str, Any] = {}
    for declared in schema.fields:
        if only is not None and declared.name not in only:
            continue
        field = replace(declared, default=None) if only is not None else declared
        fields[field.name] = _field_of(field)
        for spelling in field.spellings:
            fields[spelling.name] = _field_of(replace(field, help=spelling.help))
    return type(name, (serializers.Serializer,), {**fields, "__doc__": about})


def _field_of(field: Declared) -> AnyField:
    common: dict[str, Any] = {"required": False, "help_text": field.help}
    if field.default is None:
        common["allow_null"] = True
    elif field.kind in (Kind.FLAG, Kind.INTEGER, Kind.CHOICE):
        common |= {"required": False, "default": field.default}
    made = _NATIVE.get(field.kind)
    if made is not None:
        return made(field, common)
    described = extend_schema_field(json_schema(field))
    field_class = described(type("Described", (serializers.Field,), {}))
    common.pop("allow_null", None)
    return field_class(**common)


#: Kinds that the framework describes itself, so that choices keep their components.
_NATIVE: Final[dict[Kind, Callable[[Declared, dict[str, Any]], AnyField]]] = {
    Kind.TEXT: lambda field, common: serializers.CharField(max_length=field.most, **common),
    Kind.LINES: lambda field, common: serializers.CharField(max_length=field.most, **common),
    Kind.INTEGER: lambda field, common: serializers.IntegerField(
        min_value=field.least, max_value=field.most, **common
    ),
    Kind.FLAG: lambda field, common: serializers.BooleanField(**common),
    Kind.CHOICE: lambda field, common: serializers.ChoiceField(list(field.choices), **common),
    Kind.MOMENT: lambda field, common: serializers.DateTimeField(**common),
    Kind.TEXTS: lambda field, common: serializers.DictField(
        child=serializers.CharField(allow_blank=True), **common
    ),
    Kind.COUNTS: lambda field, common: serializers.DictField(
        child=serializers.IntegerField(min_value=field.least), **common
    ),
}

_NUMBER: Final = {Kind.AMOUNT: "number", Kind.NAME_OR_NUMBER: "integer", Kind.DURATION: "integer"}
_TYPE: Final = {Kind.LINES: "string", Kind.TEXT: "string", Kind.INTEGER: "integer", Kind.FLAG: "boolean"}


def json_schema(field: Declared) -> dict[str, Any]:
    """A field as JSON Schema describes it, with what is inside."""
    return {"description": field.help, **_shape_of(field)}


def _shape_of(field: Declared) -> dict[str, Any]:
    inside = _object_of(field.schema) if field.schema is not None else {}
    match field.kind:
        case Kind.AMOUNT | Kind.NAME_OR_NUMBER | Kind.DURATION:
            return {"oneOf": [{"type": _NUMBER[field.kind], **_bounds(field)}, {"type": "string"}]}
        case Kind.CHOICE_OR_OBJECT:
            return {"oneOf": [{"type": "string", "enum": list(map(str, field.choices))}, inside]}
        case Kind.NUMBER_OR_OBJECT:
            return {"oneOf": [{"type": "integer", **_bounds(field)}, inside]}
        case Kind.ENTRIES:
            entry = {"oneOf": [{"type": "integer"}, {"type": "string"}, inside or {"type": "object"}]}
            return {"type": "array", "maxItems": field.most, "items": entry}
        case Kind.OBJECTS | Kind.TEXT_LIST:
            return {"type": "array", "maxItems": field.most, "items": inside or {"type": "string"}}
        case Kind.TERMS:
            return {"type": "array", "maxItems": field.most, "items": {"type": "array", "items": inside}}
        case Kind.OBJECT:
            return inside
        case Kind.TEXTS:
            return {"type": "object", "additionalProperties": {"type": "string"}}
        case Kind.CHOICE:
            return {"type": "string", "enum": list(field.choices)}
    return {"type": _TYPE[field.kind], **_bounds(field)}


def _object_of(schema: Schema[Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {field.name: json_schema(field) for field in schema.fields},
        "additionalProperties": False,
    }


def _bounds(field: Declared) -> dict[str, Any]:
    if field.kind in (Kind.TEXT, Kind.LINES):
        return {"maxLength": field.most} if field.most is not None else {}
    bounds = {"minimum": field.least, "maximum": field.most}
    return {name: bound for name, bound in bounds.items() if bound is not None}
