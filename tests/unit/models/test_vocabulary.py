"""Vocabularies: compared id by id."""

from __future__ import annotations

import json
import re
import sys

import pytest
import torch
from tokenizers import Tokenizer, models, normalizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from builders import CHATML, OTHER_CORPUS, tiny_llama, tiny_tokenizer
from limbeck.errors import VocabularyMismatch
from limbeck.models.vocabulary import VocabularyComparison, compare_vocabularies


def compared(
    student: PreTrainedTokenizerBase, teacher: PreTrainedTokenizerBase, rows: tuple[int, int] = (320, 320)
) -> VocabularyComparison:
    return compare_vocabularies(
        student, teacher, student_rows=rows[0], teacher_rows=rows[1], student_name="small", teacher_name="large"
    )


def test_equal_tokenizers_without_padded_rows_need_no_note() -> None:
    result = compared(tiny_tokenizer(), tiny_tokenizer(), (300, 300))
    assert result == VocabularyComparison(300, 300, 300, 300, 300, ())


@pytest.mark.report("VT-01")
@pytest.mark.parametrize("rows", [(320, 384), (384, 320), (300, 384)])
def test_padded_output_layers_of_different_width_share_the_real_vocabulary(rows: tuple[int, int]) -> None:
    tokenizer = tiny_tokenizer(num_entries=300)
    result = compared(tokenizer, tiny_tokenizer(num_entries=300), rows)
    assert (result.num_shared, result.student_rows, result.teacher_rows) == (300, *rows)
    (note,) = result.notes
    assert f"{rows[0]} rows (small) and {rows[1]} rows (large)" in note
    assert "cut to the 300 ids" in note
    # both models' logits have these ids, so a divergence over them has one shape whatever the widths
    ids_BT = torch.tensor([[1, 20, 30]])
    with torch.no_grad():
        shapes = {
            tiny_llama(vocab_size=num_rows)(input_ids=ids_BT).logits[..., : result.num_shared].shape
            for num_rows in rows
        }
    assert shapes == {(1, 3, 300)}


def test_another_id_map_of_the_same_size_is_refused_with_the_first_differences() -> None:
    student, teacher = tiny_tokenizer(), tiny_tokenizer(corpus=OTHER_CORPUS)
    ours, theirs = (tokenizer.convert_ids_to_tokens(list(range(300))) for tokenizer in (student, teacher))
    different = [i for i in range(300) if ours[i] != theirs[i]]
    with pytest.raises(VocabularyMismatch) as raised:
        compared(student, teacher)
    error = raised.value
    assert error.code == "vocabulary.mismatch"
    assert "small (300 tokens) and large (300 tokens)" in error.given
    assert "equal sizes are not enough" in error.needed
    for i in different[:5]:
        assert f"{i} is {ours[i]!r} and {theirs[i]!r}" in error.given
    assert f"and {len(different) - 5} more" in error.given


@pytest.mark.report("VT-06")
def test_one_swapped_pair_in_a_large_vocabulary_is_found() -> None:
    student, teacher = word_tokenizer(5000), word_tokenizer(5000, swapped=(4321, 4322))
    with pytest.raises(VocabularyMismatch) as raised:
        compared(student, teacher, (5000, 5000))
    assert "these ids name different tokens: 4321 is 'word4321' and 'word4322', 4322 is" in raised.value.given


@pytest.mark.report("VT-06")
def test_another_special_token_at_the_same_id_is_another_id_map() -> None:
    renamed = tiny_tokenizer(special_tokens=["<|endoftext|>", "<|im_start|>", "<|eot|>"], eos_token="<|eot|>")
    with pytest.raises(
        VocabularyMismatch, match=re.escape("these ids name different tokens: 2 is '<|im_end|>' and '<|eot|>'")
    ):
        compared(tiny_tokenizer(), renamed)
    added = tiny_tokenizer(extra_tokens=["<a>"]), tiny_tokenizer(extra_tokens=["<b>"])
    with pytest.raises(VocabularyMismatch, match="300 is '<a>' and '<b>'"):
        compared(*added)


def test_disjoint_vocabularies_are_refused() -> None:
    with pytest.raises(VocabularyMismatch, match="no id is defined by both"):
        compared(word_tokenizer(10), word_tokenizer(10, first_id=10))


@pytest.mark.parametrize("teacher_has_more", [True, False])
def test_more_tokens_at_the_end_of_one_are_accepted_and_named(teacher_has_more: bool) -> None:
    plain, more = tiny_tokenizer(), tiny_tokenizer(extra_tokens=["<think>", "</think>"])
    pair = (plain, more) if teacher_has_more else (more, plain)
    result = compared(*pair, (320, 320))
    assert result.num_shared == 300
    assert (result.student_defined, result.teacher_defined) == ((300, 302) if teacher_has_more else (302, 300))
    name = "large" if teacher_has_more else "small"
    assert any(f"{name} alone defines 2 of its ids (300 '<think>', 301 '</think>'); " in note for note in result.notes)


def test_an_output_layer_narrower_than_the_tokenizer_cuts_the_shared_part() -> None:
    result = compared(tiny_tokenizer(), tiny_tokenizer(), (290, 300))
    assert result.num_shared == 290
    assert "290 rows (small)" in result.notes[0]


def test_rows_that_a_gguf_file_names_as_padding_define_nothing() -> None:
    padded = tiny_tokenizer(extra_tokens=[f"[PAD{i}]" for i in range(300, 320)])
    assert compared(padded, tiny_tokenizer(), (320, 384)).num_shared == 300
    assert compared(padded, padded, (320, 320)).num_shared == 300
    # a padding token by that name at another id is a token
    assert compared(tiny_tokenizer(extra_tokens=["[PAD7]"]), tiny_tokenizer(extra_tokens=["[PAD7]"])).num_shared == 301


def test_a_gap_that_one_side_fills_is_named() -> None:
    result = compared(word_tokenizer(10), word_tokenizer(10, without=5), (10, 10))
    assert result.num_shared == 10
    assert any("small alone defines 1 of its ids (5 'word5')" in note for note in result.notes)


@pytest.mark.report("EP-03")
def test_other_roles_and_templates_are_notes_with_what_to_set() -> None:
    base = tiny_tokenizer(eos_token="<|endoftext|>", chat_template=None)
    chat = tiny_tokenizer(eos_token="<|im_end|>", bos_token="<|im_start|>")
    result = compared(base, chat, (300, 300))
    begins, ends = result.notes
    assert begins.startswith(
        "bos_token is no token in small and <|im_start|> in large; both read prompts as the chosen"
    )
    assert ends.startswith("eos_token is <|endoftext|> in small and <|im_end|> in large; ")


def test_other_merges_or_another_normaliser_over_the_same_tokens_are_a_note() -> None:
    student = tiny_tokenizer()
    core = json.loads(student.backend_tokenizer.to_str())
    core["model"]["merges"] = core["model"]["merges"][:5]
    fewer_merges = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(core)), eos_token="<|im_end|>"
    )
    lowered = tiny_tokenizer()
    lowered.backend_tokenizer.normalizer = normalizers.Lowercase()
    for teacher in (fewer_merges, lowered):
        teacher.chat_template = CHATML
        assert teacher.get_vocab() == student.get_vocab()
        (note,) = compared(student, teacher, (300, 300)).notes
        assert "have the same tokens but cut" in note
        assert 'such as "The quick brown FOX can\'t jump."' in note


def test_a_large_vocabulary_is_compared() -> None:
    student, teacher = word_tokenizer(151_669), word_tokenizer(151_669)
    assert compared(student, teacher, (151_936, 152_064)).num_shared == 151_669


def test_comparing_takes_as_many_calls_for_each_entry_of_a_large_vocabulary_as_of_a_small_one() -> None:
    counts = []
    for num_words in (4_000, 16_000):
        student, teacher = word_tokenizer(num_words), word_tokenizer(num_words)
        count = [0]

        def seen(frame, event, argument, count=count) -> None:
            count[0] += event in ("call", "c_call")

        sys.setprofile(seen)
        try:
            compared(student, teacher, (num_words, num_words))
        finally:
            sys.setprofile(None)
        counts.append(count[0])
    small, large = counts
    assert large <= 4.1 * small


def word_tokenizer(
    num_words: int, *, first_id: int = 0, swapped: tuple[int, int] | None = None, without: int | None = None
) -> PreTrainedTokenizerFast:
    """One token a word: as many entries as wanted, without training."""
    vocabulary = {f"word{i}": i for i in range(first_id, first_id + num_words) if i != without}
    if swapped is not None:
        one, other = swapped
        vocabulary[f"word{one}"], vocabulary[f"word{other}"] = other, one
    core = Tokenizer(models.WordLevel(vocabulary, unk_token=f"word{first_id}"))
    return PreTrainedTokenizerFast(tokenizer_object=core)
