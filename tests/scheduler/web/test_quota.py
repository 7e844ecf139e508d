"""The page of limits: every line on the way up, who it binds, how it stands, and the rows behind its figures."""

from __future__ import annotations

import re
from datetime import timedelta
from types import SimpleNamespace

import pytest
from django.urls import reverse
from django.utils import timezone

from quotas.models import Quota
from tests.support.factories import NodeFactory, OrganizationFactory, ProjectFactory, QuotaFactory
from tests.support.ledgers import a_life

pytestmark = pytest.mark.django_db


@pytest.fixture
def tree(world) -> SimpleNamespace:
    """The project in a lab that another project has used up, and limits of a model, people and a job type."""
    lab = OrganizationFactory(slug="lab")
    project = world.cast.project
    project.organization = lab
    project.save()

    def line(**words) -> Quota:
        return QuotaFactory(
            **{"project": None, "resource": "gpu_millis", "hard": None, "nominal": None} | words
        )

    beside = ProjectFactory(slug="speech", name="Speech", organization=lab)
    return SimpleNamespace(
        cast=world.cast,
        lab=line(organization=lab, nominal=12_000, used=12_000),
        own=line(project=project, nominal=8000, used=2000),
        other=line(project=beside, nominal=4000, used=10_000),
        model=line(project=project, gpu_model="H100", hard=1000, used=2000, over_since=timezone.now()),
        owner=line(project=project, user=world.cast.owner, hard=3000, used=2000),
        colleague=line(project=project, user=world.cast.colleague, resource="running_jobs", hard=4),
        kind=line(project=project, job_type="interactive", resource="running_jobs", hard=1),
        personal=line(user=world.cast.owner, resource="running_jobs", hard=5, used=5),
    )


def row_of(page: str, line: Quota) -> str:
    found = re.search(rf'<tr data-line="{line.pk}">.*?</tr>', page, re.S)
    return "" if found is None else re.sub(r"<[^>]+>", " ", found.group(0))


def test_every_limit_on_the_way_up_says_how_it_stands(as_user, tree) -> None:
    page = as_user(tree.cast.owner).get(reverse("quota")).content.decode()

    assert "lent 6" in page
    assert "organization lab" in row_of(page, tree.lab)
    assert "Fully used" in row_of(page, tree.lab)
    assert "Over the limit" in row_of(page, tree.model)
    assert "Running jobs continue to their end." in row_of(page, tree.model)
    assert "H100 GPUs" in row_of(page, tree.model)
    assert "Nothing free above" in row_of(page, tree.owner)
    assert "interactive jobs only" in row_of(page, tree.kind)
    assert "owner" in row_of(page, tree.personal).lower()
    assert row_of(page, tree.other) == ""


def test_what_limits_a_person_everywhere_is_for_that_person(as_user, tree) -> None:
    page = as_user(tree.cast.colleague).get(reverse("quota")).content.decode()

    assert row_of(page, tree.personal) == ""
    assert row_of(page, tree.colleague) != ""
    assert "Vision" not in as_user(tree.cast.stranger).get(reverse("quota")).content.decode()


def test_a_figure_opens_to_what_counted_on_it(as_user, tree) -> None:
    NodeFactory(gpus=1, gpus__model="NVIDIA H100 80GB HBM3")
    for model in ("NVIDIA H100 80GB HBM3", "A100"):
        began = timezone.now() - timedelta(hours=1)
        a_life(tree.cast.project, tree.cast.owner, began=began, used=3600, model=model)
    client = as_user(tree.cast.owner)
    page = client.get(reverse("quota")).content.decode()

    for line, hours in ((tree.model, "1"), (tree.lab, "2")):
        row = re.search(rf'<tr data-line="{line.pk}">.*?href="([^"]+)"', page, re.S)
        assert row is not None
        usage = client.get(row.group(1).replace("&amp;", "&")).content.decode()
        assert f"<b>{hours}</b><span>GPU-hours" in usage
