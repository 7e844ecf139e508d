"""Filters of lists, as the API takes them."""

from __future__ import annotations

from typing import Any

import django_filters


class FilterSet(django_filters.FilterSet):  # type: ignore[misc]  # no types
    """Makes only those of its filters that the query names: the others would not narrow anything.

    A list of twenty filters would else copy twenty of them and make a form of twenty fields for each request.
    """

    base_filters: dict[str, Any]

    def __init__(self, data: Any, *args: Any, **kwargs: Any) -> None:
        self.base_filters = {name: one for name, one in type(self).base_filters.items() if name in data}
        super().__init__(data, *args, **kwargs)
