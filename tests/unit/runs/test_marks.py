"""Marks as they are stored and chosen: nothing is lost, nothing hostile gets out, and the pen marks few tokens."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from limbeck.console import safe
from limbeck.errors import DataError, UsageError
from limbeck.runs.marks import BETAS, MarkedAnswer, MarkSheet, Piece, marks_name, read_marks, worst_marks, write_marks

SURE, HALF = math.log(0.97), math.log(0.4)


def answer_of(*tokens, key="a/0", temperatures=(1.0,)):
    """Tokens as (nats, the teacher's first choice, its log-probability, that of what is written)."""
    num = len(tokens)
    nats = np.array([token[0] for token in tokens], np.float32)
    divergence = np.tile(nats[:, None, None], (1, len(temperatures), len(BETAS))) * (1 + np.arange(5))
    return MarkedAnswer(
        key=key,
        source="rows.jsonl:1",
        prompt="<|im_start|>user\nWhat?",
        messages=[{"role": "user", "content": "What?"}],
        cut_off=False,
        temperatures=temperatures,
        token_ids=np.zeros(num, np.int32),
        student_logp=np.full(num, -0.5, np.float32),
        teacher_logp=np.array([token[3] for token in tokens], np.float32),
        student_entropy=np.ones(num, np.float32),
        teacher_entropy=np.ones(num, np.float32),
        student_tail=np.zeros(num, np.float32),
        teacher_tail=np.zeros(num, np.float32),
        teacher_rank=np.zeros(num, np.int32),
        divergence=divergence.astype(np.float32),
        candidate_ends=np.arange(1, num + 1, dtype=np.int32) * 2,
        candidate_ids=np.array([each for token in tokens for each in (token[1], 9)], np.int32),
        candidate_student=np.full(2 * num, -1, np.float16),
        candidate_teacher=np.array([each for token in tokens for each in (token[2], -9)], np.float16),
        vocabulary={0: Piece(b"x", False), 1: Piece(b" y", False), 9: Piece(b"<|im_end|>", True)},
    )


QUIET = (0.01, 0, SURE, SURE)
SLIP = (0.3, 1, SURE, -7.0)
MILD = (4.0, 0, SURE, SURE)
HOLLOW = (5.0, 1, HALF, -7.0)


def kinds(answer, beta=0.0):
    return [(mark.position, mark.kind, mark.turning_point) for mark in answer.marks(beta)]


def test_where_nothing_is_wrong_nothing_is_marked():
    assert kinds(answer_of(*[QUIET] * 40)) == []


def test_a_twentieth_is_marked_mistakes_before_large_divergences():
    tokens = [QUIET] * 40
    tokens[7], tokens[11], tokens[30] = MILD, HOLLOW, SLIP
    assert kinds(answer_of(*tokens)) == [(11, "unsure", False), (30, "serious", True)]
    assert kinds(answer_of(*tokens[:12])) == [(11, "unsure", False)]  # one of twelve, rounded up


def test_the_turning_point_is_marked_however_small_its_divergence():
    tokens = [QUIET] * 20
    tokens[3], tokens[9] = SLIP, (8.0, 1, SURE, -9.0)
    assert kinds(answer_of(*tokens)) == [(3, "serious", True)]


def test_what_the_teacher_finds_a_tenth_as_likely_is_serious_and_more_is_not():
    best = math.log(0.7)
    assert answer_of((1, 1, best, best - 2.4)).kind(0) == "serious"
    assert answer_of((1, 1, best, best - 2.2)).kind(0) == "mild"


def test_only_what_is_stored_can_be_asked_for():
    answer = answer_of(QUIET, temperatures=(1.0, 2.0))
    assert answer.nats(1.0, 2.0) == pytest.approx([0.05])
    with pytest.raises(UsageError, match=r"0, 0\.25, 0\.5, 0\.75, 1\."):
        answer.nats(0.3)
    with pytest.raises(UsageError, match="temperature 1, 2"):
        answer.nats(1.0, 3.0)


def sheet_of(*answers):
    return MarkSheet("run:a@2", "teacher", 2, 1.0, answers)


def test_what_is_stored_comes_back(tmp_path):
    first = answer_of(QUIET, SLIP, HOLLOW, temperatures=(1.0, 2.0))
    second = replace(answer_of(MILD, key="b/1", temperatures=(1.0, 2.0)), vocabulary=first.vocabulary, cut_off=True)
    path = tmp_path / "marks" / marks_name(2)
    write_marks(path, sheet_of(first, second))
    sheet = read_marks(path)
    assert (sheet.student, sheet.teacher, sheet.step, sheet.beta) == ("run:a@2", "teacher", 2, 1.0)
    for stored, given_ in zip(sheet.answers, (first, second), strict=True):
        for name, value in vars(given_).items():
            if isinstance(value, np.ndarray):
                np.testing.assert_array_equal(getattr(stored, name), value)
                assert getattr(stored, name).dtype == value.dtype
            else:
                assert getattr(stored, name) == value, name
        assert [stored.candidates(place) for place in range(len(stored))] == [
            given_.candidates(place) for place in range(len(given_))
        ]
    assert [answer.key for answer in sheet.worst(1, 1.0).answers] == ["b/1"]


@pytest.mark.parametrize("damage", ["cut", "other", "linked", "short"])
def test_a_damaged_file_is_named(tmp_path, damage):
    path = tmp_path / "marks.safetensors"
    sheet = sheet_of(answer_of(QUIET, SLIP))
    write_marks(path, sheet if damage != "short" else replace(sheet, answers=(answer_of(QUIET),)))
    data = path.read_bytes()
    if damage == "cut":
        path.write_bytes(data[:-20])
    elif damage == "other":
        path.write_bytes(data.replace(b"limbeck-marks-1", b"limbeck-marks-9"))
    elif damage == "short":
        path.write_bytes(data.replace(b'\\"num_tokens\\": 1', b'\\"num_tokens\\": 7'))
    else:
        path.rename(tmp_path / "real")
        path.symlink_to(tmp_path / "real")
    with pytest.raises(DataError, match=r"marks\.safetensors"):
        read_marks(path)


def test_a_run_without_marks_says_how_to_get_some(tmp_path):
    (tmp_path / "runs" / "bare").mkdir(parents=True)
    (tmp_path / "runs" / "bare" / "events.jsonl").touch()
    with pytest.raises(UsageError, match="limbeck mark bare --prompt"):
        worst_marks("bare", tmp_path)


NASTY = st.text(alphabet=[*"\\uU2423E ⟨⟩⟦⟧␣⏎⇥", *"\n\t\r\x1b[\x9b\u202e\u200d\x00é"], max_size=6).map(str.encode)
BYTES = st.one_of(NASTY, st.binary(max_size=4), st.sampled_from([b"\xe2\x82", b"<|im_end|>", " é".encode()[:2]]))
PIECES = st.builds(Piece, BYTES, st.booleans())


@given(PIECES, PIECES)
def test_different_tokens_look_different_and_nothing_controls_the_terminal(one, other):
    assert (one.shown == other.shown) == (one == other)
    assert safe(one.shown) == one.shown
    assert not set("\n\t") & set(one.shown)


def test_blanks_half_characters_and_control_tokens_are_shown_by_signs():
    shown = [
        Piece(data, special).shown
        for data, special in (
            (b" the\n", False),
            (b"\xe2\x82", False),
            (b"<|im_end|>", False),
            (b"<|im_end|>", True),
            ("␣".encode(), False),
            ("<b>\u202e\x1b[2J".encode(), False),
        )
    ]
    assert shown == [
        *("␣the⏎", "⟨E2 82⟩", "<|im_end|>", "⟦<|im_end|>⟧", "\\u2423", "<b>\\u202e\\u001b[2J"),
    ]


def test_half_characters_that_stand_together_are_read_together():
    answer = answer_of(QUIET, QUIET, QUIET)
    vocabulary = {0: Piece(b"\xe2\x82", False), 1: Piece(b"\xac 5", False), 9: Piece(b"<|im_end|>", True)}
    euro = replace(answer, token_ids=np.array([0, 1, 9], np.int32), vocabulary=vocabulary)
    assert euro.text() == "€ 5"
    assert euro.shown() == "€ 5⟦<|im_end|>⟧"
    assert euro.shown(0, 1) == "⟨E2 82⟩"
