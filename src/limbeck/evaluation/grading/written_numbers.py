"""Numbers as people write them in English, Portuguese, Italian, Spanish and French: 1,234.5 and 1.234,5 and 17 920.

The form of a number decides its value in every language, with one exception: a single mark before exactly three digits
(1.800, 1,234) is a decimal mark in one language and groups thousands in another. Such a number has both readings unless
the language is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

import regex

from limbeck.recipe.grader import Language

__all__ = ["WrittenNumber", "unit_fits", "unit_of", "written_numbers"]

# Spaces (plain, no-break, thin, narrow no-break) and apostrophes group thousands in every language.
_GROUPING = " \u00a0\u2009\u202f'’"
_NUMBER = regex.compile(
    rf"""
    (?<![\p{{L}}\p{{Nd}}.,_])                                      # not inside a word, a code or another number
    (?P<sign>(?<![\p{{L}}\p{{Nd}})])[+\-−])?\p{{Sc}}?
    (?P<body>(?:[0-9]{{1,3}}(?:[{_GROUPING}][0-9]{{3}}(?![0-9]))++|[.,]?[0-9]++)(?:[.,][0-9]++)*+)
    (?P<power>[eE][+\-]?[0-9]{{1,3}}(?![0-9]))?
    """,
    regex.VERBOSE,
)


@dataclass(frozen=True)
class WrittenNumber:
    """A number in a text: its possible values, and the start of its digits (a sign may precede) and its end."""

    readings: tuple[Decimal, ...]
    start: int
    end: int


def written_numbers(text: str, language: Language | None = None) -> list[WrittenNumber]:
    """Every number in the text, in order, without sequences of digits and marks like 1.2.3."""
    found = []
    for match in _NUMBER.finditer(text):
        sign = "-" if match["sign"] in ("-", "−") else ""
        bodies = _readings(match["body"], language)
        readings = tuple(Decimal(f"{sign}{body}{match['power'] or ''}") for body in bodies)
        if readings:
            found.append(WrittenNumber(readings, match.start("body"), match.end()))
    return found


def unit_of(text: str, number: WrittenNumber) -> str | None:
    """The single word or sign next to the only number of a text; "" for none, None for several words."""
    rest = (text[: number.start].rstrip("+-− ") + " " + text[number.end :].rstrip(". ")).split()
    return None if len(rest) > 1 else "".join(rest).casefold()


def unit_fits(text: str, number: WrittenNumber, units: Sequence[str]) -> bool:
    """Whether the number has one of the units, or has nothing next to it that could be another unit."""
    before = text[: number.start].rstrip("+-− \u00a0\u202f").casefold()
    after = text[number.end :].lstrip(" \u00a0\u202f").casefold()
    for unit in (unit.casefold() for unit in units):
        if after.startswith(unit) and not after[len(unit) :][:1].isalnum():
            return True
        if before.endswith(unit) and not (unit[0].isalnum() and before[: -len(unit)][-1:].isalnum()):
            return True
    other = regex.match(r"[\p{L}\p{Sc}%‰°]", after) or regex.search(r"\p{Sc}$", before)
    return other is None


def _readings(body: str, language: Language | None) -> list[str]:
    """The possible values of a sequence of digits and marks, with a decimal point and no groups."""
    points = [decimal for decimal in ("", ".", ",") if _fits(body, decimal)]
    if len(points) == 2 and language is not None:
        own = "." if language == "en" else ","
        points = [own] if own in points else [""]
    return [
        "".join("." if mark == decimal else mark for mark in body if mark.isdigit() or mark == decimal)
        for decimal in points
    ]


def _fits(body: str, decimal: str) -> bool:
    """Whether the sequence is a number with this decimal mark ("" for none): other marks must group by 3."""
    if decimal and body.count(decimal) != 1:
        return False
    whole, _, fraction = body.partition(decimal) if decimal else (body, "", "0")
    groups = regex.split(rf"[.,{_GROUPING}]", whole)
    if not fraction.isdigit() or len({mark for mark in whole if not mark.isdigit()}) > 1:
        return False
    if len(groups) == 1:
        return whole.isdigit() or (decimal != "" and whole == "")
    return 1 <= len(groups[0]) <= 3 and groups[0][0] != "0" and all(len(group) == 3 for group in groups[1:])
