"""Stop ids and the padding id."""

from __future__ import annotations

import pytest
import torch
from transformers import GenerationConfig, PreTrainedTokenizerFast

from builders import CHATML, tiny_llama, tiny_tokenizer
from limbeck.data.stops import StopSet, compare_stops, pad_id, stop_ids
from limbeck.data.templates import choose_template
from limbeck.errors import ModelError

END_OF_TEXT, START, END = 0, 1, 2


def stops(tokenizer: PreTrainedTokenizerFast, eos: int | list[int] | None, *, configured: bool = True) -> StopSet:
    template = choose_template("student", tokenizer, None, student_name="student", teacher_name="teacher")
    return stop_ids(tokenizer, GenerationConfig(eos_token_id=eos) if configured else None, template, {})


def test_every_stop_id_of_the_config_and_the_end_of_turn_stop() -> None:
    tokenizer = tiny_tokenizer(extra_tokens=["<|eom|>"])
    found = stops(tokenizer, [END_OF_TEXT, 300, END_OF_TEXT, END])
    assert found == StopSet((END_OF_TEXT, 300, END), END, ())
    assert stops(tokenizer, END) == StopSet((END,), END, ())


@pytest.mark.report("EP-03")
def test_a_base_students_stop_token_that_is_not_the_end_of_turn_is_named_and_both_stop() -> None:
    tokenizer = tiny_tokenizer(eos_token="<|endoftext|>")
    found = stops(tokenizer, END_OF_TEXT)
    assert found.ids == (END_OF_TEXT, END)
    assert found.end_of_turn == END
    assert len(found.notes) == 1
    assert (
        "own stop token is <|endoftext|> (id 0), but the template ends a turn with <|im_end|> (id 2)" in found.notes[0]
    )


@pytest.mark.report("EP-03")
def test_a_teacher_that_ends_turns_otherwise_is_noted_with_what_to_set() -> None:
    tokenizer = tiny_tokenizer()
    base, chat = StopSet((END_OF_TEXT,), END_OF_TEXT, ()), StopSet((END_OF_TEXT, END), END, ())
    only_end = StopSet((END,), END, ())
    names = {"student_name": "small", "teacher_name": "large"}
    (note,) = compare_stops(tokenizer, base, chat, **names)
    assert note.startswith("large ends a turn with <|im_end|> (id 2), but answers of small do not stop there")
    assert note.endswith("set template: teacher.")
    assert len(compare_stops(tokenizer, base, only_end, **names)) == 2
    assert compare_stops(tokenizer, chat, only_end, **names) == ()


@pytest.mark.report("EP-05")
def test_without_a_configured_stop_the_tokenizers_serves_and_is_named() -> None:
    for found in (stops(tiny_tokenizer(), None), stops(tiny_tokenizer(), None, configured=False)):
        assert found.ids == (END,)
        assert found.notes == (
            "The model's configuration specifies no stop token. The tokenizer's is used: <|im_end|> (id 2).",
        )
    assert stops(tiny_tokenizer(), []).ids == (END,)
    # neither: the template's end of turn is enough
    found = stops(tiny_tokenizer(eos_token=None), None)
    assert (found.ids, found.end_of_turn) == ((END,), END)
    assert [note.code for note in found.notes] == ["data.stop-from-template"]


def test_a_template_that_ends_a_turn_with_text_is_said_and_nothing_at_all_is_refused() -> None:
    plain = CHATML.replace("<|im_end|>", "<done>")
    found = stops(tiny_tokenizer(chat_template=plain), END)
    assert (found.ids, found.end_of_turn) == ((END,), None)
    assert "ends a turn with the text '<done>\\n'" in found.notes[0]
    with pytest.raises(ModelError, match=r"model\.stop-missing"):
        stops(tiny_tokenizer(chat_template=plain, eos_token=None), None)


def test_blanks_before_the_end_of_turn_do_not_hide_it() -> None:
    assert (
        stops(tiny_tokenizer(chat_template=CHATML.replace("'<|im_end|>'", "' \n <|im_end|>'")), END).end_of_turn == END
    )


@pytest.mark.report("EP-04", "VT-05")
def test_padding_takes_an_existing_id_and_the_vocabulary_stays_as_it_is() -> None:
    tokenizer = tiny_tokenizer(num_entries=300)
    model = tiny_llama(tokenizer)
    before = tokenizer.get_vocab()
    pad = pad_id(tokenizer, stops(tokenizer, END), num_rows=300)
    assert pad == END
    assert tokenizer.get_vocab() == before
    assert (len(tokenizer), tokenizer.pad_token, model.get_input_embeddings().weight.shape[0]) == (300, None, 300)
    # six rows of clearly different length in one batch: each row's logits are those it has alone
    rows = [list(range(10, 10 + length)) for length in (1, 3, 5, 17, 30, 41)]
    width = max(len(row) for row in rows)
    ids_BT = torch.tensor([row + [pad] * (width - len(row)) for row in rows])
    lengths_B1 = torch.tensor([[len(row)] for row in rows])
    mask_BT = (torch.arange(width) < lengths_B1).long()
    with torch.no_grad():
        together_BTV = model(input_ids=ids_BT, attention_mask=mask_BT).logits
        for row, logits_TV in zip(rows, together_BTV, strict=True):
            alone_TV = model(input_ids=torch.tensor([row])).logits[0]
            torch.testing.assert_close(logits_TV[: len(row)], alone_TV, atol=2e-5, rtol=1e-4)


@pytest.mark.report("VT-05")
def test_a_padding_token_without_a_row_does_not_serve() -> None:
    stop = StopSet((END,), END, ())
    tokenizer = tiny_tokenizer(pad_token="<|endoftext|>")
    assert pad_id(tokenizer, stop) == END_OF_TEXT
    grown = tiny_tokenizer(extra_tokens=["[PAD]"], pad_token="[PAD]")
    assert grown.pad_token_id == 300
    assert pad_id(grown, stop, num_rows=384) == 300
    assert pad_id(grown, stop, num_rows=300) == END
