"""What a profile's report says, as text, tables and pictures ready for a template: the JSON of docs/profile.md. Called by __init__.py."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from gb10.report import timeline
from gb10.report.words import count, objects, plain, say, table, unknown

Json = dict[str, Any]
SIDES = ("eager", "graph")
NO_ACTIVITY = "no GPU activity"
BELOW = "see below"
MEANING = (
    "Busy is the time in which at least one kernel, copy or fill ran, over the time from the first to the last of them. "
    "It is neither SM nor bandwidth utilisation. The ceiling is what removing all idle time could gain if kernel times stay "
    "the same; a candidate that was not tried is not disproved by it."
)
OVERVIEW = ["Window", "GPU busy", "Span", "Busy share", "Ceiling", "Kernels", "From graphs", "Share", "Graph launches"]


def profile(given: Json) -> Json:
    """The section's content: one overview over the windows, then each window with its own tables."""
    windows = objects(given.get("windows"))
    rows = [_overview(plain(one.get("name")), one) for one in windows]
    if len(rows) > 1:
        rows.append(_overview("in total", table(given.get("total"))))
    seen = any(one.get("gpu_span_ns") is not None for one in windows)
    overview = _table("The windows", OVERVIEW, rows if seen else [])
    meaning = MEANING if seen else "No window holds GPU activity: what follows is the CPU's side alone."
    return {"meaning": meaning, "overview": overview, "windows": [_window(i, one) for i, one in enumerate(windows)]}


def compared(given: Json) -> Json:
    """The two tables of a comparison: the windows, then in each what the ranges of the CPU did."""
    windows = objects(given.get("windows"))
    head = [
        "Window",
        "Busy share, eager",
        "graph",
        "Kernels from graphs, eager",
        "graph",
        "Launches a step, eager",
        "graph",
    ]
    rows = []
    for one in windows:
        cells = [_percent(one["gpu_busy_ratio"][side], NO_ACTIVITY) for side in SIDES]
        cells += [_percent(one["graph_kernel_share"][side], "the recording cannot tell") for side in SIDES]
        cells += [say(one["launches_per_step"][side]) for side in SIDES]
        rows.append([plain(one["name"]), *cells])
    return {
        "meaning": MEANING,
        "overview": _table("The windows", head, rows),
        "tables": [_sides(one) for one in windows],
    }


def picture(given: Json) -> Markup:
    """All windows as one SVG that stands alone, with its own colours."""
    return timeline.standing_alone([(one.get("name"), one) for one in objects(given.get("windows"))])


def _table(caption: str, head: list[str], rows: list[list[str]]) -> Json:
    return {"caption": caption, "head": head, "rows": rows}


def _overview(name: str, one: Json) -> list[str]:
    """A row; why a cell is unknown stands once, under its window."""
    ratio = one.get("gpu_busy_ratio")
    ceiling = one.get("ceiling") or (1 / ratio if ratio else None)
    times = [_ms(one.get(key), BELOW) for key in ("gpu_busy_ns", "gpu_span_ns")]
    gain = unknown(BELOW) if ceiling is None else f"{say(float(ceiling))}x"
    kernels, from_graphs, launches = (_known(one.get(key)) for key in ("kernels", "graph_kernels", "graph_launches"))
    share = _percent(one.get("graph_kernel_share"), BELOW)
    return [name, *times, _percent(ratio, BELOW), gain, kernels, from_graphs, share, launches]


def _window(index: int, one: Json) -> Json:
    capture = table(one.get("capture"))
    recorded = [capture.get("tool"), capture.get("version"), capture.get("schema") and f"schema {capture['schema']}"]
    recorded += [capture.get("graph_trace") and f"graph trace {capture['graph_trace']}", *(capture.get("gpus") or [])]
    lines = [_steps(one)]
    if one.get("padding_waste") is not None:
        lines.append(f"Padding: {_percent(one['padding_waste'])} of the dispatched tokens")
    for row in objects(one.get("diagnostics")):
        lines.append(f"The recorder warned: {row['text']} (severity {row['severity']}, {count(row['count'], 'time')})")
    reasons: dict[str, list[str]] = {}
    for row in objects(one.get("unknown")):
        reasons.setdefault(row["why"], []).append(row["field"])
    lines += [f"Unknown: {', '.join(fields)} ({why})" for why, fields in reasons.items()]
    return {
        "name": plain(one.get("name")),
        "file": plain(one.get("file")),
        "recorded": ", ".join(str(part) for part in recorded if part) or unknown(),
        "lines": lines,
        "strips": timeline.strips(index, one),
        "tables": [made for made in _tables(one) if made["rows"]],
    }


def _steps(one: Json) -> str:
    steps = one.get("steps")
    if not steps:
        return "Scheduled steps: unknown (no range tells of them)"
    said = f"{count(steps['count'], 'scheduled step')} with {count(steps['tokens'], 'token')} (from {steps['from']})"
    if one.get("launches_per_step") is None:
        return said
    per = (say(one[key]) for key in ("launches_per_step", "launches_per_scheduled_token"))
    return said + "; graph launches: {} a step, {} a scheduled token".format(*per)


def _tables(one: Json) -> list[Json]:
    head = ["Range of the CPU", "Count", "Sum", "Union"]
    if one.get("gpu_span_ns") is not None:
        head += ["While the GPU was busy", "The rest"]
    ranges = [
        [
            row["name"],
            say(row["count"]) + (f" ({row['not_ended']} without an end)" if row.get("not_ended") else ""),
            _ms(row["sum_ns"]),
            _ms(row["union_ns"]),
            *(_ms(row[key]) for key in ("gpu_overlap_ns", "rest_ns") if row.get(key) is not None),
        ]
        for row in objects(one.get("nvtx"))
    ]
    dispatches = [
        [say(row.get(key)) for key in ("mode", "actual", "padded", "count")] for row in objects(one.get("dispatches"))
    ]
    families = [
        [row["family"], say(row["count"]), _ms(row["sum_ns"]), _percent(row["share"])]
        for row in objects(one.get("families"))
    ]
    kernels = [[row["name"], say(row["count"]), _ms(row["sum_ns"])] for row in objects(one.get("top_kernels"))]
    gaps = [
        [_ms(row["at_ns"]), _ms(row["length_ns"]), _most(row["ranges"]), _most(row["calls"])]
        for row in objects(one.get("gaps"))
    ]
    return [
        _table("Ranges of the CPU", head, ranges),
        _table("Dispatches", ["Mode", "Actual tokens", "Padded tokens", "Count"], dispatches),
        _table("Families of kernels", ["Family", "Kernels", "Time", "Share"], families),
        _table("Kernels by time", ["Kernel", "Count", "Time"], kernels),
        _table("Longest pauses of the GPU", ["After", "Length", "Ranges open then", "Calls then"], gaps),
    ]


def _sides(one: Json) -> Json:
    rows = [
        [words, *(_ms(one[key][side], NO_ACTIVITY) for side in SIDES)]
        for words, key in (("first to last GPU activity", "gpu_span_ns"), ("union of GPU activity", "gpu_busy_ns"))
    ]
    for each in one["nvtx"]:
        sides = [each.get(side) for side in SIDES]
        rows.append([each["name"], *(_ms(side["sum_ns"]) if side else "not there" for side in sides)])
        inside = (_ms(side["gpu_overlap_ns"], NO_ACTIVITY) if side else "not there" for side in sides)
        rows.append([f"{each['name']}, while the GPU was busy", *inside])
    return _table(f"Window {plain(one['name'])}", ["Time", *SIDES], rows)


def _most(entries: Any) -> str:
    return "; ".join(f"{entry['name']} {_ms(entry['ns'])}" for entry in objects(entries)) or "nothing recorded"


def _ms(value: Any, why: str | None = None) -> str:
    return unknown(why) if value is None else f"{value / 1e6:.3f} ms"


def _percent(value: Any, why: str | None = None) -> str:
    return unknown(why) if value is None else f"{value * 100:.2f}%"


def _known(value: Any) -> str:
    return unknown(BELOW) if value is None else say(value)
