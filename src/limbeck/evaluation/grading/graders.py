"""An answer against what the row expects: a grade from 0 to 1, or none with the reason. No model takes part.

    exact            the reference, character by character; white space around it does not count
    normalised       the same after lower case, white space, quotes and closing punctuation are evened out
    contains         the normalised reference stands in the normalised answer, as whole words
    regex            the pattern (the setting, or the reference) is found in the answer
    number           the last number of the answer, as written in five languages; with tolerance and units
    json             the answer is JSON with the reference's fields and values, bare or in one code fence
    json-valid       the answer is JSON
    choice           the letter that the answer chooses; a column `choices` may list the texts
    reasoning-gym    the scorer of the task that the column `metadata` names (extra `tasks`)
    function         a Python function of your own, `module:function`; given as a setting, never by a row

A row's own column `grader` is followed first, then the setting, then the form of the reference. An answer that is
there and useless gets 0; an answer that is missing gets no grade.
"""

from __future__ import annotations

import importlib
import json
import numbers
import runpy
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import regex

from limbeck.errors import UsageError
from limbeck.evaluation.grading.messages import function_elsewhere
from limbeck.evaluation.grading.own_functions import MODULE, function_named
from limbeck.evaluation.grading.written_numbers import unit_fits, unit_of, written_numbers
from limbeck.recipe.grader import GraderSettings, compiled

__all__ = ["Grade", "chrf", "grade", "length_ratio", "normalised"]

REGEX_TIMEOUT_S = 1.0


class _NotGraded(Exception):
    """There is no grade; the message says why."""


@dataclass(frozen=True)
class Grade:
    """A value in [0, 1]; or None, and `reason` says why there is none."""

    value: float | None
    reason: str = ""

    def __post_init__(self) -> None:
        if self.value is None and not self.reason:
            raise ValueError("a grade without a value needs a reason")
        if self.value is not None and not 0 <= self.value <= 1:
            raise ValueError(f"a grade is {self.value}; it must be in 0 to 1")


def grade(
    settings: GraderSettings,
    answer: str | None,
    reference: str | Sequence[str] | None,
    columns: Mapping[str, object] | None = None,
) -> Grade:
    """The grade of an answer; of several references the one that suits it best counts.

    Args:
        settings: from `choose_grader`.
        answer: the model's text, None when there is none (the server failed, the row was not asked).
        reference: the expected answer or answers; None when the row has none.
        columns: the other columns of the row, for choice, reasoning-gym and function.
    """
    if answer is None:
        return Grade(None, "there is no answer")
    references = [reference] if isinstance(reference, str) else list(reference or [])
    if not references:
        if settings.kind not in ("json-valid", "function") and settings.pattern is None:
            return Grade(None, "the row has no reference answer")
        references = [""]
    best = Grade(None, "no reference answer can be used")
    for expected in references:
        try:
            found = Grade(float(_GRADERS[settings.kind](settings, answer, expected, columns or {})))
        except _NotGraded as none:
            found = Grade(None, str(none))
        if best.value is None or (found.value or 0) > best.value:
            best = found
    return best


def chrf(answer: str, reference: str) -> float:
    """Likeness of letters, not truth, in [0, 1]: chrF (Popović 2015, 6-grams, beta 2) by sacrebleu, extra `tasks`."""
    return min(_module("sacrebleu").sentence_chrf(answer, [reference]).score / 100, 1.0)


def length_ratio(answer: str, reference: str) -> float | None:
    """Characters of the answer by those of the reference; None for an empty reference."""
    return len(answer) / len(reference) if reference else None


_QUOTES = "\"'`*_“”‘’«»„ "


def normalised(text: str) -> str:
    """Lower case, one kind of white space, no invisible characters, no quotes around, no punctuation at the end."""
    visible = "".join(mark for mark in text.casefold() if unicodedata.category(mark) != "Cf")
    return " ".join(unicodedata.normalize("NFC", visible).split()).lstrip(_QUOTES).rstrip(_QUOTES + ".,;:!?")


def _contains(settings: GraderSettings, answer: str, reference: str, columns: Mapping[str, object]) -> bool:
    """Whole words where the script parts words by spaces: 12 is not in 112, while 北京 is in 在北京市."""
    wanted = _wanted(reference)
    word = r"[\p{Latin}\p{Greek}\p{Cyrillic}\p{Nd}]"
    before = rf"(?<!{word})" if regex.match(word, wanted[0]) else ""
    after = rf"(?!{word})" if regex.match(word, wanted[-1]) else ""
    return regex.search(before + regex.escape(wanted) + after, normalised(answer)) is not None


def _wanted(reference: str) -> str:
    text = normalised(reference)
    if not text:
        raise _NotGraded("nothing is left of the reference answer when it is normalised")
    return text


def _regex(settings: GraderSettings, answer: str, reference: str, columns: Mapping[str, object]) -> bool:
    try:
        pattern = compiled(reference if settings.pattern is None else settings.pattern)
        return pattern.search(answer, timeout=REGEX_TIMEOUT_S) is not None
    except TimeoutError:
        raise _NotGraded(f"the pattern took more than {REGEX_TIMEOUT_S:g} s") from None
    except ValueError as error:
        raise _NotGraded(str(error)) from None


def _number(settings: GraderSettings, answer: str, reference: str, columns: Mapping[str, object]) -> bool:
    """The last number that has the reference's unit beside it, or nothing that could be another unit."""
    expected = written_numbers(reference, settings.language)
    if len(expected) != 1:
        raise _NotGraded(f"the reference answer has {len(expected)} numbers, one is needed")
    unit = unit_of(reference, expected[0])
    units = (*([unit] if unit else []), *settings.units)
    found = written_numbers(answer, settings.language)
    found = [number for number in found if not units or unit_fits(answer, number, units)]
    tolerance, relative = Decimal(str(settings.tolerance)), Decimal(str(settings.relative_tolerance))
    pairs = [(given, wanted) for number in found[-1:] for given in number.readings for wanted in expected[0].readings]
    return any(abs(given - wanted) <= max(tolerance, relative * abs(wanted)) for given, wanted in pairs)


def _json(settings: GraderSettings, answer: str, reference: str, columns: Mapping[str, object]) -> float:
    try:
        expected = None if settings.kind == "json-valid" else _parsed(reference)
    except ValueError as error:
        raise _NotGraded(f"the reference answer is not JSON: {error}") from None
    try:
        given = _parsed(answer)
    except ValueError:
        return 0.0
    if settings.partial and isinstance(expected, dict) and isinstance(given, dict) and (expected or given):
        num_equal = sum(name in given and given[name] == value for name, value in expected.items())
        return num_equal / len(expected.keys() | given.keys())
    return float(settings.kind == "json-valid" or given == expected)


def _parsed(text: str) -> object:
    """JSON, bare or in one code fence, ready to be compared. Raises ValueError for all else, also for NaN."""
    text = text.strip()
    if text.startswith("```") and text.endswith("```") and "\n" in text:
        text = text.partition("\n")[2][:-3]
    try:
        return _typed(json.loads(text, parse_int=Decimal, parse_float=Decimal, parse_constant=Decimal))
    except (RecursionError, ArithmeticError) as error:
        raise ValueError(f"too deep or too large ({type(error).__name__})") from None


def _typed(value: object) -> object:
    """Every leaf with its type, so that true is not 1; a number is a decimal, so 674 is 674.00."""
    if isinstance(value, dict):
        return {name: _typed(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_typed(inner) for inner in value]
    if isinstance(value, Decimal) and not value.is_finite():
        raise ValueError(f"{value} is no JSON number")
    return type(value), value


# The first form that the answer has decides: the letter alone, said outright, in front, marked, or in passing.
_SAID = (
    r"\b(?i:answer|option|choice|resposta|opção|risposta|opzione|respuesta|opción|réponse)\b"
    r"(?:\W++[^\W\d_]{1,8}){0,3}?\W++([A-H])(?![\w'’])"
)
_ALONE = r"^\W*([A-Ha-h])\W*$"
_FORMS = (_ALONE, _SAID, r"^\W*([A-H])\s*[).:\]\-\n]", r"[(\[*]([A-Ha-h])[)\]*.]", r"(?<![\w'’])([B-H])(?![\w'’])")


def _choice(settings: GraderSettings, answer: str, reference: str, columns: Mapping[str, object]) -> bool:
    listed = columns.get("choices")
    texts = [normalised(str(text)) for text in listed] if isinstance(listed, list) else []
    wanted = _letter(reference, texts, (_ALONE,))
    if wanted is None:
        raise _NotGraded("the reference answer is neither a letter nor one of the choices")
    return _letter(answer, texts, _FORMS) == wanted


def _letter(text: str, texts: Sequence[str], forms: Sequence[str]) -> str | None:
    """The letter chosen, None for none or several. Said outright, the last one counts."""
    if normalised(text) in texts:
        return chr(ord("A") + texts.index(normalised(text)))
    for form in forms:
        if letters := [match[1].upper() for match in regex.finditer(form, text)]:
            return letters[-1] if form == _SAID or len(set(letters)) == 1 else None
    return None


def _reasoning_gym(settings: GraderSettings, answer: str, reference: str, columns: Mapping[str, object]) -> float:
    """Some of these scorers read the answer as an expression of sympy, which evaluates it: for models you trust."""
    metadata = columns.get("metadata")
    task = metadata.get("source_dataset") if isinstance(metadata, Mapping) else None
    if not isinstance(task, str):
        raise _NotGraded("the row has no metadata with source_dataset")
    module = _module("reasoning_gym")
    entry = {"question": columns.get("question"), "answer": reference, "metadata": metadata}
    return _scored(lambda: module.get_score_answer_fn(task)(answer, entry))


def _function(settings: GraderSettings, answer: str, reference: str, columns: Mapping[str, object]) -> float:
    name = settings.function or ""
    function = function_named(name) or _loaded(name)
    return _scored(lambda: function(answer, {**columns, "reference": reference}))


def _scored(score: Callable[[], object]) -> float:
    try:
        value = score()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's code, which may meet anything: no grade, and why
        raise _NotGraded(f"the grader raised {type(error).__name__}: {str(error)[:200]}") from None
    if not (isinstance(value, numbers.Real | Decimal) and 0 <= float(value) <= 1):
        raise _NotGraded(f"the grader gave {str(value)[:80]!r}, a number from 0 to 1 is needed")
    return float(value)


@lru_cache(maxsize=16)
def _loaded(name: str) -> Callable[..., Any]:
    """module:function, of a file in the present folder or of an installed module."""
    module_name, _, function_name = name.rpartition(":")
    if module_name == MODULE:
        raise function_elsewhere(name=function_name)
    path = Path(module_name.replace(".", "/") + ".py")
    try:
        found = runpy.run_path(str(path)) if path.is_file() else vars(importlib.import_module(module_name))
        if not callable(found[function_name]):
            raise TypeError(f"{function_name} is no function")
        return found[function_name]
    except (Exception, SystemExit) as error:
        raise UsageError(
            "grader.function-missing",
            given=f"The grader {name} cannot be loaded: {type(error).__name__} {error}.",
            needed="A grader of your own is named module:function and takes (answer, row).",
            fix="Correct the name, or start Limbeck in the folder that holds the module's file.",
        ) from error


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise UsageError(
            "grader.extra-missing",
            given=f"This grader or measure is {name}'s, which is not installed.",
            needed="Graded tasks and text measures are an extra of Limbeck.",
            fix='Install it: pip install "limbeck[tasks]".',
        ) from None


_GRADERS: dict[str, Callable[[GraderSettings, str, str, Mapping[str, object]], float]] = {
    "exact": lambda settings, answer, reference, columns: answer.strip() == reference.strip(),
    "normalised": lambda settings, answer, reference, columns: normalised(answer) == _wanted(reference),
    "contains": _contains,
    "regex": _regex,
    "number": _number,
    "json": _json,
    "json-valid": _json,
    "choice": _choice,
    "reasoning-gym": _reasoning_gym,
    "function": _function,
}
