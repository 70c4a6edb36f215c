"""The held-out split: by content, stable, both sides filled."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import prompt_row, write_rows
from limbeck.data.prompt import Message, PromptRow
from limbeck.data.split import split_held_out
from limbeck.errors import DataError


def rows_of(texts: list[str]) -> list[PromptRow]:
    rows = []
    for number, text in enumerate(texts, start=1):
        messages = (Message("user", text),)
        rows.append(PromptRow(messages, None, f"rows.jsonl:{number}"))
    return rows


def contents(rows: tuple[PromptRow, ...]) -> set[str]:
    return {row.messages[0].content for row in rows}


def test_a_share_is_met_and_each_row_stands_on_one_side() -> None:
    rows = rows_of([f"question {i}" for i in range(2000)])
    split = split_held_out(rows, 0.1)
    # binomial: 200 expected, standard deviation below 14
    assert 140 < len(split.held_out) < 260
    assert sorted(row.source for row in (*split.train, *split.held_out)) == sorted(row.source for row in rows)
    held = {row.source for row in split.held_out}
    assert [row.source for row in split.train] == [row.source for row in rows if row.source not in held]


@pytest.mark.report("DC-07")
def test_a_share_does_not_depend_on_order_or_on_added_rows() -> None:
    texts = [f"question {i}" for i in range(300)]
    held = contents(split_held_out(rows_of(texts), 0.2).held_out)
    random.Random(0).shuffle(texts)
    more = [*(f"later {i}" for i in range(100)), *texts]
    assert contents(split_held_out(rows_of(more), 0.2).held_out) & set(texts) == held


def test_a_larger_share_holds_out_the_same_and_more() -> None:
    rows = rows_of([f"question {i}" for i in range(300)])
    small, large = split_held_out(rows, 0.1), split_held_out(rows, 0.3)
    assert contents(small.held_out) < contents(large.held_out)


def test_the_draw_is_independent_of_the_content_hash_itself() -> None:
    rows = rows_of([f"question {i}" for i in range(2000)])
    held = split_held_out(rows, 0.5).held_out
    low = sum(int(row.content_hash[:8], 16) < 2**31 for row in held)
    # half of the held-out rows have a low hash: the standard deviation is about 16 in 1000
    assert abs(low / len(held) - 0.5) < 0.06


@pytest.mark.report("DC-07")
def test_of_a_hundred_rows_with_thirty_repeated_none_stands_on_both_sides() -> None:
    texts = [f"question {i}" for i in range(70)] + [f"question {i}" for i in range(30)]
    for held_out in (0.1, 10):
        split = split_held_out(rows_of(texts), held_out)
        assert not contents(split.train) & contents(split.held_out)
        assert len(split.train) + len(split.held_out) == 100
        assert split == split_held_out(rows_of(texts), held_out)


@pytest.mark.report("DC-07")
@given(
    st.lists(st.integers(0, 9), min_size=2, max_size=30),
    st.one_of(st.floats(0.001, 0.999), st.integers(1, 3)),
)
def test_no_content_on_both_sides_and_no_side_empty(numbers: list[int], held_out: float) -> None:
    rows = rows_of([str(number) for number in numbers])
    num_contents = len(set(numbers))
    if num_contents < 2 or held_out >= num_contents:
        with pytest.raises(DataError, match=r"data\.too-few-to-hold-out"):
            split_held_out(rows, held_out)
        return
    split = split_held_out(rows, held_out)
    assert not contents(split.train) & contents(split.held_out)
    assert split.train
    assert split.held_out
    assert len(split.train) + len(split.held_out) == len(rows)
    if held_out >= 1:
        assert len(contents(split.held_out)) == held_out


def test_a_count_means_different_conversations_and_says_so() -> None:
    rows = rows_of(["a", "b", "b", "b", "c", "d"])
    split = split_held_out(rows, 3)
    assert len(contents(split.held_out)) == 3
    assert split.notes[0].startswith(f"Held out: {len(split.held_out)} of 6 rows. Rows with the same prompt")


@pytest.mark.report("DC-07")
def test_a_file_takes_its_conversations_out_of_training(tmp_path: Path) -> None:
    rows = rows_of([f"question {i}" for i in range(10)])
    path = write_rows(tmp_path / "held.jsonl", [prompt_row(f"question {i}", answer="x") for i in (8, 9, 10, 11)])
    split = split_held_out(rows, path)
    assert contents(split.train) == {f"question {i}" for i in range(8)}
    assert contents(split.held_out) == {f"question {i}" for i in (8, 9, 10, 11)}
    assert split.notes[-1].endswith("because held.jsonl contains them too: 2 rows (rows.jsonl:9, rows.jsonl:10).")
    assert any("4 rows have a reference answer" in note for note in split.notes)


def test_a_file_with_every_prompt_leaves_nothing_to_train_on(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "held.jsonl", [prompt_row("a"), prompt_row("b")])
    with pytest.raises(DataError, match=r"leaves 0 of 3 rows for training and holds out 2\."):
        split_held_out(rows_of(["a", "b", "a"]), path)
