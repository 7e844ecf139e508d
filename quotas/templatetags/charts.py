"""Charts as SVG from our own figures: bars by day, and how a budget goes down; each has its table beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from django import template
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from quotas.core.resources import show_cpus

register = template.Library()

WIDTH, HEIGHT = 720, 200
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 12, 24
#: Colours there are for parts; the others share the last.
PARTS: Final = 5


@dataclass(frozen=True, slots=True)
class Bars:
    """A stack a day: what each part adds to it."""

    labels: Sequence[str]
    parts: Sequence[tuple[str, Sequence[float]]]  # name, one figure a label
    unit: str
    title: str
    #: The part that is drawn as an outline, because it is not settled.
    hollow: str = ""

    @property
    def rows(self) -> list[tuple[str, list[float]]]:
        """The same figures as the rows of a table."""
        return [(label, [figures[n] for _, figures in self.parts]) for n, label in enumerate(self.labels)]

    @property
    def legend(self) -> list[tuple[str, int]]:
        return [(name, self.colour(number)) for number, (name, _) in enumerate(self.parts)]

    def colour(self, part: int) -> int:
        return PARTS if self.parts[part][0] == self.hollow else min(part, PARTS - 1)


@dataclass(frozen=True, slots=True)
class Burn:
    """A budget over its period: what was left at the end of each day, as shares of the whole."""

    title: str
    #: Days of the whole period, and what was left (1 to 0) at the end of each that has been.
    days: int
    left: Sequence[float]
    #: What is set aside for jobs that run, as a share; the forecast goes on from what is left without it.
    held: float
    #: Day (from 0, with a fraction) at which nothing is left; None = not in this period.
    out_day: float | None
    first: str
    last: str


@register.simple_tag
def bar_chart(bars: Bars) -> SafeString:
    """Stacked bars, with three lines to read heights from."""
    sums = [sum(figures) for _, figures in bars.rows]
    top = nice(max(sums, default=0))
    wide = (WIDTH - LEFT - RIGHT) / max(len(bars.labels), 1)
    high = HEIGHT - TOP - BOTTOM
    shapes = []
    for n, (label, figures) in enumerate(bars.rows):
        base = float(TOP + high)
        for part, figure in enumerate(figures):
            height = high * figure / top
            base -= height
            if height > 0:
                shapes.append(
                    (
                        bars.colour(part), f"{LEFT + n * wide + wide * 0.12:.1f}", f"{base:.1f}",
                        f"{wide * 0.76:.1f}", f"{max(height, 0.5):.1f}",
                        f"{label}: {show(figure)} {bars.unit} {bars.parts[part][0]}",
                    )
                )  # fmt: skip
    every = max(1, -(-len(bars.labels) // 8))
    ticks = [
        (f"{LEFT + (n + 0.5) * wide:.1f}", HEIGHT - 8, label[5:] if len(label) == 10 else label)
        for n, label in enumerate(bars.labels)
        if n % every == 0
    ]
    return format_html(
        '<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}"><g class="axis">{}{}</g>{}</svg>',
        WIDTH, HEIGHT, bars.title, _lines(top, high),
        format_html_join("", '<text x="{}" y="{}" text-anchor="middle">{}</text>', ticks),
        format_html_join(
            "",
            '<rect class="s{}" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>',
            shapes,
        ),
    )  # fmt: skip


@register.simple_tag
def burn_chart(burn: Burn) -> SafeString:
    """What is left day by day, the even pace as a thin line, and where it goes at the pace of late."""
    high, wide = HEIGHT - TOP - BOTTOM, WIDTH - LEFT - RIGHT

    def at(day: float, left: float) -> str:
        return f"{LEFT + wide * day / max(burn.days, 1):.1f},{TOP + high * (1 - max(min(left, 1), 0)):.1f}"

    line = " ".join([at(0, 1), *(at(day + 1, left) for day, left in enumerate(burn.left))])
    now = len(burn.left)
    rest = burn.left[-1] - burn.held if burn.left else 1.0
    ahead = "" if burn.out_day is None else f"{at(now, rest)} {at(max(burn.out_day, now), 0)}"
    held = f"{at(now, burn.left[-1])} {at(now, rest)}" if burn.left and burn.held else ""
    return format_html(
        '<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}"><g class="axis">{}'
        '<text x="{}" y="{}">{}</text><text x="{}" y="{}" text-anchor="end">{}</text></g>'
        '<polyline class="even" points="{} {}"/><polyline class="held" points="{}"/>'
        '<polyline class="ahead" points="{}"/><polyline class="left" points="{}"/></svg>',
        WIDTH, HEIGHT, burn.title,
        format_html_join(
            "",
            '<line x1="{}" x2="{}" y1="{}" y2="{}"/><text x="{}" y="{}" text-anchor="end">{} %</text>',
            [
                (LEFT, WIDTH - RIGHT, y, y, LEFT - 6, y + 4, share)
                for share in (0, 50, 100)
                for y in [round(TOP + high * (1 - share / 100), 1)]
            ],
        ),
        LEFT, HEIGHT - 6, burn.first, WIDTH - RIGHT, HEIGHT - 6, burn.last,
        at(0, 1), at(burn.days, 0), held, ahead, line,
    )  # fmt: skip


def _lines(top: float, high: int) -> SafeString:
    rows = []
    for share in (0, 0.5, 1):
        y = round(TOP + high * (1 - share), 1)
        rows.append((LEFT, WIDTH - RIGHT, y, y, LEFT - 6, y + 4, show(top * share)))
    return format_html_join(
        "", '<line x1="{}" x2="{}" y1="{}" y2="{}"/><text x="{}" y="{}" text-anchor="end">{}</text>', rows
    )


def nice(most: float) -> float:
    """The next of 1, 2, 5, 10, 20 ...: where the axis ends."""
    step = 1.0
    while step / 10 >= most > 0:
        step /= 10
    while True:
        for times in (1, 2, 5):
            if most <= step * times:
                return step * times
        step *= 10


@register.filter
def show(figure: float) -> str:
    """`1234.5` -> `1,234`; small figures with what matters of them."""
    if abs(figure) >= 100 or figure == int(figure):
        return f"{figure:,.0f}"
    if abs(figure) >= 1:
        return f"{figure:.1f}"
    return f"{float(f'{figure:.2g}'):.12f}".rstrip("0").rstrip(".")  # two digits, and never as 5e-05


@register.filter
def hours(milli_seconds: int) -> str:
    """Thousandths of a GPU or core times seconds, as hours: `7200000` -> `2`."""
    figure = milli_seconds / 3_600_000
    return "<0.001" if 0 < figure < 0.001 else show(figure)


@register.filter
def money(micros: int) -> str:
    return f"{micros / 1_000_000:,.2f}"


@register.filter
def cores(millis: int) -> str:
    return show_cpus(millis)
