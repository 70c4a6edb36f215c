"""How the answers to a row are graded: by the row's own word, by a setting for all, or by the form of the reference."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pydantic import ValidationError

from limbeck.errors import DataError
from limbeck.evaluation.grading.written_numbers import unit_of, written_numbers
from limbeck.recipe.grader import GraderKind, GraderSettings

__all__ = ["choose_grader"]

MAX_UNIT_LENGTH = 4


def choose_grader(
    reference: str | None, columns: Mapping[str, object], setting: GraderSettings | None, *, source: str
) -> GraderSettings:
    """The grader of a row: its own column `grader` (a name, or an object of settings), the setting, or by form.

    By form: a JSON object or array is compared as json, a number with at most a short unit as number, and anything
    else normalised.

    Raises:
        DataError: the row names no known grader, or a function (data must not choose code to run).
    """
    own = columns.get("grader")
    if own is None:
        return setting or GraderSettings(kind=_kind_by_form(reference or ""))
    problem = "a row may not name a function to run"
    try:
        settings = GraderSettings.model_validate({"kind": own} if isinstance(own, str) else own)
        if settings.kind != "function":
            return settings
    except ValidationError as error:
        first = error.errors()[0]
        problem = ": ".join([*(str(place) for place in first["loc"]), first["msg"]])
    raise DataError(
        "data.grader-invalid",
        given=f"{source}, grader: {problem[:300]}.",
        needed="It is one of exact, normalised, contains, regex, number, json, json-valid, choice and reasoning-gym, "
        'or gives an object such as {"kind": "number", "tolerance": 0.01}.',
        fix="Correct the row. A function of your own is given as a setting, for all rows.",
    )


def _kind_by_form(reference: str) -> GraderKind:
    if reference.lstrip().startswith(("{", "[")):
        try:
            json.loads(reference)
        except (ValueError, RecursionError):
            return "normalised"
        return "json"
    found = written_numbers(reference)
    unit = unit_of(reference, found[0]) if len(found) == 1 else None
    return "normalised" if unit is None or len(unit) > MAX_UNIT_LENGTH else "number"
