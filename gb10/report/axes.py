"""Scales and round ticks, and SVG elements whose text is escaped. Called by plots.py."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from markupsafe import Markup

from gb10.report.words import visible

NO_MARKUP = Markup("")


def ticks(top: float, wanted: int = 5) -> list[float]:
    """Round numbers from zero to just past `top`: steps of 1, 2 or 5 times a power of ten, about `wanted` of them."""
    if top <= 0:
        return [0.0, 1.0]
    rough = top / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    return [index * step for index in range(math.ceil(top / step - 1e-9) + 1)]


def tick_label(value: float, step: float) -> str:
    """A tick's number with as many decimals as its step needs, and no more."""
    if value >= 1e6:
        return f"{value:.4g}"
    return f"{value:.{max(0, -math.floor(math.log10(step) + 1e-9))}f}"


def scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """From a value to its place in the drawing."""
    width = (high - low) or 1.0
    return lambda value: round(start + (value - low) / width * (end - start), 1)


def jitter(index: int) -> float:
    """A place between -0.5 and 0.5 for the dot of this index: spread evenly, the same every time."""
    return (index * 0.6180339887 + 0.5) % 1.0 - 0.5


def element(name: str, *children: Any, **attributes: Any) -> Markup:
    """One SVG element. Attribute names: `class_` is class, an underscore is a dash. Text and values are escaped."""
    text = Markup("<{}").format(Markup(name))
    for key, value in attributes.items():
        if value is not None:
            text += Markup(' {}="{}"').format(Markup(key.rstrip("_").replace("_", "-")), visible(value))
    inner = NO_MARKUP.join(child if isinstance(child, Markup) else visible(child) for child in children)
    return text + Markup(">{}</{}>").format(inner, Markup(name)) if children else text + Markup("/>")


def drawing(identity: str, title: str, description: str, width: int, height: int, parts: list[Markup]) -> Markup:
    """An SVG picture with a name and a description for those who do not see it."""
    return element(
        "svg",
        element("title", title, id=f"{identity}-title"),
        element("desc", description, id=f"{identity}-desc"),
        *parts,
        viewBox=f"0 0 {width} {height}",
        role="img",
        aria_labelledby=f"{identity}-title",
        aria_describedby=f"{identity}-desc",
        xmlns="http://www.w3.org/2000/svg",
    )
