"""Grades of single answers, from 0 to 1, or no grade with the reason. No model is involved.

    exact            the reference, character by character, apart from white space around it
    normalised       the same without differences in case, white space, quotes and closing punctuation
    contains         the normalised answer contains the normalised reference as whole words
    regex            the answer matches the pattern (the setting, or the reference) somewhere
    number           the last number of the answer, in the notation of five languages; with tolerance and units
    json             the answer is JSON with the fields and values of the reference, bare or in one code fence
    json-valid       the answer is JSON
    choice           the letter that the answer chooses; a column `choices` may list the texts
    reasoning-gym    the scorer of the task in the column `metadata` (extra `tasks`)
    function         a Python function of the user, `module:function`; from a setting, never from a row

The row's own column `grader` comes first, then the setting, then the form of the reference. A useless answer gets 0; a
missing answer gets no grade.
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

from limbeck.evaluation.grading.own_functions import MODULE, function_named
from limbeck.evaluation.grading.written_numbers import unit_fits, unit_of, written_numbers
from limbeck.evaluation.messages import grading as messages
from limbeck.recipe.grader import GraderSettings, compiled

__all__ = ["Columns", "Grade", "chrf", "grade_answer", "length_ratio", "normalised"]

REGEX_TIMEOUT_S = 1.0

Columns = Mapping[str, object]  # the other columns of a row, whatever they are


class _NotGraded(Exception):
    """There is no grade; the message is the reason."""


@dataclass(frozen=True)
class Grade:
    """A value in [0, 1]; or None and the reason."""

    value: float | None
    reason: str = ""

    def __post_init__(self) -> None:
        if self.value is None and not self.reason:
            raise ValueError("a grade without a value needs a reason")
        if self.value is not None and not 0 <= self.value <= 1:
            raise ValueError(f"the grade {self.value} is not within 0 and 1")


def grade_answer(
    settings: GraderSettings,
    answer: str | None,
    reference: str | Sequence[str] | None,
    columns: Columns | None = None,
) -> Grade:
    """The grade of an answer; with several references, the best of its grades.

    Args:
        settings: from `choose_grader`.
        answer: the model's text; None if there is none (for example, a failed request).
        reference: the reference answer or answers; None if the row has none.
        columns: the other columns of the row, for choice, reasoning-gym and function.
    """
    if answer is None:
        return Grade(None, messages.no_answer())
    references = [reference] if isinstance(reference, str) else list(reference or [])
    if not references:
        if settings.kind not in ("json-valid", "function") and settings.pattern is None:
            return Grade(None, messages.no_reference())
        references = [""]
    best = Grade(None, messages.no_usable_reference())
    for expected in references:
        try:
            found = Grade(float(_GRADERS[settings.kind](settings, answer, expected, columns or {})))
        except _NotGraded as none:
            found = Grade(None, none.args[0])
        if best.value is None or (found.value or 0) > best.value:
            best = found
    return best


def chrf(answer: str, reference: str) -> float:
    """Character overlap in [0, 1]: chrF (Popović 2015, 6-grams, beta 2) by sacrebleu, extra `tasks`."""
    return min(_module("sacrebleu").sentence_chrf(answer, [reference]).score / 100, 1.0)


def length_ratio(answer: str, reference: str) -> float | None:
    """Characters of the answer per character of the reference; None for an empty reference."""
    return len(answer) / len(reference) if reference else None


_QUOTES = "\"'`*_“”‘’«»„ "


def normalised(text: str) -> str:
    """Lower case, single spaces, and no invisible characters, outer quotes or closing punctuation."""
    visible = "".join(mark for mark in text.casefold() if unicodedata.category(mark) != "Cf")
    return " ".join(unicodedata.normalize("NFC", visible).split()).lstrip(_QUOTES).rstrip(_QUOTES + ".,;:!?")


def _contains(settings: GraderSettings, answer: str, reference: str, columns: Columns) -> bool:
    """Whole words in scripts with spaces between words: 112 does not contain 12, but 北京市 contains 北京."""
    wanted = _wanted(reference)
    word = r"[\p{Latin}\p{Greek}\p{Cyrillic}\p{Nd}]"
    before = rf"(?<!{word})" if regex.match(word, wanted[0]) else ""
    after = rf"(?!{word})" if regex.match(word, wanted[-1]) else ""
    return regex.search(before + regex.escape(wanted) + after, normalised(answer)) is not None


def _wanted(reference: str) -> str:
    text = normalised(reference)
    if not text:
        raise _NotGraded(messages.reference_empty())
    return text


def _regex(settings: GraderSettings, answer: str, reference: str, columns: Columns) -> bool:
    try:
        pattern = compiled(reference if settings.pattern is None else settings.pattern)
        return pattern.search(answer, timeout=REGEX_TIMEOUT_S) is not None
    except TimeoutError:
        raise _NotGraded(messages.pattern_timeout(limit_s=REGEX_TIMEOUT_S)) from None
    except ValueError as error:
        raise _NotGraded(messages.pattern_invalid(problem=str(error))) from None


def _number(settings: GraderSettings, answer: str, reference: str, columns: Columns) -> bool:
    """The last number with the reference's unit, or without anything that could be another unit."""
    expected = written_numbers(reference, settings.language)
    if len(expected) != 1:
        raise _NotGraded(messages.reference_numbers(num=len(expected)))
    unit = unit_of(reference, expected[0])
    units = (*([unit] if unit else []), *settings.units)
    found = written_numbers(answer, settings.language)
    found = [number for number in found if not units or unit_fits(answer, number, units)]
    tolerance, relative = Decimal(str(settings.tolerance)), Decimal(str(settings.relative_tolerance))
    pairs = [(given, wanted) for number in found[-1:] for given in number.readings for wanted in expected[0].readings]
    return any(abs(given - wanted) <= max(tolerance, relative * abs(wanted)) for given, wanted in pairs)


def _json(settings: GraderSettings, answer: str, reference: str, columns: Columns) -> float:
    try:
        expected = None if settings.kind == "json-valid" else _parsed(reference)
    except ValueError as error:
        raise _NotGraded(messages.reference_not_json(problem=str(error))) from None
    try:
        given = _parsed(answer)
    except ValueError:
        return 0.0
    if settings.partial and isinstance(expected, dict) and isinstance(given, dict) and (expected or given):
        num_equal = sum(name in given and given[name] == value for name, value in expected.items())
        return num_equal / len(expected.keys() | given.keys())
    return float(settings.kind == "json-valid" or given == expected)


def _parsed(text: str) -> object:
    """JSON, bare or in one code fence, in a form to compare. Raises ValueError for any other text and for NaN."""
    text = text.strip()
    if text.startswith("```") and text.endswith("```") and "\n" in text:
        text = text.partition("\n")[2][:-3]
    try:
        return _typed(json.loads(text, parse_int=Decimal, parse_float=Decimal, parse_constant=Decimal))
    except (RecursionError, ArithmeticError) as error:
        raise ValueError(f"nested too deeply or too large ({type(error).__name__})") from None


def _typed(value: object) -> object:
    """Every leaf with its type, so that true differs from 1; numbers are decimals, so that 674 equals 674.00."""
    if isinstance(value, dict):
        return {name: _typed(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_typed(inner) for inner in value]
    if isinstance(value, Decimal) and not value.is_finite():
        raise ValueError(f"{value} is not a JSON number")
    return type(value), value


# The first form found decides: the letter alone, stated as the answer, in front, in brackets, or anywhere.
_STATED = (
    r"\b(?i:answer|option|choice|resposta|opção|risposta|opzione|respuesta|opción|réponse)\b"
    r"(?:\W++[^\W\d_]{1,8}){0,3}?\W++([A-H])(?![\w'’])"
)
_ALONE = r"^\W*([A-Ha-h])\W*$"
_FORMS = (_ALONE, _STATED, r"^\W*([A-H])\s*[).:\]\-\n]", r"[(\[*]([A-Ha-h])[)\]*.]", r"(?<![\w'’])([B-H])(?![\w'’])")


def _choice(settings: GraderSettings, answer: str, reference: str, columns: Columns) -> bool:
    listed = columns.get("choices")
    texts = [normalised(str(text)) for text in listed] if isinstance(listed, list) else []
    wanted = _letter(reference, texts, (_ALONE,))
    if wanted is None:
        raise _NotGraded(messages.reference_not_a_choice())
    return _letter(answer, texts, _FORMS) == wanted


def _letter(text: str, texts: Sequence[str], forms: Sequence[str]) -> str | None:
    """The chosen letter; None for none or several. Of letters stated as the answer, the last one counts."""
    if normalised(text) in texts:
        return chr(ord("A") + texts.index(normalised(text)))
    for form in forms:
        if letters := [match[1].upper() for match in regex.finditer(form, text)]:
            return letters[-1] if form == _STATED or len(set(letters)) == 1 else None
    return None


def _reasoning_gym(settings: GraderSettings, answer: str, reference: str, columns: Columns) -> float:
    """Some of these scorers evaluate the answer as a sympy expression: use them only with models that you trust."""
    metadata = columns.get("metadata")
    task = metadata.get("source_dataset") if isinstance(metadata, Mapping) else None
    if not isinstance(task, str):
        raise _NotGraded(messages.no_task())
    module = _module("reasoning_gym")
    entry = {"question": columns.get("question"), "answer": reference, "metadata": metadata}
    return _scored(lambda: module.get_score_answer_fn(task)(answer, entry))


def _function(settings: GraderSettings, answer: str, reference: str, columns: Columns) -> float:
    name = settings.function or ""
    function = function_named(name) or _loaded(name)
    return _scored(lambda: function(answer, {**columns, "reference": reference}))


def _scored(score: Callable[[], object]) -> float:
    try:
        value = score()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's code may raise anything: no grade, with the reason
        raise _NotGraded(messages.grader_raised(kind=type(error).__name__, problem=str(error)[:200])) from None
    if not (isinstance(value, numbers.Real | Decimal) and 0 <= float(value) <= 1):
        raise _NotGraded(messages.grader_value(value=str(value)[:80]))
    return float(value)


@lru_cache(maxsize=16)
def _loaded(name: str) -> Callable[..., Any]:
    """The function of module:function, from a file in the current folder or an installed module."""
    module_name, _, function_name = name.rpartition(":")
    if module_name == MODULE:
        raise messages.function_elsewhere(name=function_name)
    path = Path(module_name.replace(".", "/") + ".py")
    try:
        found = runpy.run_path(str(path)) if path.is_file() else vars(importlib.import_module(module_name))
        if not callable(found[function_name]):
            raise TypeError(f"{function_name} is not a function")
        return found[function_name]
    except (Exception, SystemExit) as error:
        raise messages.function_missing(name=name, kind=type(error).__name__, problem=str(error)) from error


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise messages.extra_missing(package=name) from None


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
