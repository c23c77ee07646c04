"""A window of a profile as a strip: GPU busy with and without graphs, the longest ranges, the longest gaps. SVG; called by profile.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from markupsafe import Markup

from gb10.report.axes import NO_MARKUP, drawing, element, scale, tick_label, ticks
from gb10.report.plots import EDGE, SHAPES, Shape
from gb10.report.words import finite, objects, plain, table

LANE, HEIGHT, HEAD = 46, 24, 16
GAPS_DRAWN = 3
NAMED = {1040: 100, 350: 40}
"""Letters of a range's name that fit each width."""
STYLE = (
    ".lane{fill:#eceeec}.busy{fill:#0068a8}.graph{fill:#b84a00}.range{fill:#6b4fa0}.gap{stroke:#b3261e;stroke-width:2}"
    "text{font:12px system-ui,sans-serif;fill:#1b1e20}.axis{stroke:#565d61}.heading{font-weight:600;font-size:15px}"
    ".paper{fill:#ffffff}@media (prefers-color-scheme:dark){.paper{fill:#15181a}text{fill:#e8e9e6}.lane{fill:#1e2225}"
    ".busy{fill:#62b5ee}.graph{fill:#f2a24a}.range{fill:#bba3ee}.gap{stroke:#ff8f85}}"
)


def strips(index: int, window: dict[str, Any]) -> list[tuple[str, Markup]]:
    """The strip in each of the page's widths; none where the window has no timeline."""
    return (
        [(shape.name, strip(f"timeline-{index}-{shape.name}", window, shape)) for shape in SHAPES]
        if _line(window)
        else []
    )


def _line(window: dict[str, Any]) -> dict[str, Any]:
    line = table(window.get("timeline"))
    return line if line.get("busy") and finite(line.get("bin_ns")) else {}


def strip(identity: str, window: dict[str, Any], shape: Shape) -> Markup:
    """One window. Each lane has a bar a bin, as high as the share of the bin that was busy."""
    line, name = _line(window), plain(window.get("name"))
    parts, height = _lanes(window, line, shape)
    said = f"GPU busy {finite(window.get('gpu_busy_ratio')) or 0:.1%} of the window, {len(objects(window.get('gaps')))} gaps listed."
    return drawing(identity, f"Timeline of {name}", said, shape.width, height, parts)


def _lanes(window: dict[str, Any], line: dict[str, Any], shape: Shape) -> tuple[list[Markup], int]:
    bin_ns, bins = float(line["bin_ns"]), len(line["busy"])
    whole_ms = bin_ns * bins / 1e6
    x = scale(0.0, bins, EDGE, shape.width - EDGE)
    lanes: list[tuple[str, list[tuple[str, list[int]]]]] = []
    if window.get("gpu_span_ns") is not None:
        busy = [("busy", line["busy"]), ("graph", line["graph"])]
        lanes.append(("GPU busy, from graphs in the second colour", busy))
    lanes += [(plain(each.get("name")), [("range", each["ns"])]) for each in objects(line.get("ranges"))]
    parts, top = [], 0
    for label, series in lanes:
        fits = NAMED.get(shape.width, 40)
        parts.append(
            element("text", label if len(label) <= fits else f"{label[: fits - 1]}…", class_="tick", x=EDGE, y=top + 12)
        )
        parts.append(element("rect", class_="lane", x=EDGE, y=top + HEAD, width=shape.width - 2 * EDGE, height=HEIGHT))
        parts += [_bars(kind, values, bin_ns, x, top + HEAD + HEIGHT) for kind, values in series]
        top += LANE
    parts += _gaps(window, line, x, HEAD + HEIGHT + 4)
    for mark in ticks(whole_ms, 8 if shape.width > 600 else 4):
        if mark <= whole_ms:
            at = round(EDGE + mark / whole_ms * (shape.width - 2 * EDGE), 1) if whole_ms else EDGE
            anchor = "start" if mark == 0 else "end" if at > shape.width - 30 else "middle"
            step = ticks(whole_ms, 8)[1]
            label = tick_label(mark, step) + (" ms" if mark == 0 else "")
            parts.append(element("text", label, class_="tick", x=at, y=top + 22, text_anchor=anchor))
            parts.append(element("line", class_="axis", x1=at, x2=at, y1=top + 2, y2=top + 8))
    return parts, top + 30


def _bars(kind: str, values: list[int], bin_ns: float, x: Callable[[float], float], bottom: int) -> Markup:
    """Neighbours of equal height are one bar."""
    path, start = [], 0
    heights = [round(min(value / bin_ns, 1.0) * HEIGHT, 1) if bin_ns else 0.0 for value in values]
    for index in range(1, len(heights) + 1):
        if index == len(heights) or heights[index] != heights[start]:
            if heights[start]:
                path.append(f"M{x(start)} {bottom}V{bottom - heights[start]:.1f}H{x(index)}V{bottom}")
            start = index
    return element("path", class_=kind, d="".join(path)) if path else NO_MARKUP


def _gaps(window: dict[str, Any], line: dict[str, Any], x: Callable[[float], float], y: int) -> list[Markup]:
    """The longest gaps, as marks under the lane of the GPU."""
    parts = []
    for gap in objects(window.get("gaps"))[:GAPS_DRAWN]:
        begin = gap["at_ns"] / line["bin_ns"]
        end = begin + gap["length_ns"] / line["bin_ns"]
        left, right = x(begin), max(x(end), x(begin) + 2)
        tip = element("title", f"no GPU activity for {gap['length_ns'] / 1e6:.3f} ms")
        parts.append(element("line", tip, class_="gap", x1=left, x2=right, y1=y, y2=y))
    return parts


def standing_alone(windows: list[tuple[Any, dict[str, Any]]]) -> Markup:
    """One SVG file for all windows, one under the other, with a style of its own."""
    shape, parts, top = SHAPES[0], [], 10
    for name, window in windows:
        line = _line(window)
        parts.append(element("text", plain(name), class_="heading", x=EDGE, y=top + 14))
        inner, height = (
            _lanes(window, line, shape) if line else ([element("text", "no GPU activity", x=EDGE, y=20)], 30)
        )
        parts.append(element("g", *inner, transform=f"translate(0 {top + 22})"))
        top += height + 40
    paper = element("rect", class_="paper", width=shape.width, height=top)
    return drawing(
        "profile",
        "GPU timeline",
        f"{len(windows)} windows.",
        shape.width,
        top,
        [element("style", Markup(STYLE)), paper, *parts],
    )
