"""Fields of requests: a refused choice says which choices there are, at every door."""

from __future__ import annotations

from collections.abc import Iterator

from django.urls import get_resolver
from rest_framework import serializers

from infra.api.fields import ChoiceField


def below(kind: type) -> Iterator[type]:
    for inner in kind.__subclasses__():
        yield inner
        yield from below(inner)


def choices_of(field: serializers.Field) -> Iterator[serializers.ChoiceField]:
    if isinstance(field, serializers.ChoiceField):
        yield field
    for inner in (*getattr(field, "fields", {}).values(), *filter(None, [getattr(field, "child", None)])):
        yield from choices_of(inner)


def test_a_refused_choice_names_the_choices() -> None:
    class Asked(serializers.Serializer):
        color = ChoiceField(choices=["", "red", "blue"], allow_blank=True)

    asked = Asked(data={"color": "green"})

    assert not asked.is_valid()
    (error,) = asked.errors["color"]
    assert error == "'green' is not a valid choice; there are: red, blue."
    assert error.code == "invalid_choice"


def test_every_choice_of_a_request_is_of_that_kind() -> None:
    from accounts.api.serializers import StrictSerializer

    assert get_resolver().url_patterns  # every module of the API is imported
    found = 0
    for kind in below(StrictSerializer):
        if kind.__module__.startswith("tests."):
            continue
        for field in choices_of(kind()):
            if not field.read_only:
                found += 1
                assert isinstance(field, ChoiceField), f"{kind.__name__}: {field.field_name}"
    assert found >= 10
