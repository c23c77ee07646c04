"""A generated text to look something up in: plain records of a made-up museum, one of them asked for. Used by suite.py.

It must not read like an instruction: a model once refused a passphrase hidden in such a text as injected (2026-09-17 report).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

Counter = Callable[[str], int]
"""Counts a text's tokens as the engine does."""

ROOMS = ("reading room", "north gallery", "map room", "old library", "garden hall", "print room", "tower room", "study")
FURNITURE = (
    "oak cabinet",
    "glass case",
    "iron chest",
    "tall shelf",
    "low drawer",
    "round table",
    "long bench",
    "corner rack",
)
COLOURS = ("amber", "blue", "crimson", "green", "grey", "ivory", "ochre", "violet")
THINGS = ("maps", "letters", "coins", "prints", "diaries", "shells", "medals", "sketches")
PLACES = ("Antwerp", "Bergen", "Cadiz", "Delft", "Esbjerg", "Ferrara", "Ghent", "Hamburg")


@dataclass(frozen=True)
class Text:
    """The records, the question about one of them, and the number that answers it."""

    body: str
    question: str
    answer: int


def generate(key: str, tokens: int, count: Counter) -> Text:
    """About `tokens` tokens of records. The first line holds the key, so that two keys have no beginning in common."""
    chance = random.Random(key)
    title = f"Inventory {key} of the collection, as counted in {chance.randint(1901, 1999)}."
    sample = [_record(chance) for _ in range(40)]
    each = max(1.0, count(_numbered(sample)) / len(sample))
    wanted = max(8, round((tokens - count(title)) / each))
    records, seen = [], set()
    for line, asked, number in [*sample, *(_record(chance) for _ in range(3 * wanted))]:
        if asked not in seen and len(records) < wanted:  # each thing is counted once, so that the answer is one number
            seen.add(asked)
            records.append((line, asked, number))
    _, asked, number = records[len(records) * 2 // 3]
    return Text(
        f"{title}\n{_numbered(records)}",
        f"According to this inventory, how many {asked} are there? Answer with the number only.",
        number,
    )


def _numbered(records: list[tuple[str, str, int]]) -> str:
    return "\n".join(f"{index}. {line}" for index, (line, _, _) in enumerate(records, 101))


def _record(chance: random.Random) -> tuple[str, str, int]:
    """A record's line, what it counts, and the number."""
    thing, place, colour = chance.choice(THINGS), chance.choice(PLACES), chance.choice(COLOURS)
    furniture, room, number = chance.choice(FURNITURE), chance.choice(ROOMS), chance.randint(11, 989)
    asked = f"{thing} from {place} in the {colour} {furniture} of the {room}"
    return f"The {colour} {furniture} of the {room} holds {number} {thing} from {place}.", asked, number
