"""A list makes the filters that its query names, and answers as if it had made them all."""

from __future__ import annotations

import django_filters
from django.http import QueryDict

from accounts.models import User
from infra.api.filters import FilterSet


class People(FilterSet):
    name = django_filters.CharFilter(field_name="username")
    active = django_filters.BooleanFilter(field_name="is_active")

    class Meta:
        model = User
        fields: list[str] = []


def test_only_named_filters_are_made_and_narrow_the_list() -> None:
    asked = People(QueryDict("name=ada&other=1"), queryset=User.objects.all())

    assert list(asked.filters) == ["name"]
    assert "username" in str(asked.qs.query.where)
    assert list(People.base_filters) == ["name", "active"]


def test_without_a_filter_the_list_is_whole() -> None:
    asked = People(QueryDict("limit=5"), queryset=User.objects.all())

    assert not asked.filters
    assert not asked.qs.query.where
