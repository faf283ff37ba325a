"""Small plots as inline SVG: lines and bars. Colours come from the page's style sheet.

No plot library: a page opens from a file without a network, follows the reader's light or dark
scheme, and stays small (15 to 40 kB). Libraries that draw in browsers add megabytes of script,
matplotlib fixed colours.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os.path import commonprefix

from extproc.pages.page import escape

_WIDTH, _HEIGHT = 640, 310
# Room for labels of 22 units, which is what a reader of a telephone needs: the page's style sheet
# sets them.
_LEFT, _RIGHT, _TOP, _BOTTOM = 88, 28, 24, 60
_NOTHING = '<p class="nothing">Nothing to plot.</p>'
_DESK, _TELEPHONE = 8, 12.5  # units that a letter takes: on a desk, on a telephone
_MARKED_POINTS = 16


@dataclass(frozen=True, slots=True)
class Series:
    """A line: points in the order of x. A `nan` leaves a gap."""

    label: str
    xs: Iterable[float]
    ys: Iterable[float]


@dataclass(frozen=True, slots=True)
class Dot:
    """A measured point of a line, the ends of its interval if there is one; hollow if it does not hold."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    is_hollow: bool = False
    title: str = ""


@dataclass(frozen=True, slots=True)
class Bar:
    """A value, and its interval's ends if it has one; hollow if it does not hold. `colour` counts from 0."""

    label: str
    value: float
    colour: int = 0
    low: float | None = None
    high: float | None = None
    is_hollow: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """Maps values in `[low, high]` to pixels; `log` axes hold positive values only."""

    low: float
    high: float
    start_px: float
    end_px: float
    is_log: bool = False

    def px(self, value: float) -> float:
        low, high, at = self.low, self.high, value
        if self.is_log:
            low, high, at = math.log10(low), math.log10(high), math.log10(value)
        return self.start_px + (self.end_px - self.start_px) * (at - low) / (high - low)

    def ticks(self) -> list[float]:
        """About five round numbers (1, 2 or 5 times a power of ten, or such steps apart) within the range."""
        low, high = self.low, self.high
        if self.is_log:
            powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
            parts = (1, 2, 5) if high < 1000 * low else (1,)
            every = [part * 10.0**power for power in powers for part in parts]
            found = [tick for tick in every if low <= tick <= high]
            if len(found) > 2:
                return found  # a narrow one has the ticks of a plain axis
        size = 10.0 ** math.floor(math.log10((high - low) / 5))
        step = next(part * size for part in (1, 2, 5, 10) if (high - low) / (part * size) <= 6)
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        return [index * step for index in range(first, last + 1)]


def number(value: float) -> str:
    """A short label: 1200 reads `1.2k`, 0.00021 reads `0.00021`."""
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{suffix}"
    return f"{value:.3g}"


def lines(
    series: Sequence[Series],
    *,
    x_label: str,
    y_label: str,
    is_log_x: bool = False,
    is_log_y: bool = False,
) -> str:
    """A line plot with a legend; says so when there is nothing to plot."""
    drawn = [_drawable(line, is_log_x=is_log_x, is_log_y=is_log_y) for line in series]
    points = [point for line in drawn for point in line]
    if not points:
        return _NOTHING

    xs, ys = [x for x, _ in points], [y for _, y in points]
    # An axis that begins near its values makes a small difference look large.
    from_zero = [] if is_log_y else [0.0]
    x_axis = _axis(xs, _LEFT, _WIDTH - _RIGHT, is_log=is_log_x)
    y_axis = _axis([*ys, *from_zero], _HEIGHT - _BOTTOM, _TOP, is_log=is_log_y)
    paths = [
        _path(index, line.label, x_axis, y_axis, kept)
        for index, (line, kept) in enumerate(zip(series, drawn, strict=True))
    ]
    ticks = [_tick(x_axis.px(tick), tick) for tick in x_axis.ticks()]
    labels = _labels(x_label, y_label, is_log_x=is_log_x, is_log_y=is_log_y)
    legend = {_css(index): line.label for index, line in enumerate(series)}
    parts = [*_rules(y_axis), *ticks, *paths, *labels]
    return _figure(parts, legend, f"{y_label} by {x_label}")


def dotted(
    series: Mapping[str, Sequence[Dot]],
    *,
    x_label: str,
    y_label: str,
    is_log_x: bool = False,
    is_log_y: bool = False,
) -> str:
    """A line per name through its dots, with whiskers; the x axis has a tick at every dot."""
    kept: dict[str, list[Dot]] = {}
    for label, dots in series.items():
        drawable = [dot for dot in dots if math.isfinite(dot.y) and (dot.y > 0 or not is_log_y)]
        if drawable:
            kept[label] = drawable
    if not kept:
        return _NOTHING

    every = [dot for dots in kept.values() for dot in dots]
    places = sorted({dot.x for dot in every})
    x_axis = _axis_of_places(places, is_log=is_log_x)
    y_axis = _axis_of_whiskers(every, is_log=is_log_y)
    # Side by side, or else one whisker would hide the other.
    step_px = min(6.0, 20.0 / len(kept))
    middle = (len(kept) - 1) / 2
    strokes = [
        part
        for index, dots in enumerate(kept.values())
        for part in _draw(index, dots, x_axis, y_axis, step_px * (index - middle))
    ]
    ticks = [_tick(x_axis.px(place), place) for place in places]
    labels = _labels(x_label, y_label, is_log_x=is_log_x, is_log_y=is_log_y)
    legend = {_css(index): label for index, label in enumerate(kept)}
    parts = [*_rules(y_axis), *strokes, *ticks, *labels]
    return _figure(parts, legend, f"{y_label} by {x_label}")


def _axis_of_places(places: Sequence[float], *, is_log: bool) -> Axis:
    """An axis with room at both ends; a sole place stands in the middle."""
    first, last = places[0], places[-1]
    if first == last:
        first, last = first / 2, first * (2 if is_log else 1.5)
    return Axis(first, last, _LEFT + 12, _WIDTH - _RIGHT - 12, is_log=is_log)


def _axis_of_whiskers(dots: Sequence[Dot], *, is_log: bool) -> Axis:
    """An axis for dots and their whiskers, as far as these are near what was measured.

    Two runs may leave an interval that is wider than anything measured: its whisker ends with the
    plot.
    """
    lowest, highest = min(dot.y for dot in dots), max(dot.y for dot in dots)
    floor, ceiling = (lowest / 10, highest * 10) if is_log else (0.0, highest * 1.6)
    ends = [end for dot in dots for end in (dot.y, dot.low, dot.high) if end is not None]
    shown = [min(max(end, floor), ceiling) for end in ends]
    return _axis(shown if is_log else [0.0, *shown], _HEIGHT - _BOTTOM, _TOP, is_log=is_log)


def _draw(
    index: int, dots: Sequence[Dot], x_axis: Axis, y_axis: Axis, aside_px: float
) -> Iterator[str]:
    places = [(x_axis.px(dot.x) + aside_px, y_axis.px(dot.y)) for dot in dots]
    yield f'<polyline class="line {_css(index)}" points="{_steps(places)}"/>'
    for dot, (x, y) in zip(dots, places, strict=True):
        if dot.low is not None and dot.high is not None:
            low, high = (min(max(end, y_axis.low), y_axis.high) for end in (dot.low, dot.high))
            yield _stroke(f"spread {_css(index)}", (x, y_axis.px(low)), (x, y_axis.px(high)))
        css = f"dot {_css(index)}{' hollow' if dot.is_hollow else ''}"
        yield _circle(css, (x, y), 4, dot.title)


def bars(items: Sequence[Bar], *, y_label: str) -> str:
    """A bar per item with its value above it, and whiskers where it has an interval."""
    items = [item for item in items if math.isfinite(item.value)]
    if not items:
        return _NOTHING

    top = max(max(item.value, item.high or 0.0) for item in items)
    y_axis = Axis(0.0, top * 1.12 or 1.0, _HEIGHT - _BOTTOM, _TOP)
    slot = (_WIDTH - _LEFT - _RIGHT) / len(items)
    # Names that do not fit below their bars stand above the plot, if each has a colour of its own.
    longest = max(len(item.label) for item in items)
    has_own_colours = len({item.colour for item in items}) == len(items) > 1
    has_legend = longest * _TELEPHONE > slot and has_own_colours
    labels = [item.label for item in items]
    if has_legend:
        labels = [""] * len(items)
    elif longest * _TELEPHONE > slot:
        labels = _cut_shared(labels)
    # All values or none: a few of them would look chosen.
    has_values = all(len(number(item.value)) * _DESK <= slot for item in items)
    texts = [*labels, *(number(item.value) for item in items if has_values)]
    # On a telephone only each so-manieth bar has room for its texts.
    every = max(1, math.ceil(max(map(len, texts)) * _TELEPHONE / slot))
    drawn = [
        _bar(
            item,
            label,
            _LEFT + (index + 0.5) * slot,
            slot,
            y_axis,
            is_spare=index % every > 0,
            has_value=has_values,
        )
        for index, (item, label) in enumerate(zip(items, labels, strict=True))
    ]
    legend = {_css(item.colour): item.label for item in items if has_legend}
    return _figure([*_rules(y_axis), *drawn, *_labels("", y_label)], legend, y_label)


def _cut_shared(labels: Sequence[str]) -> list[str]:
    """Leaves out the pieces at either end that all names have: addresses differ in one of theirs."""
    rows = [re.findall(r"[^.:/-]+[.:/-]?|[.:/-]", label) for label in labels]
    spare = max(0, min(map(len, rows)) - 1)
    both = (rows, [row[::-1] for row in rows])
    head, tail = [len(commonprefix(each)) for each in both]  # noqa: RUF071  # of lists: by pieces
    head = min(head, spare)
    tail = min(tail, spare - head)
    return [
        f"{'…' * (head > 0)}{''.join(row[head : len(row) - tail]).rstrip('.:/-')}{'…' * (tail > 0)}"
        for row in rows
    ]


def _drawable(line: Series, *, is_log_x: bool, is_log_y: bool) -> list[tuple[float, float]]:
    def fits(value: float, *, is_log: bool) -> bool:
        return math.isfinite(value) and (value > 0 or not is_log)

    return [
        (x, y)
        for x, y in zip(line.xs, line.ys, strict=True)
        if fits(x, is_log=is_log_x) and fits(y, is_log=is_log_y)
    ]


def _axis(values: Sequence[float], start_px: float, end_px: float, *, is_log: bool) -> Axis:
    low, high = min(values), max(values)
    if is_log:
        return Axis(low / 1.05, high * 1.05, start_px, end_px, is_log=True)
    if low == high:
        # A single value stands in the middle.
        half = 0.05 * abs(high)
        return Axis(low - half, high + half or 1.0, start_px, end_px)
    low = 0.0 if 0 < low < high / 2 else low
    return Axis(low, high + 0.05 * (high - low), start_px, end_px)


def _path(
    index: int, label: str, x_axis: Axis, y_axis: Axis, points: Sequence[tuple[float, float]]
) -> str:
    places = [(x_axis.px(x), y_axis.px(y)) for x, y in points]
    title = f"<title>{escape(label)}</title>"
    line = f'<polyline class="line {_css(index)}" points="{_steps(places)}">{title}</polyline>'
    if len(points) > _MARKED_POINTS:
        return line
    # A few points were measured one by one, and a single one would not be seen at all.
    marks = [
        _circle(f"dot {_css(index)}", place, 3, f"{label}: {y:.4g} at {x:.4g}")
        for place, (x, y) in zip(places, points, strict=True)
    ]
    return line + "".join(marks)


def _css(index: int) -> str:
    """The class of a colour; after six colours, dashes."""
    return f"s{index % 6}" if index < 6 else f"s{index % 6} d{index // 6 % 3}"


def _steps(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


def _circle(css: str, place: tuple[float, float], radius: int, title: str) -> str:
    x, y = place
    shape = f'class="{css}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}"'
    return f"<circle {shape}><title>{escape(title)}</title></circle>"


def _tick(x: float, value: float) -> str:
    floor = _HEIGHT - _BOTTOM
    return _stroke("tick", (x, floor), (x, floor + 4)) + _text(x, floor + 25, number(value))


def _rules(y_axis: Axis) -> Iterator[str]:
    for tick in y_axis.ticks():
        y = y_axis.px(tick)
        yield _stroke("rule", (_LEFT, y), (_WIDTH - _RIGHT, y))
        yield _text(_LEFT - 6, y + 5, number(tick), css="y")


def _labels(
    x_label: str, y_label: str, *, is_log_x: bool = False, is_log_y: bool = False
) -> Iterator[str]:
    x_label, y_label = x_label + ", log scale" * is_log_x, y_label + ", log scale" * is_log_y
    yield _text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 8, x_label, css="axis")
    middle = (_TOP + _HEIGHT - _BOTTOM) / 2
    yield f'<g transform="translate(20 {middle}) rotate(-90)">{_text(0, 0, y_label, css="axis")}</g>'


def _bar(
    item: Bar, label: str, x: float, slot: float, y_axis: Axis, *, is_spare: bool, has_value: bool
) -> str:
    """With its value above, if it `has_value`; a telephone has no room for the texts of `is_spare` bars."""
    top, bottom, width = y_axis.px(item.value), y_axis.px(0.0), min(0.6 * slot, 90.0)
    shape = f'x="{x - width / 2:.1f}" y="{top:.1f}" width="{width:.1f}" height="{bottom - top:.1f}"'
    title = f"<title>{escape(item.label)}: {item.value:.6g}</title>"
    spare = " spare" if is_spare else ""
    # The end of a name, where names differ, is what fits; nothing if only scraps do.
    room = int(slot / _DESK)
    label = label if len(label) <= room else f"…{label[1 - room :]}" if room > 3 else ""
    parts = [
        f'<rect class="bar s{item.colour % 6}{" hollow" if item.is_hollow else ""}" {shape}>{title}</rect>',
        _text(x, bottom + 25, label, css=f"x{spare}"),
    ]
    if item.low is not None and item.high is not None:
        top = y_axis.px(item.high)
        parts.append(_stroke("whisker", (x, top), (x, y_axis.px(max(0.0, item.low)))))
    if has_value:
        parts.append(_text(x, top - 5, number(item.value), css=f"value{spare}"))
    return "".join(parts)


def _text(x: float, y: float, text: str, *, css: str = "x") -> str:
    return f'<text class="{css}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _stroke(css: str, start: tuple[float, float], end: tuple[float, float]) -> str:
    (x1, y1), (x2, y2) = start, end
    return f'<line class="{css}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _figure(body: Sequence[str], legend: Mapping[str, str], name: str) -> str:
    """`legend`: what each class of lines or bars is; `name`: what a screen reader says."""
    keys = "".join(
        f'<span class="key {css}">{escape(label)}</span>' for css, label in legend.items()
    )
    head = f'<div class="legend">{keys}</div>' if legend else ""
    frame = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(name)}"'
    return f"{head}<svg {frame}>{''.join(body)}</svg>"
