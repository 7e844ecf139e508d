"""The factories make rows that the database takes."""

from __future__ import annotations

import inspect

import pytest
from factory.django import DjangoModelFactory

from tests.support import factories

pytestmark = pytest.mark.django_db

ALL = [
    value
    for _, value in inspect.getmembers(factories, inspect.isclass)
    if issubclass(value, DjangoModelFactory) and value is not DjangoModelFactory
]


@pytest.mark.parametrize("factory", ALL, ids=lambda factory: factory.__name__)
def test_each_factory_makes_a_row_twice(factory: type[DjangoModelFactory]) -> None:
    first, second = factory(), factory()

    assert first.pk != second.pk


def test_a_node_gets_its_devices() -> None:
    node = factories.NodeFactory(gpus=2)

    assert [(d.index, d.model) for d in node.devices.all()] == [(0, "A100"), (1, "A100")]
    assert node.gpu_millis == 2000
