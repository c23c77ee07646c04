"""Values of run.json, comparison.json and records as words: numbers with units, unknown with its reason, hostile text made visible.

Used by every other module of the report; nothing here knows HTML.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from typing import Any

from markupsafe import Markup

NOT_RECORDED = "not recorded"
GIB = 1024**3
METRICS = {
    "ttft_s": ("first token", "s"),
    "ttft_content_s": ("first content token", "s"),
    "decode_tokens_per_s": ("decode speed", "tokens/s"),
    "inter_token_p95_s": ("time between tokens, p95", "s"),
    "duration_s": ("whole request", "s"),
    "group_tokens_per_s": ("total throughput", "tokens/s"),
}
"""Each metric as words and unit. One that is not here is shown under its own name."""

_MARKDOWN = re.compile(r"([\\`*_\[\]~#$])")


def unknown(why: Any = None) -> str:
    """What stands where a fact is missing: never a zero, never a blank."""
    return f"unknown ({why or NOT_RECORDED})"


def reason(value: Any) -> str | None:
    """Why `value` is unknown, or None when it is known."""
    if value is None:
        return NOT_RECORDED
    if isinstance(value, dict) and "unknown" in value:
        return plain(value["unknown"] or NOT_RECORDED)
    if value == "unknown":
        return "no reason recorded"
    return None


def table(value: Any) -> dict[str, Any]:
    """`value` where it is an object of facts, else an empty one: what was asked of it is then unknown."""
    return value if isinstance(value, dict) and "unknown" not in value else {}


def objects(value: Any) -> list[dict[str, Any]]:
    """The objects of a list; none when there is no list."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def plain(value: Any) -> str:
    """Text as it is, anything else as compact JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)


def say(value: Any, unit: str = "") -> str:
    """A fact in words: `unknown (why)`, a rounded number with its unit, a list by commas, or the text itself."""
    why = reason(value)
    if why is not None:
        return unknown(why)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return figure(value, unit)
    if isinstance(value, list):
        return ", ".join(plain(item) for item in value) or "none"
    return plain(value) or "empty"


def finite(value: Any) -> float | None:
    """`value` as a float that can be drawn, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def figure(value: Any, unit: str = "") -> str:
    """A number to four significant digits (whole numbers in full), with its unit; what is no finite number is unknown."""
    number = finite(value)
    if number is None:
        return unknown(reason(value) or "not a finite number")
    if isinstance(value, int) or number == 0:
        text = str(int(number)) if number == 0 else str(value)
    elif abs(number) >= 1e12:
        text = f"{number:.3e}"
    else:
        text = f"{number:.{min(6, max(0, 3 - math.floor(math.log10(abs(number)))))}f}"
    return f"{text} {unit}".strip()


def gib(value: Any) -> str:
    """Bytes as GiB."""
    number = finite(value)
    return figure(value) if number is None else f"{number / GIB:.2f} GiB"


def seconds(value: Any) -> str:
    """Seconds since the start of a run, to a tenth."""
    number = finite(value)
    return figure(value) if number is None else f"{number:.1f} s"


def span(low: Any, high: Any) -> str:
    """A range of two numbers."""
    return f"{figure(low)} to {figure(high)}"


def count(number: int, noun: str) -> str:
    """`1 request`, `2 requests`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def metric(name: str) -> str:
    """A metric's name with its unit, for a table."""
    words, unit = METRICS.get(name, (name, ""))
    return f"{words}, {unit}" if unit else words


def visible(text: Any) -> str:
    """Text in which nothing acts unseen: control, direction and other invisible characters become ⟨U+202E⟩, lone surrogates too."""
    return "".join(_seen(character) for character in str(text))


def clip(text: str, limit: int = 1200) -> tuple[str, int]:
    """The beginning of `text`, and how many characters were left off."""
    return text[:limit], max(0, len(text) - limit)


def markdown_text(text: Any) -> str:
    """Text that Markdown shows as itself, on one line, also in a table's cell; nothing becomes a link, a heading or HTML."""
    line = " ⏎ ".join(visible(text).splitlines())
    line = _MARKDOWN.sub(r"\\\1", line).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    line = line.replace("|", "&#124;").replace("://", ":&#47;&#47;").replace("www.", "www&#46;").replace("@", "&#64;")
    line = re.sub(r"^(\d+)([.)])(?=\s|$)", r"\1\\\2", line)
    return f"\\{line}" if line[:1] in {"-", "+", "="} else line


def markdown_code(text: Any) -> Markup:
    """Text as one code span, whatever backticks it holds. Not for a table's cell: a bar would end the cell."""
    line = " ⏎ ".join(visible(text).splitlines())
    fence = "`" * (1 + max((len(run) for run in re.findall(r"`+", line)), default=0))
    return Markup(f"{fence} {line} {fence}" if len(fence) > 1 or line != line.strip() else f"`{line or ' '}`")


def markdown_cell(text: Any) -> Markup:
    """Text of a table or list in which a name with an underscore stands as code, so that it is read as it is written."""
    words = " ⏎ ".join(visible(text).splitlines()).split(" ")
    if words[0][:1] in {"-", "+", "="}:
        return Markup(markdown_text(text))
    return Markup(" ").join(_name(word) if "_" in word else Markup(markdown_text(word)) for word in words)


def _name(word: str) -> Markup:
    name = word.rstrip(",;")
    return Markup(markdown_text(word) if set(name) & set("|`\\") else f"`{name}`{word[len(name) :]}")


def markdown_block(text: Any) -> Markup:
    """Text as a fenced block with its lines as they are, whatever backticks it holds."""
    shown = visible(text).rstrip("\n")
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", shown)), default=0))
    return Markup(f"{fence}\n{shown}\n{fence}")


def _seen(character: str) -> str:
    if character in "\n\t":
        return character
    hidden = unicodedata.category(character) in {"Cc", "Cf", "Cs", "Cn", "Co", "Zl", "Zp"}
    return f"⟨U+{ord(character):04X}⟩" if hidden else character
