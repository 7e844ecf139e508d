"""Drawings of shares as SVG: the tree as an icicle, and how past use fades; each has its table beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from django import template
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from quotas.selectors.fair_share_report import ShareLine
from quotas.selectors.usage_decay import Slice
from quotas.templatetags.charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, nice, show

register = template.Library()

#: Of one level of the tree; and what a letter takes, so that names stay within their box.
LEVEL: Final = 30
LETTER: Final = 7.0


@dataclass(frozen=True, slots=True)
class Box:
    """A row of the tree as a box: as wide as its part of the site, below the box of what it belongs to."""

    line: ShareLine
    tone: str
    left: float
    width: float

    @property
    def part(self) -> float:
        """Of the whole site, 0 to 1."""
        return self.width / WIDTH

    @property
    def text(self) -> str:
        """As much of the name as fits, and how many times its share it used."""
        times = f" {self.line.times:.1f}×" if self.line.times is not None else ""
        room = int((self.width - 8) / LETTER)
        if room < 3:
            return ""
        name = self.line.name if len(self.line.name) <= room else self.line.name[: room - 1] + "…"
        return name + times if len(name) + len(times) <= room else name

    @property
    def title(self) -> str:
        used = "" if self.line.times is None else f", used {self.line.times:.1f} times that"
        return f"{self.line.name}: {100 * self.part:.1f} % of the site{used}"


def boxes_of(lines: Sequence[ShareLine], tones: Sequence[str]) -> list[Box]:
    """`lines` as the tree is walked; what the reader is not shown leaves a gap in the box above."""
    found: list[Box] = []
    above: list[Box] = []
    taken: list[float] = [0.0]
    for line, tone in zip(lines, tones, strict=True):
        del above[line.depth :], taken[line.depth + 1 :]
        parent = above[-1] if above else None
        left, width = (parent.left, parent.width) if parent else (0.0, float(WIDTH))
        own = width * line.share
        box = Box(line, tone, left + taken[line.depth], own)
        taken[line.depth] += own
        above.append(box)
        taken.append(0.0)
        found.append(box)
    return found


@register.simple_tag
def icicle(boxes: Sequence[Box]) -> SafeString:
    """Boxes level by level; the tone says who used more than their share, and so does the number."""
    depth = max((box.line.depth for box in boxes), default=0) + 1
    shapes = [
        (
            box.tone, f"{box.left:.1f}", box.line.depth * LEVEL, f"{max(box.width - 1, 0.5):.1f}", LEVEL - 2,
            box.title, f"{box.left + 5:.1f}", box.line.depth * LEVEL + 18, box.text,
        )
        for box in boxes
    ]  # fmt: skip
    return format_html(
        '<svg class="chart icicle" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>',
        WIDTH, depth * LEVEL, "Hierarchy of shares: the width of each box is its share of the site",
        format_html_join(
            "",
            '<g class="t-{}"><rect x="{}" y="{}" width="{}" height="{}" rx="2"><title>{}</title></rect>'
            '<text x="{}" y="{}">{}</text></g>',
            shapes,
        ),
    )  # fmt: skip


@register.simple_tag
def fading_chart(slices: Sequence[Slice]) -> SafeString:
    """What was used as pale bars, what of it counts as full ones before them, and how an hour fades as a line."""
    top = nice(max((max(one.used, one.counts) for one in slices), default=0))
    high = HEIGHT - TOP - BOTTOM
    wide = (WIDTH - LEFT - RIGHT) / max(len(slices), 1)
    bars = [
        (name, f"{LEFT + n * wide + wide * 0.12:.1f}", f"{TOP + high * (1 - figure / top):.1f}", f"{wide * 0.76:.1f}",
         f"{high * figure / top:.1f}", f"{one.starts_at:%d %b %H:%M}: {show(figure)} GPU-hours {words}")
        for n, one in enumerate(slices)
        for name, figure, words in (("s4", one.used, "used"), ("s0", one.counts, "count"))
        if figure > 0
    ]  # fmt: skip
    line = " ".join(
        f"{LEFT + (n + 0.5) * wide:.1f},{TOP + high * (1 - one.left):.1f}" for n, one in enumerate(slices)
    )
    every = max(1, -(-len(slices) // 8))
    ticks = [
        (f"{LEFT + (n + 0.5) * wide:.1f}", HEIGHT - 8, f"{one.starts_at:%d %b}")
        for n, one in enumerate(slices)
        if n % every == 0
    ]
    rules = [
        (LEFT, WIDTH - RIGHT, y, y, LEFT - 6, y + 4, show(top * part))
        for part in (0.0, 0.5, 1.0)
        for y in [round(TOP + high * (1 - part), 1)]
    ]
    return format_html(
        '<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}"><g class="axis">{}{}</g>{}'
        '<polyline class="fade" points="{}"/></svg>',
        WIDTH, HEIGHT, "Usage per six hours of the window, and how much of it still counts",
        format_html_join(
            "", '<line x1="{}" x2="{}" y1="{}" y2="{}"/><text x="{}" y="{}" text-anchor="end">{}</text>', rules
        ),
        format_html_join("", '<text x="{}" y="{}" text-anchor="middle">{}</text>', ticks),
        format_html_join(
            "", '<rect class="{}" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>', bars
        ),
        line,
    )  # fmt: skip
