"""The report's plots as inline SVG: a strip of dots per case, and memory over time. Called by page.py; colours are the page's CSS."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from markupsafe import Markup

from gb10.report.axes import NO_MARKUP, drawing, element, jitter, scale, tick_label, ticks
from gb10.report.requests import Series
from gb10.report.words import GIB, figure, finite, objects, say, table

STRIP_WIDTH, LANE, AXIS, EDGE = 350, 52, 38, 12
MARKS = 3
"""Styles of arms: colour and shape both differ; a fourth arm looks like the first again."""


def strip(identity: str, name: str, unit: str, lanes: list[tuple[int, Series]]) -> Markup:
    """One case: a lane per arm (style, values) on one axis from zero, a dot per request, the median as a bar."""
    values = [dot.value for _, one in lanes for dot in one.dots]
    marks = ticks(max(values, default=0.0))
    place = scale(0.0, marks[-1], EDGE, STRIP_WIDTH - EDGE)
    bottom = LANE * len(lanes) + 4
    parts = [_axis_below(marks, place, bottom, unit)]
    for lane, (style, one) in enumerate(lanes):
        parts += _lane(one, style, unit, place, lane * LANE)
    said = "; ".join(f"{one.arm}: {_lane_words(one, unit)}" for _, one in lanes)
    return drawing(
        identity, name, f"Axis from 0 to {say(marks[-1])} {unit}. {said}.", STRIP_WIDTH, bottom + AXIS, parts
    )


def _lane(one: Series, style: int, unit: str, place: Callable[[float], float], top: int) -> list[Markup]:
    label = element(
        "text",
        element("tspan", one.arm if len(one.arm) <= 24 else f"{one.arm[:23]}…", class_="name"),
        element("tspan", _lane_words(one, unit), dx=7),
        x=EDGE + 11,
        y=top + 14,
    )
    middle = top + 35
    parts = [_dot(EDGE + 3, top + 10, style), label]
    if one.median is not None:
        x = place(one.median)
        parts.append(element("line", class_=f"median arm{style}", x1=x, x2=x, y1=middle - 15, y2=middle + 15))
    for index, dot in enumerate(one.dots):
        tip = f"{figure(dot.value)} {unit}, round {dot.round}, line {dot.line}"
        parts.append(_dot(place(dot.value), middle + jitter(index) * 20, style, tip))
    return parts


def _lane_words(one: Series, unit: str) -> str:
    if one.median is None:
        return one.gaps or "no request"
    words = f"median {figure(one.median)} {unit}, n {len(one.dots)}"
    missing = sum(one.unknown.values())
    return f"{words}, {missing} unknown" if missing else words


def _dot(x: float, y: float, style: int, tip: str = "") -> Markup:
    inside = [element("title", tip)] if tip else []
    y = round(y, 1)
    if style % MARKS == 1:
        points = f"{x},{y - 3.6:.1f} {x + 3.6:.1f},{y} {x},{y + 3.6:.1f} {x - 3.6:.1f},{y}"
        return element("polygon", *inside, class_="dot arm1", points=points)
    if style % MARKS == 2:
        return element(
            "rect", *inside, class_="dot arm2", x=f"{x - 2.7:.1f}", y=f"{y - 2.7:.1f}", width=5.4, height=5.4
        )
    return element("circle", *inside, class_="dot arm0", cx=x, cy=y, r=3)


def _axis_below(marks: list[float], place: Callable[[float], float], y: float, unit: str) -> Markup:
    parts = []
    for index, mark in enumerate(marks):
        anchor = "start" if index == 0 else "end" if index == len(marks) - 1 else "middle"
        x = place(mark)
        parts.append(element("line", class_="grid", x1=x, x2=x, y1=4, y2=y))
        parts.append(element("text", tick_label(mark, marks[1]), class_="tick", x=x, y=y + 16, text_anchor=anchor))
    parts.append(element("text", unit, class_="tick", x=place(marks[-1]), y=y + 31, text_anchor="end"))
    parts.append(element("line", class_="axis", x1=place(marks[0]), x2=place(marks[-1]), y1=y, y2=y))
    return NO_MARKUP.join(parts)


@dataclass(frozen=True)
class Shape:
    """Sizes of the memory plot: one for a desk, one for a phone, so that text is never scaled down."""

    name: str
    width: int
    height: int
    badge: int


SHAPES = (Shape("wide", 1040, 346, 18), Shape("narrow", 350, 316, 16))


def memory(run: dict[str, Any], arms: list[str], shape: Shape) -> Markup:
    """Available memory over time, with the floors as dashed lines and the events as numbered ones. Empty when no sample is known."""
    samples = memory_samples(run)
    known = [(at, value) for at, value in samples if value is not None]
    if not known:
        return NO_MARKUP
    events = timed_events(run)
    end = max([at for at, _ in known] + [at for at, _ in events])
    across, upward = ticks(end, 8 if shape.width > 600 else 4), ticks(max(value for _, value in known) / GIB, 5)
    left, top, bottom = 40, 60, shape.height - 40
    x, y = scale(0.0, end or 1.0, left, shape.width - EDGE), scale(0.0, upward[-1], bottom, top)
    parts = [_memory_axes(across, upward, x, y, end or 1.0, left, shape)]
    parts += _arm_bands(run, arms, x, bottom, end)
    for name, value in floors(run):
        floor = finite(value)
        if floor is not None and floor / GIB <= upward[-1]:
            level = y(floor / GIB)
            parts.append(element("line", class_=f"floor {name}", x1=left, x2=shape.width - EDGE, y1=level, y2=level))
    parts += _badges(run, x, shape, top, bottom)
    for piece in _pieces(samples):
        path = "M" + "L".join(f"{x(at)} {y(value / GIB)}" for at, value in piece)
        parts.append(element("path", class_="memory", d=path if len(piece) > 1 else f"{path}h1"))
    lowest = min(known, key=lambda one: one[1])
    parts.append(element("circle", class_="lowest", cx=x(lowest[0]), cy=y(lowest[1] / GIB), r=4))
    said = f"{len(known)} samples, lowest {lowest[1] / GIB:.2f} GiB at {figure(lowest[0])} s, {len(events)} events."
    return drawing(f"memory-{shape.name}", "Available memory over time", said, shape.width, shape.height, parts)


def memory_samples(run: dict[str, Any]) -> list[tuple[float, float | None]]:
    """(seconds, bytes or None) of each sample whose time is known."""
    found = [(finite(one.get("at_s")), finite(one.get("available_bytes"))) for one in objects(run.get("memory"))]
    return sorted(((at, value) for at, value in found if at is not None), key=lambda one: one[0])


def timed_events(run: dict[str, Any]) -> list[tuple[float, int]]:
    """(seconds, number in the list of events) of each event whose time is known."""
    found = [(finite(one.get("at_s")), number) for number, one in enumerate(objects(run.get("events")), 1)]
    return [(at, number) for at, number in found if at is not None]


def floors(run: dict[str, Any]) -> list[tuple[str, Any]]:
    """The guard's floors by the class that draws them."""
    given = table(run.get("floors"))
    return [("sustained", given.get("sustained_below_bytes")), ("stop", given.get("stop_below_bytes"))]


def _memory_axes(
    across: list[float],
    upward: list[float],
    x: Callable[[float], float],
    y: Callable[[float], float],
    end: float,
    left: int,
    shape: Shape,
) -> Markup:
    right, bottom = shape.width - EDGE, y(0.0)
    parts = [element("text", "GiB available", class_="tick", x=2, y=12)]
    for mark in upward:
        parts.append(element("line", class_="grid", x1=left, x2=right, y1=y(mark), y2=y(mark)))
        label = tick_label(mark, upward[1])
        parts.append(element("text", label, class_="tick", x=left - 6, y=y(mark) + 4, text_anchor="end"))
    for mark in across:
        if mark <= end:
            anchor = "start" if mark == 0 else "end" if x(mark) > right - 14 else "middle"
            label = tick_label(mark, across[1]) + (" s" if mark == 0 else "")
            parts.append(element("text", label, class_="tick", x=x(mark), y=bottom + 30, text_anchor=anchor))
            parts.append(element("line", class_="axis", x1=x(mark), x2=x(mark), y1=bottom + 12, y2=bottom + 17))
    parts.append(element("line", class_="axis", x1=left, x2=right, y1=bottom, y2=bottom))
    return NO_MARKUP.join(parts)


def _arm_bands(
    run: dict[str, Any], arms: list[str], x: Callable[[float], float], bottom: int, end: float
) -> list[Markup]:
    """Under the axis: which arm was up, from its first event to the next arm's."""
    events = [(finite(one.get("at_s")), one.get("arm")) for one in objects(run.get("events"))]
    starts: list[tuple[float, Any]] = []
    for at, arm in events:
        if at is not None and (not starts or starts[-1][1] != arm):
            starts.append((at, arm))
    parts = []
    for (start, arm), (stop, _) in pairwise([*starts, (end, None)]):
        if arm in arms:
            width = max(1.0, round(x(stop) - x(start), 1))
            style = f"band arm{arms.index(arm) % MARKS}"
            parts.append(
                element("rect", element("title", arm), class_=style, x=x(start), y=bottom + 4, width=width, height=7)
            )
    return parts


def _badges(run: dict[str, Any], x: Callable[[float], float], shape: Shape, top: int, bottom: int) -> list[Markup]:
    """A line for each event; its number in the first of two rows that has room for it, else only the line."""
    lines, numbers, free = [], [], [0.0, 0.0]
    for at, number in sorted(timed_events(run)):
        place = x(at)
        lines.append(element("line", class_="event", x1=place, x2=place, y1=top - 10, y2=bottom))
        row = next((row for row in (0, 1) if place >= free[row]), None)
        if row is not None:
            y = top - 14 - 14 * row
            numbers.append(element("text", str(number), class_="badge", x=place, y=y, text_anchor="middle"))
            free[row] = place + shape.badge
    return lines + numbers


def _pieces(samples: list[tuple[float, float | None]]) -> list[list[tuple[float, float]]]:
    """Runs of known samples: an unknown one breaks the line."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for at, value in samples:
        if value is None:
            pieces.append([])
        else:
            pieces[-1].append((at, value))
    return [piece for piece in pieces if piece]
