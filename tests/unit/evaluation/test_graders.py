from __future__ import annotations

import json
import math
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from limbeck.errors import DataError, UsageError
from limbeck.evaluation.grading.graders import Grade, chrf, grade_answer, length_ratio, normalised
from limbeck.evaluation.grading.measure import GraderSettings, choose_grader

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def value_of(kind, answer, reference, columns=None, **settings):
    found = grade_answer(GraderSettings(kind=kind, **settings), answer, reference, columns)
    assert found.reason == "", found.reason
    return found.value


def reason_of(kind, answer, reference, columns=None, **settings):
    found = grade_answer(GraderSettings(kind=kind, **settings), answer, reference, columns)
    assert found.value is None
    return found.reason


def test_a_grade_is_in_0_to_1_or_has_a_reason():
    for wrong in ((None, ""), (1.5, ""), (-0.1, ""), (math.nan, "")):
        with pytest.raises(ValueError, match="grade"):
            Grade(*wrong)


@pytest.mark.parametrize("kind", ["exact", "normalised", "contains", "regex", "number", "json", "json-valid", "choice"])
def test_a_missing_answer_is_never_a_number(kind):
    assert reason_of(kind, None, "B") == "there is no answer"
    assert value_of(kind, "", {"json": "{}", "number": "5", "choice": "B"}.get(kind, "word")) == 0
    if kind != "json-valid":
        assert reason_of(kind, "answer", None) == "the row has no reference answer"


def test_exact_and_normalised():
    assert value_of("exact", " Paris\n", "Paris") == 1
    assert value_of("exact", "paris", "Paris") == 0
    assert value_of("normalised", "**“PARIS”.**", "Paris") == 1
    assert value_of("normalised", "Straße\u200b  1", "STRASSE 1") == 1
    assert value_of("normalised", "cafe\u0301", "café") == 1
    assert value_of("normalised", "-5", "5") == 0
    assert value_of("normalised", ".5", "5") == 0
    assert value_of("normalised", "10²", "102") == 0
    assert "after normalisation" in reason_of("normalised", "", "...")


@given(st.text())
def test_normalising_is_blind_to_what_it_evens_out(text):
    assert normalised(f'  "{text}"\u200b. ') == normalised(text)


def test_the_best_of_several_references_counts():
    assert value_of("exact", "USA", ["United States", "USA"]) == 1
    assert value_of("number", "5", ["no number", "5"]) == 1
    assert value_of("number", "6", ["no number", "5"]) == 0


def test_contains_whole_words():
    assert value_of("contains", "The answer is 12.", "12") == 1
    assert value_of("contains", "The answer is 112.", "12") == 0
    assert value_of("contains", "two cats", "cat") == 0
    assert value_of("contains", "我在北京市", "北京") == 1
    assert value_of("contains", "costs $5 (net)", "$5") == 1


def test_regex_with_its_faults():
    assert value_of("regex", "Ticket AB-1234 closed", r"\b[A-Z]{2}-\d{4}\b") == 1
    assert value_of("regex", "no", None, pattern="^yes") == 0
    assert "not a regular expression: missing )" in reason_of("regex", "x", "(")
    assert "has 1,001 characters, more than 1,000" in reason_of("regex", "x", "a" * 1001)
    with pytest.raises(ValidationError, match="not a regular expression: missing \\)") as refused:
        GraderSettings(kind="regex", pattern="(")
    assert [fault["type"] for fault in refused.value.errors()] == ["recipe.grader"]


def test_a_catastrophic_pattern_is_stopped():
    assert "took more than 1 second" in reason_of("regex", "a" * 60 + "!", r"^(a|aa)+$")  # it would take years


@pytest.mark.parametrize(
    ("answer", "reference", "right"),
    [
        *(
            ("It took 17 920 hours.", "17,920", 1),
            ("74,4 %", "74.4", 1),
            ("1 234,5", "1,234.5", 1),
            ("74.5", "74.4", 0),
        ),
        *(("1800", "1.800", 1), ("First 3, then 4: 7", "7", 1), ("7 is it, not 8", "7", 0), ("none", "7", 0)),
        *(("-5", "5", 0), ("$1,200", "1200", 1), ("1e3", "1000", 1), ("12 miles", "12 km", 0), ("12", "12 km", 1)),
        *(("12 km in 3 hours", "12 km", 1), ("€12", "12 €", 1), ("$12", "€12", 0), ("50", "50%", 1)),
    ],
)
def test_number(answer, reference, right):
    assert value_of("number", answer, reference) == right


def test_number_settings():
    assert value_of("number", "74.5", "74.4", tolerance=0.1) == 1
    assert value_of("number", "74.51", "74.4", tolerance=0.1) == 0
    assert value_of("number", "1.3", "1.0", tolerance=0.3) == 1
    assert value_of("number", "101", "100", relative_tolerance=0.01) == 1
    assert value_of("number", "1.8", "1.800", language="it") == 0
    assert value_of("number", "12 kilometres", "12 km", units=("kilometres",)) == 1
    assert "2 numbers" in reason_of("number", "5", "5 or 6")


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**9), max_value=10**9, places=3))
def test_a_number_equals_itself_however_it_is_written(value):
    english = f"{value:,.3f}"
    other = english.translate(str.maketrans(",.", ".,"))
    if abs(value) >= 1000:  # below, a mark before three digits could mean either
        assert value_of("number", f"It is {other}", english) == 1
        assert value_of("number", f"It is {other}", english, tolerance=0.0, language="pt") == 1
    assert value_of("number", f"It is {value + 1:f}", english, language="en") == 0


def test_json():
    reference = '{"topic":"paid","amount":674.00,"flags":[true,null]}'
    assert value_of("json", '```json\n{"flags": [true, null], "amount": 674, "topic": "paid"}\n```', reference) == 1
    assert value_of("json", reference.replace("true", "1"), reference) == 0
    assert value_of("json", reference.replace("paid", "Paid"), reference) == 0
    assert value_of("json", "Sure! " + reference, reference) == 0
    assert value_of("json", '{"topic":"paid","amount":1,"flags":[true,null]}', reference, partial=True) == 2 / 3
    assert value_of("json", reference[:-1] + ',"more":1}', reference, partial=True) == 3 / 4
    assert value_of("json", "{}", "{}", partial=True) == 1
    assert "not valid JSON" in reason_of("json", "{}", "{")
    for broken in ("NaN", "[1e999999999999999999999]", "[" * 100_000, '{"a":1', "{'a': 1}", ""):
        assert value_of("json-valid", broken, None) == 0
    assert value_of("json-valid", "[1, 2]", None) == 1


@given(JSON_VALUES)
def test_json_equals_itself_in_any_spelling(value):
    compact, spaced = json.dumps(value), json.dumps(value, ensure_ascii=False, indent=2, sort_keys=True)
    if all(character.isprintable() for character in spaced.replace("\n", "")):
        assert value_of("json", f"```\n{spaced}\n```", compact) == 1
    assert value_of("json", compact, compact) == 1
    assert value_of("json", json.dumps([value]), compact) == 0


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        *(("B", "B"), ("(b)", "B"), ("**B**.", "B"), ("B) Paris", "B"), ("B: because A is wrong", "B")),
        *(("Let us see. A is tempting. The answer is B", "B"), ("Option D, please", "D")),
        *(("A resposta correta é (C).", "C"), ("La risposta è D", "D"), ("Réponse : B", "B"), ("It must be C", "C")),
        *(("I think (A) or (B)", None), ("no idea", None), ("paris", "B"), ("Answer: a number", None)),
    ],
)
def test_choice(answer, letter):
    columns = {"choices": ["Rome", "Paris", "Oslo", "Bern"]}
    for reference in "ABCD":
        assert value_of("choice", answer, reference, columns) == (reference == letter)
    assert value_of("choice", "B", "Paris", columns) == 1
    assert "neither a letter" in reason_of("choice", "B", "London", columns)


def test_a_function_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_graders.py").write_text(
        "def half(answer, row):\n    return share(row['reference'])\n"
        "def share(text):\n    return len(text) / 10\n"
        "def fails(answer, row):\n    return int(answer)\n"
    )
    assert value_of("function", "x", "12345", function="own_graders:half") == 0.5
    assert "raised ValueError: invalid literal" in reason_of("function", "x", "1", function="own_graders:fails")
    assert "'7', which is not a number from 0 to 1" in reason_of("function", "7", "1", function="own_graders:fails")
    assert value_of("function", "1", None, function="own_graders:fails") == 1
    for missing in ("own_graders:absent", "not_there_at_all:grade"):
        with pytest.raises(UsageError, match="cannot be loaded"):
            reason_of("function", "x", "1", function=missing)


def test_reasoning_gyms_scorer_is_called_with_the_rows_entry(monkeypatch):
    seen = []

    def score_function(task):
        if task != "chain_sum":
            raise ValueError(f"Dataset {task!r} not registered")
        return lambda answer, entry: seen.append((answer, entry)) or 0.01

    monkeypatch.setitem(sys.modules, "reasoning_gym", SimpleNamespace(get_score_answer_fn=score_function))
    row = {"question": "4 - 1 =", "metadata": {"source_dataset": "chain_sum"}}
    assert value_of("reasoning-gym", "4", "3", row) == 0.01
    assert seen == [("4", {**row, "answer": "3"})]
    assert "not registered" in reason_of("reasoning-gym", "4", "3", {"metadata": {"source_dataset": "other"}})
    assert "source_dataset" in reason_of("reasoning-gym", "4", "3", {})
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(UsageError, match="limbeck\\[tasks\\]"):
        value_of("reasoning-gym", "4", "3", row)


def test_reasoning_gyms_own_answers_are_right():
    reasoning_gym = pytest.importorskip("reasoning_gym")
    for task in ("chain_sum", "calendar_arithmetic", "letter_counting", "countdown"):
        entry = json.loads(json.dumps(reasoning_gym.create_dataset(task, size=1, seed=3)[0], default=str))
        assert value_of("reasoning-gym", entry["answer"], entry["answer"], entry) == 1
        assert value_of("reasoning-gym", "nonsense", entry["answer"], entry) < 0.1


@pytest.mark.parametrize(
    ("reference", "kind"),
    [
        *(('{"a": 1}', "json"), ("[1, 2]", "json"), ("{broken", "normalised"), ("74,4", "number"), ("12 km", "number")),
        *(("€ 12", "number"), ("Paris", "normalised"), ("3 blind mice", "normalised"), ("Type 12", "number")),
    ],
)
def test_the_form_of_the_reference_chooses_last(reference, kind):
    assert choose_grader(reference, {}, None, source="a:1").kind == kind
    contains = GraderSettings(kind="contains")
    assert choose_grader(reference, {}, contains, source="a:1") is contains
    assert choose_grader(reference, {"grader": "exact"}, contains, source="a:1").kind == "exact"
    own = {"grader": {"kind": "number", "tolerance": 0.5}}
    assert choose_grader(reference, own, contains, source="a:1").tolerance == 0.5


@pytest.mark.parametrize(
    "own",
    [
        "function",
        {"kind": "function", "function": "os:system"},
        "bleu",
        {"kind": "exact", "tolerance": 1},
        {"kind": "number", "tolerance": -1},
        {"kind": "number", "tollerance": 1},
        {"kind": "regex", "pattern": "("},
        5,
    ],
)
def test_a_row_that_names_no_grader_or_code_to_run_is_refused(own):
    with pytest.raises(DataError, match=r"tickets.jsonl:3, grader: .*\[data.grader-invalid\]"):
        choose_grader("x", {"grader": own}, None, source="tickets.jsonl:3")


def test_text_measures():
    assert chrf("the same", "the same") == 1
    assert chrf("xyz", "abc") == 0
    # 1-grams 3 of 4, 2-grams 2 of 3, 3-grams 1 of 2, 4-grams 0 of 1; precision equals recall, the mean is 23/48
    assert chrf("abcd", "abce") == pytest.approx((3 / 4 + 2 / 3 + 1 / 2 + 0) / 4, abs=1e-6)
    assert length_ratio("abcdef", "abc") == 2
    assert length_ratio("abc", "") is None
