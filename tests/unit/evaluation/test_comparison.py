from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from graded import graded_model, pair_of_counts
from hypothesis import given
from hypothesis import strategies as st

from limbeck.errors import Refusal, UsageError
from limbeck.evaluation.deciding.comparison import by_slice, common_scores, compare, prompt_differences
from limbeck.evaluation.deciding.statistics import difference, gap_recovered, share_interval


def test_a_comparison_of_known_counts():
    found = compare(*pair_of_counts(40, 10, 30, 20), seed=3)
    assert found.difference == difference([1] * 40 + [0] * 60, [0] * 40 + [1] * 10 + [0] * 50, seed=3)
    assert found.difference.estimate == pytest.approx(0.3)
    assert found.first_better == share_interval([True] * 40 + [False] * 60)
    shares = (found.first_better, found.second_better, found.both_good, found.both_bad)
    assert [interval.estimate for interval in shares] == [0.4, 0.1, 0.3, 0.2]
    assert (found.num_asked, found.num_not_graded, found.seed, found.num_resamples) == (100, (0, 0), 3, 10_000)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=12))
def test_every_prompt_is_won_by_one_or_a_tie_of_good_or_bad(pairs):
    first, second = (graded_model(name, side) for name, side in zip("ab", zip(*pairs, strict=True), strict=True))
    found = compare(first, second)
    shares = (found.first_better, found.second_better, found.both_good, found.both_bad)
    assert sum(interval.estimate for interval in shares) == pytest.approx(1)
    assert found.difference.low - 1e-9 <= found.difference.estimate <= found.difference.high + 1e-9
    mirrored = compare(second, first)
    assert mirrored.first_better == found.second_better
    assert mirrored.both_good == found.both_good


def test_grades_that_are_nearly_equal_tie():
    found = compare(graded_model("a", [0.90, 0.20, 0.56]), graded_model("b", [0.86, 0.24, 0.50]))
    assert found.both_good.estimate == pytest.approx(1 / 3)
    assert found.both_bad.estimate == pytest.approx(1 / 3)
    assert found.first_better.estimate == pytest.approx(1 / 3)


def test_the_share_that_the_longer_answer_won():
    first = graded_model("a", [1, 1, 1, 0, 1, 1], lengths=[9, 9, 2, 2, 5, 9])
    second = graded_model("b", [0, 0, 0, 1, 0, 1], lengths=[3, 3, 3, 3, 5, 3])
    # the first four are decided and of unequal length: the longer won 1, 2 and 4
    assert compare(first, second).longer_won == share_interval([True, True, False, True])
    assert compare(graded_model("a", [1]), graded_model("b", [0])).longer_won is None


def test_slices_by_a_column():
    first, second = graded_model("a", [1, 1, 1, 0, None]), graded_model("b", [0, 0, 1, 1, 1])
    labels = {"key-0": "refunds", "key-1": "refunds", "key-2": "dates", "key-3": "refunds", "key-4": "dates"}
    found = by_slice(first, second, labels)
    assert list(found) == ["refunds", "dates"]
    assert found["refunds"] == difference([1, 1, 0], [0, 0, 1])
    assert found["dates"].n == 1


@pytest.mark.report("EV-03")
def test_failed_answers_are_counted_and_the_comparison_stands_on_common_prompts():
    values = [1, 1, 1, 0, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1]
    failing = graded_model("A", [*values, *[None] * 6])
    whole = graded_model("B", [*values, *[0] * 6])
    found = compare(failing, whole)
    # A alone has 12 of 14 and B 12 of 20; on the 14 prompts that both answered they are equal
    assert found.difference.estimate == 0
    assert found.difference.n == 14
    assert (found.num_asked, found.num_not_graded) == (20, (6, 0))
    shuffled = replace(failing, answers=failing.answers[::-1])
    assert compare(shuffled, whole).difference == found.difference
    with pytest.raises(UsageError, match="No prompt has a grade for all of these models: A, B"):
        compare(graded_model("A", [None]), graded_model("B", [1]))


def test_the_share_of_the_gap_on_what_all_three_answered():
    student, teacher = graded_model("s", [0, 0, None, 1]), graded_model("t", [1, 1, 1, None])
    distilled = graded_model("d", [1, 0, 1, 1])
    assert np.array_equal(common_scores(student, teacher, distilled), [[0, 0], [1, 1], [1, 0]])
    assert gap_recovered(*common_scores(student, teacher, distilled)) is None


@pytest.mark.report("EV-01")
def test_other_prompts_are_refused_by_name_and_other_settings_flagged():
    first, second = graded_model("base", [1, 0, 1]), graded_model("tuned", [1, 0, 1])
    assert prompt_differences(first, second) == ()
    fewer = replace(second, answers=second.answers[1:])
    with pytest.raises(Refusal, match=r"p\.jsonl:1: only base has an answer to this prompt") as refused:
        compare(first, fewer)
    assert refused.value.code == "evaluation.prompts-unequal"
    with pytest.raises(Refusal, match=r"p\.jsonl:1: only base has an answer to this prompt"):
        compare(fewer, first)
    sampled = replace(second, settings={"temperature": 1.0})
    assert prompt_differences(first, sampled) == ("temperature: None for base, 1.0 for tuned",)
    assert compare(first, sampled).notes == ("temperature: None for base, 1.0 for tuned",)


@pytest.mark.report("EV-01", "EV-04")
def test_the_same_conversation_as_another_text_is_refused_unless_the_templates_differ_by_right():
    local = graded_model("local", [1, 0], template="<user>Q{}<end>")
    served = graded_model("served", [1, 0], template="<user>Q{}")
    with pytest.raises(Refusal, match=r"2 prompts differ .*\s+p\.jsonl:1: from character 9, '<end>' and ''"):
        compare(local, served)
    (note,) = compare(local, served, other_template=True).notes
    assert note.code == "evaluation.texts-differ"
    assert note.parameters == {"num": 2, "example": "p.jsonl:1: from character 9, '<end>' and ''"}
