"""Container images: which queues take them, and what a queue of containers refuses."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest

from infra.errors import InvalidInput
from scheduler.backends.base import Capabilities
from scheduler.backends.docker.backend import CAPABILITIES
from scheduler.backends.fake import FakeBackend
from scheduler.backends.registry import use_backend
from scheduler.models import Cluster
from scheduler.services.submission.parse_request import parse_job
from tests.scheduler.portal import Portal, a_portal
from tests.support.kept import made_once

pytestmark = pytest.mark.django_db

one_portal = made_once(a_portal)


@pytest.fixture
def portal(one_portal: Portal, db: None) -> Portal:
    return deepcopy(one_portal)


IMAGE = "ghcr.io/acme/train:2.1"


@pytest.fixture
def containers(portal: Portal) -> Iterator[Portal]:
    """A cluster whose backend can do what Docker hosts can."""
    use_backend("docker", FakeBackend(name="docker", capabilities=CAPABILITIES))
    Cluster.objects.update(backend="docker")
    yield portal
    use_backend("docker", None)


def problems(portal: Portal, **fields: Any) -> dict[str, str]:
    try:
        parse_job({"command": "true", "queue": portal.queue.slug, **fields}, by=portal.cast.owner)
    except InvalidInput as error:
        return {one.field: one.code for one in error.problems}
    return {}


def test_a_queue_of_agents_refuses_an_image(portal: Portal) -> None:
    assert problems(portal, image=IMAGE) == {"image": "no-images-here"}


def test_a_queue_of_containers_needs_one(containers: Portal) -> None:
    assert problems(containers) == {"image": "image-needed"}
    assert problems(containers, image=IMAGE) == {}


@pytest.mark.parametrize(
    "image", ["python", "python:3.12", "localhost:5000/a/b", "a/b@sha256:" + "0" * 64, "quay.io/a_b/c-d:v1"]
)
def test_names_of_images_are_taken(containers: Portal, image: str) -> None:
    assert problems(containers, image=image) == {}


@pytest.mark.parametrize(
    "image", ["Python", "a b", "a:", "-x", "a//b", "a@sha256:1", "$(id)", "x" * 256, 7, ["a"]]
)
def test_what_is_no_name_of_an_image_is_refused(containers: Portal, image: Any) -> None:
    assert "image" in problems(containers, image=image)


#: A request for each capability that a backend may lack; `image` and the rest are right.
LACKED: dict[str, tuple[str, dict[str, Any]]] = {
    "keeps_files": ("artifacts", {"artifacts": ["out/*"]}),
    "writes_output_files": ("standard_output", {"standard_output": "out.txt"}),
    "makes_checkpoints": ("checkpoint", {"checkpoint": {}}),
    "runs_probes": ("probes", {"probes": [{"kind": "file", "path": "alive", "limit": 60}]}),
    "binds_numa": ("numa", {"numa": "one"}),
    "runs_elements": ("elements_per_job", {"array": "0-9", "elements_per_job": 5}),
    "sends_limit_signals": ("limit_signal", {"limit_signal": {"signal": "USR1"}, "time_limit": 600}),
    "resizes": ("elastic", {"tasks": 4, "min_tasks": 2, "elastic": True}),
}


@pytest.mark.parametrize("capability", LACKED)
def test_a_field_that_the_backend_does_not_act_on_is_refused(containers: Portal, capability: str) -> None:
    field, fields = LACKED[capability]

    assert problems(containers, image=IMAGE, **fields).get(field) == "backend-lacks"


def test_every_capability_of_a_backend_is_looked_at() -> None:
    """A capability that no request is refused for would be taken and ignored."""
    by_default = {
        name for name in Capabilities.__slots__ if getattr(Capabilities(is_driven=True), name) is True
    }

    assert by_default - {"is_driven", "runs_processes", "several_nodes"} == set(LACKED)
