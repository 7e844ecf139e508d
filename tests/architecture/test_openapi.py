"""The committed OpenAPI description is the one that the code gives."""

from __future__ import annotations

from pathlib import Path

import yaml
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.renderers import OpenApiYamlRenderer

COMMITTED = Path(__file__).resolve().parents[2] / "docs" / "reference" / "openapi.yaml"


def test_the_committed_description_is_the_current_one() -> None:
    made = SchemaGenerator().get_schema(request=None, public=True)

    now = yaml.safe_load(OpenApiYamlRenderer().render(made, renderer_context={}))

    assert now == yaml.safe_load(COMMITTED.read_text()), (
        "Run `make docs` and commit docs/reference/openapi.yaml."
    )
