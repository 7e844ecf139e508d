"""The tree as an icicle, how use fades, and the tree on the command line."""

from __future__ import annotations

import io
import json

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from quotas.core.decay import Decay
from quotas.selectors.fair_share_report import standing
from quotas.selectors.fair_share_source import share_rules, use_at
from quotas.selectors.usage_decay import fading
from quotas.templatetags.charts import WIDTH, hours
from quotas.templatetags.share_charts import boxes_of
from tests.quotas.sharing import a_shared_site

pytestmark = pytest.mark.django_db


@pytest.fixture
def site():
    return a_shared_site()


def test_boxes_are_as_wide_as_their_part_of_the_site_and_lie_below_their_own(site) -> None:
    lines = standing(site.cast.admin).lines
    boxes = boxes_of(lines, ["completed"] * len(lines))

    for box in boxes:
        assert box.part == pytest.approx(box.line.entitled)
    assert sum(box.width for box in boxes if box.line.depth == 0) == pytest.approx(WIDTH)
    above = {}
    for box in boxes:
        above[box.line.depth] = box
        if box.line.depth:
            parent = above[box.line.depth - 1]
            assert parent.left - 1e-6 <= box.left <= box.left + box.width <= parent.left + parent.width + 1e-6
    vision = next(box for box in boxes if box.line.name == "Vision")
    assert vision.title == "Vision: 20.0 % of the site, used 2.2 times that"


@pytest.mark.parametrize("decay", [None, Decay(mode="window"), Decay(half_life_seconds=3600)])
def test_what_fades_adds_up_to_what_counts(site, decay) -> None:
    at = timezone.now().timestamp()
    slices = fading(site.cast.admin, at=at, decay=decay)

    rules, metering = share_rules()
    used = use_at(at, decay=decay or rules)
    weights = (metering.gpu, metering.cpu, metering.memory)
    counts = sum(w * s for use in used.values() for w, s in zip(weights, use, strict=True)) / 3600
    assert sum(one.used for one in slices) == pytest.approx(17 * metering.gpu)
    if decay is None or decay.mode == "window":
        assert sum(one.counts for one in slices) == pytest.approx(counts)
    assert all(0 <= one.left <= 1 for one in slices)
    assert [one.left for one in slices] == sorted(one.left for one in slices)


def test_a_member_sees_the_fading_of_their_own_projects_and_no_names(client: Client, site) -> None:
    client.force_login(site.cast.owner, backend="accounts.backends.PasswordBackend")
    page = client.get(reverse("shares")).content.decode()
    metering = share_rules()[1]

    assert 'class="chart icicle"' in page
    assert page.count("Show as table") == 2
    assert "Secret" not in page
    assert sum(one.used for one in fading(site.cast.owner, at=timezone.now().timestamp())) == pytest.approx(
        12 * metering.gpu
    )
    assert fading(site.cast.stranger, at=timezone.now().timestamp())[-1].used == 0


def test_the_command_line_shows_the_tree(site) -> None:
    def said(*words: str) -> str:
        out = io.StringIO()
        call_command("share", *words, stdout=out)
        return out.getvalue()

    tree = said("--tree").splitlines()
    vision = next(line for line in tree if "Vision" in line)
    assert vision.startswith("  Vision")
    assert vision.split()[1:8] == ["1", "33.3", "%", "75.0", "%", "20.0", "%"]
    assert any(line.startswith("    owner") for line in tree)
    assert "Secret" in said("--tree")
    assert "Secret" not in said("--tree", "--as", "owner")
    assert "Vision: Used 2.2 times the share" in said()
    assert {line["kind"] for line in json.loads(said("--tree", "--json"))} == {
        "organization",
        "project",
        "person",
    }
    with pytest.raises(CommandError, match="nobody"):
        said("--as", "nobody")


@pytest.mark.parametrize(
    ("milli_seconds", "words"),
    [(0, "0"), (3_599_990, "1"), (3_600_000, "1"), (3_200_000, "0.89"), (5_400_000, "1.5"), (36, "<0.001")],
)
def test_hours_are_written_with_what_matters_of_them(milli_seconds: int, words: str) -> None:
    assert hours(milli_seconds) == words
