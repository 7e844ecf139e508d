"""Whole rows from statements written by hand: for what runs with every request.

The ORM builds its statement anew each time, which costs more than running it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from django.db import DEFAULT_DB_ALIAS, connection
from django.db.models import Model

T = TypeVar("T", bound=Model)


class RowLoader(Generic[T]):
    """The columns of one model under an alias, and its objects from the values that come back for them."""

    def __init__(self, model: type[T], alias: str) -> None:
        fields = model._meta.concrete_fields
        self._model = model
        self._names = [field.attname for field in fields]
        self._key = self._names.index(model._meta.pk.attname)
        # As the ORM does: what the driver gives for some kinds of column is not yet the field's value.
        self._readers = [
            (place, field.from_db_value)
            for place, field in enumerate(fields)
            if hasattr(field, "from_db_value")
        ]
        self.columns = ", ".join(f'{alias}."{field.column}"' for field in fields)
        self.width = len(fields)

    def read(self, row: Sequence[Any], start: int = 0) -> T | None:
        """The object whose columns begin at `start`; None where an outer join found nothing."""
        values = list(row[start : start + self.width])
        if values[self._key] is None:
            return None
        for place, reader in self._readers:
            values[place] = reader(values[place], None, connection)
        return self._model.from_db(DEFAULT_DB_ALIAS, self._names, values)
