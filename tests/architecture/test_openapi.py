"""The committed OpenAPI description is the one that the code gives."""

from __future__ import annotations

import json

from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.renderers import OpenApiJsonRenderer

from tests.infra.api.conformance import document


def test_the_committed_description_is_the_current_one() -> None:
    made = SchemaGenerator().get_schema(request=None, public=True)

    now = json.loads(OpenApiJsonRenderer().render(made, renderer_context={}))

    assert now == document(), "Run `make docs` and commit docs/reference/openapi.yaml."
