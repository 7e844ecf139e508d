"""The look: every state has a word, an icon and a colour that can be read on every ground."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.conf import settings

from scheduler import labels
from scheduler.core.lifecycle import AttemptState, JobState, NodeState, PublicState, StopReason
from scheduler.core.reason_codes import ReasonCategory, ReasonCode

CSS = (Path(settings.ROOT) / "static/css/muster.css").read_text()
SPRITE = (Path(settings.ROOT) / "templates/partials/icons.html").read_text()
GROUNDS = {"light": ("#ffffff", "#f6f7f9"), "dark": ("#0e1116", "#161b22")}


def tokens(block: str) -> dict[str, str]:
    return dict(re.findall(r"--([a-z-]+):\s*(#[0-9a-f]{6})", block))


def blocks() -> dict[str, list[dict[str, str]]]:
    """The tokens of the light ground, and of both ways to the dark one."""
    light = re.search(r":root \{(.*?)\n\}", CSS, re.DOTALL)[1]
    chosen = re.search(r':root\[data-theme="dark"\] \{(.*?)\n\}', CSS, re.DOTALL)[1]
    system = re.search(r':root:not\(\[data-theme="light"\]\) \{(.*?)\n  \}', CSS, re.DOTALL)[1]
    return {"light": [tokens(light)], "dark": [tokens(chosen), tokens(system)]}


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(a: str, b: str) -> float:
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_t37_state_colours_can_be_read_as_text_on_both_grounds(scheme) -> None:
    for tone, pair in labels.TONES.items():
        colour = pair[0 if scheme == "light" else 1]
        assert min(contrast(colour, ground) for ground in GROUNDS[scheme]) >= 4.5, tone


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_links_buttons_and_field_borders_can_be_told_from_their_ground(scheme) -> None:
    for block in blocks()[scheme]:
        for ground in (block["bg"], block["surface"]):
            assert contrast(block["text"], ground) >= 7
            assert contrast(block["muted"], ground) >= 4.5
            assert contrast(block["accent"], ground) >= 4.5
            assert contrast(block["line-strong"], ground) >= 3
        assert contrast(block["on-accent"], block["accent"]) >= 4.5
        assert contrast(block["on-accent"], block["accent-hover"]) >= 4.5
        assert contrast(block["muted"], block["sunken"]) >= 4.5


def test_the_stylesheet_has_the_palette_of_the_table_in_every_scheme() -> None:
    for scheme, index in (("light", 0), ("dark", 1)):
        for block in blocks()[scheme]:
            assert {tone: block[tone] for tone in labels.TONES} == {
                tone: pair[index] for tone, pair in labels.TONES.items()
            }


def all_labels() -> list[labels.Label]:
    tables = (
        labels.PUBLIC_STATES,
        labels.JOB_STATES,
        labels.CATEGORIES,
        labels.ATTEMPT_STATES,
        labels.NODE_STATES,
    )
    return [*(label for table in tables for label in table.values()), labels.CORDONED, labels.DRAINING]


def test_every_member_of_every_closed_list_has_a_label() -> None:
    assert set(labels.PUBLIC_STATES) == set(PublicState)
    assert set(labels.JOB_STATES) == set(JobState)
    assert set(labels.CATEGORIES) == set(ReasonCategory)
    assert set(labels.REASONS) == set(ReasonCode)
    assert set(labels.ATTEMPT_STATES) == set(AttemptState)
    assert set(labels.NODE_STATES) == set(NodeState)
    assert set(labels.STOP_REASONS) == set(StopReason)


def test_every_label_has_a_known_icon_and_tone() -> None:
    drawn = set(re.findall(r'id="i-([a-z]+)"', SPRITE))

    assert {label.icon for label in all_labels()} <= drawn
    assert {label.tone for label in all_labels()} <= set(labels.TONES)


def test_the_seven_states_differ_in_word_and_in_icon_not_only_in_colour() -> None:
    states = list(labels.PUBLIC_STATES.values())

    assert len({label.word for label in states}) == 7
    assert len({label.icon for label in states}) == 7


def test_every_icon_that_templates_name_is_drawn() -> None:
    drawn = set(re.findall(r'id="i-([a-z]+)"', SPRITE))
    named = set()
    for path in (Path(settings.ROOT) / "templates").rglob("*.html"):
        named |= set(re.findall(r'{% icon "([a-z]+)"', path.read_text()))

    assert named <= drawn


def test_no_file_of_ours_names_an_outside_host() -> None:
    names = re.compile(r"https?://(?!www\.w3\.org/)[a-z0-9.-]+")
    root = Path(settings.ROOT)
    files = [*(root / "templates").rglob("*.html"), *(root / "static").rglob("*.*")]

    found = {str(path.relative_to(root)): names.findall(path.read_text()) for path in files}

    assert {path: hosts for path, hosts in found.items() if hosts} == {}
