"""The description of the API, made once by each process: it changes with the program and with nothing else."""

from __future__ import annotations

from functools import cache
from typing import Any

from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.views import SpectacularAPIView
from rest_framework.request import Request


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
