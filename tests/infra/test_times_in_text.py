"""Times inside sentences are values: written once, shown in the zone of each reader."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from django.template import Context, Template

from infra.times_in_text import pieces, written

AT = datetime(2027, 1, 31, 18, 0, tzinfo=UTC)


class _Reader:
    def __init__(self, zone: str) -> None:
        self.user = type("User", (), {"time_zone": zone})()


def shown(text: str, zone: str, most: int = 0) -> str:
    page = Template("{% load ui %}{% sentence text most %}")
    return page.render(Context({"text": text, "most": most, "request": _Reader(zone)}))


def test_a_time_is_written_in_utc_whatever_its_offset() -> None:
    tokyo = AT.astimezone(timezone(timedelta(hours=9)))

    assert written(tokyo) == "2027-01-31T18:00:00Z"


def test_a_sentence_falls_into_its_texts_and_times() -> None:
    assert pieces(f"Begins at {written(AT)} or later.") == ["Begins at ", AT, " or later."]
    assert pieces("No time.") == ["No time."]
    assert pieces("On 2027-02-30T18:00:00Z.") == ["On 2027-02-30T18:00:00Z."]  # no such day


@pytest.mark.parametrize(
    ("zone", "words"), [("UTC", "31 Jan 2027 18:00"), ("Asia/Tokyo", "01 Feb 2027 03:00")]
)
def test_each_reader_sees_the_own_zone(zone: str, words: str) -> None:
    page = shown(f"Begins at {written(AT)} or later.", zone)

    assert f">{words}</time> or later." in page
    assert 'datetime="2027-01-31T18:00:00Z"' in page


def test_what_a_person_wrote_is_escaped() -> None:
    assert shown("Paused: <b>fans</b>", "UTC") == "Paused: &lt;b&gt;fans&lt;/b&gt;"


def test_a_long_sentence_is_cut_and_its_time_kept_whole() -> None:
    page = shown(f"Held since {written(AT)} for a reason that nobody reads to its end", "UTC", 48)

    assert page.startswith("Held since <time")
    assert page.endswith("…")
    assert "for a reason" in page
    assert "its end" not in page
