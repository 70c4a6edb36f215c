"""Rows to ids, once, and the mask rule."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from builders import CHATML, CHATML_WITH_DEFAULT_SYSTEM, prompt_row, tiny_tokenizer, write_rows
from limbeck.data import chat
from limbeck.data.batch import collate, completion_positions
from limbeck.data.chat import RenderedPrompts, render_prompts, tokenise
from limbeck.data.prompt import Message, PromptRow
from limbeck.data.row_errors import RowErrors
from limbeck.data.rows import read_rows
from limbeck.data.templates import Template, choose_template
from limbeck.errors import DataError, RecipeError, Refusal

STRICT = (
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate user/assistant') }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Earlier think blocks are dropped, and the answer is opened with an empty one, as reasoning models do.
THINKING = (
    "{% for message in messages %}{% set content = message['content'] %}"
    "{% if message['role'] == 'assistant' and not loop.last %}"
    "{% set content = content.split('</think>')[-1] %}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n\n</think>\n\n' }}{% endif %}"
)


def row_of(*turns: tuple[str, str], number: int = 1) -> PromptRow:
    messages = tuple(Message(role, content) for role, content in turns)
    return PromptRow(messages, None, f"rows.jsonl:{number}", {"id": number})


def rows_of(texts: list[str]) -> list[PromptRow]:
    return [row_of(("user", text), number=number) for number, text in enumerate(texts, start=1)]


def template_of(tokenizer: PreTrainedTokenizerFast) -> Template:
    return choose_template("student", tokenizer, None, student_name="student", teacher_name="teacher")


def rendered(
    rows: list[PromptRow],
    tokenizer: PreTrainedTokenizerFast,
    *,
    options: dict[str, object] | None = None,
    max_prompt_tokens: int = 1000,
    on_long: str = "refuse",
) -> RenderedPrompts:
    assert on_long in ("refuse", "skip")
    return render_prompts(
        rows,
        tokenizer,
        template_of(tokenizer),
        options=options or {},
        max_prompt_tokens=max_prompt_tokens,
        on_long="skip" if on_long == "skip" else "refuse",
    )


def test_a_prompt_ends_where_the_answer_begins() -> None:
    tokenizer = tiny_tokenizer()
    (prompt,) = rendered([row_of(("system", "Be brief."), ("user", "What?"))], tokenizer).prompts
    expected = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat?<|im_end|>\n<|im_start|>assistant\n"
    assert prompt.text == expected
    assert tokenizer.decode(list(prompt.ids)) == expected
    assert list(prompt.ids) == tokenizer.apply_chat_template(
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What?"}],
        add_generation_prompt=True,
        return_dict=False,
    )
    ids_bytes = b"".join(token.to_bytes(4, "little") for token in prompt.ids)
    assert prompt.content_hash == hashlib.sha256(ids_bytes).hexdigest()
    assert (prompt.source, prompt.extra) == ("rows.jsonl:1", {"id": 1})


def test_equal_prompts_are_told_apart_by_their_occurrence() -> None:
    prompts = rendered(rows_of(["a", "b", "a", "a"]), tiny_tokenizer()).prompts
    assert [prompt.occurrence for prompt in prompts] == [0, 0, 1, 2]
    assert len({(prompt.content_hash, prompt.occurrence) for prompt in prompts}) == 4


def test_no_rows_give_no_prompts() -> None:
    assert rendered([], tiny_tokenizer()).prompts == ()


def test_many_rows_keep_their_order() -> None:
    tokenizer = tiny_tokenizer()
    prompts = rendered(rows_of([f"number {i}" for i in range(2005)]), tokenizer).prompts
    assert [prompt.source for prompt in prompts] == [f"rows.jsonl:{i}" for i in range(1, 2006)]
    assert all(list(p.ids) == tokenizer.encode(p.text, add_special_tokens=False) for p in prompts[995:1005])


@pytest.mark.report("CT-01")
def test_an_injected_system_text_is_shown_where_a_row_has_none() -> None:
    tokenizer = tiny_tokenizer(chat_template=CHATML_WITH_DEFAULT_SYSTEM)
    own = row_of(("system", ""), ("user", "a"))
    result = rendered([*rows_of(["a", "b"]), own], tokenizer)
    assert result.injected_system == "<|im_start|>system\nYou are a helpful assistant."
    assert "adds a system message to 2 rows (rows.jsonl:1, rows.jsonl:2): " in result.notes[0]
    # an empty system text of the row's own stays as given
    assert result.prompts[2].text.startswith("<|im_start|>system\n<|im_end|>\n<|im_start|>user\n")
    assert rendered([own], tokenizer).injected_system is None
    assert rendered(rows_of(["a"]), tiny_tokenizer()).injected_system is None


@pytest.mark.report("CT-02")
def test_the_last_prompt_ids_are_the_header_and_the_first_answer_id_is_content() -> None:
    tokenizer = tiny_tokenizer()
    (prompt,) = rendered(rows_of(["hi"]), tokenizer).prompts
    answer = tokenizer.encode("Hello", add_special_tokens=False)
    whole = tokenizer.encode("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nHello", add_special_tokens=False)
    assert [*prompt.ids, *answer] == whole


@pytest.mark.report("CT-03")
def test_a_think_block_that_opens_the_answer_belongs_to_the_prompt() -> None:
    tokenizer = tiny_tokenizer(chat_template=THINKING)
    turns = (("user", "a"), ("assistant", "<think>long</think>one"), ("user", "b"))
    plain = (("user", "a"), ("assistant", "one"), ("user", "b"))
    result = rendered([row_of(*plain, number=1), row_of(*turns, number=2)], tokenizer)
    kept, stripped = result.prompts
    # one rendering, with the generation prompt: the whole is the prompt, to which an answer is appended
    expected = (
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\none<|im_end|>\n<|im_start|>user\nb<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    assert kept.text == stripped.text == expected
    assert list(stripped.ids) == tokenizer.encode(expected, add_special_tokens=False)
    assert any("opens each answer with" in note for note in result.notes)
    assert any("changes the text of turns in 1 row (rows.jsonl:2)" in note for note in result.notes)


@pytest.mark.report("CT-08")
def test_rows_that_the_template_refuses_are_all_named_with_its_words() -> None:
    tokenizer = tiny_tokenizer(chat_template=STRICT)
    rows = rows_of([f"q{i}" for i in range(1000)])
    rows[16] = row_of(("user", "a"), ("user", "b"), number=17)
    rows[499] = row_of(("system", "s"), ("user", "a"), number=500)
    rows[998] = row_of(("user", "a"), ("assistant", "b"), ("user", "c"), ("user", "d"), number=999)
    with pytest.raises(DataError) as raised:
        rendered(rows, tokenizer)
    assert raised.value.code == "data.template-refused"
    assert "rows.jsonl has 3 invalid rows (3 errors):" in raised.value.given
    said = 'the template fails with "Roles must alternate user/assistant"'
    assert f"rows.jsonl:17 (id 17), messages[1] (user): {said}" in raised.value.given
    assert (
        'rows.jsonl:500 (id 500), messages[0] (system): the template fails with "System role not supp'
        in raised.value.given
    )
    assert f"rows.jsonl:999 (id 999), messages[3] (user): {said}" in raised.value.given
    errors = RowErrors("rows.jsonl")
    kept = render_prompts(
        rows, tokenizer, template_of(tokenizer), options={}, max_prompt_tokens=100, on_long="refuse", errors=errors
    )
    assert (len(kept.prompts), errors.num_rows) == (997, 3)
    assert not {"rows.jsonl:17", "rows.jsonl:500", "rows.jsonl:999"} & {prompt.source for prompt in kept.prompts}
    with pytest.raises(DataError):
        render_prompts(
            [rows[16]], tokenizer, template_of(tokenizer), options={}, max_prompt_tokens=100, on_long="refuse",
            errors=RowErrors("rows.jsonl"),
        )  # fmt: skip


def test_options_reach_the_template_and_an_unread_one_is_refused() -> None:
    source = CHATML + "{% if add_generation_prompt and thinking %}<think>{% endif %}"
    tokenizer = tiny_tokenizer(chat_template=source)
    assert rendered(rows_of(["a"]), tokenizer, options={"thinking": True}).prompts[0].text.endswith("<think>")
    assert not rendered(rows_of(["a"]), tokenizer, options={"thinking": False}).prompts[0].text.endswith("<think>")
    with pytest.raises(RecipeError, match=r"recipe\.template-option-unused"):
        rendered(rows_of(["a"]), tokenizer, options={"thinkin": True})


DATED = "{% if date_string is not defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}"


def test_a_date_can_be_given_and_is_mentioned_otherwise() -> None:
    tokenizer = tiny_tokenizer(chat_template=DATED + "{{ 'Today: ' + date_string + '\n' }}" + CHATML)
    fixed = rendered(rows_of(["a"]), tokenizer, options={"date_string": "26 Jul 2024"})
    assert fixed.prompts[0].text.startswith("Today: 26 Jul 2024\n<|im_start|>user")
    assert fixed.injected_system == "Today: 26 Jul 2024"
    assert not any("today's date" in note for note in fixed.notes)
    floating = rendered(rows_of(["a"]), tokenizer)
    assert any("today's date" in note for note in floating.notes)


@pytest.mark.report("CT-07")
def test_a_start_token_stands_once() -> None:
    with_bos = {"bos_token": "<|endoftext|>", "writes_bos": True}
    bos = 0
    written = tiny_tokenizer(chat_template="{{ bos_token }}" + CHATML, **with_bos)
    (prompt,) = (result := rendered(rows_of(["a"]), written)).prompts
    assert prompt.ids[0] == bos != prompt.ids[1]
    assert result.notes == ()
    # a template that brings none gets the tokenizer's
    missing = tiny_tokenizer(chat_template=CHATML, **with_bos)
    result = rendered(rows_of(["a", "b"]), missing)
    assert result.prompts[0].ids == prompt.ids
    assert "does not write a start token. The tokenizer's own is put before each prompt" in result.notes[0]
    # and what is saved of it writes the same once
    saved = tiny_tokenizer(chat_template=template_of(missing).source, **with_bos)
    assert saved.apply_chat_template(
        [{"role": "user", "content": "a"}], add_generation_prompt=True, return_dict=False
    ) == list(prompt.ids)
    assert template_of(saved).source == template_of(missing).source
    # a tokenizer that begins no text with it gets none
    (bare,) = rendered(rows_of(["a"]), tiny_tokenizer(chat_template=CHATML, bos_token="<|endoftext|>")).prompts
    assert bare.ids == prompt.ids[1:]
    doubled = tiny_tokenizer(chat_template="{{ bos_token }}{{ bos_token }}" + CHATML, **with_bos)
    with pytest.raises(Refusal, match=r"data\.template-double-bos"):
        rendered(rows_of(["a"]), doubled)


def test_control_tokens_in_a_rows_text_are_counted_and_named() -> None:
    rows = rows_of(["fine", "end <|im_end|> here", "more <|im_start|>system", "also fine <|im_|>"])
    (note,) = rendered(rows, tiny_tokenizer()).notes
    assert note.startswith("The text of 2 rows (rows.jsonl:2, rows.jsonl:3) contains control tokens")


@pytest.mark.report("LT-01", "LT-02")
def test_a_prompt_over_the_limit_is_named_and_never_cut() -> None:
    tokenizer = tiny_tokenizer()
    rows = rows_of([f"question {i}" for i in range(64)])
    rows[30] = row_of(("user", "The question first. " + "reference text " * 300), number=31)
    whole = rendered(rows, tokenizer, max_prompt_tokens=10_000)
    lengths = [len(prompt.ids) for prompt in whole.prompts]
    limit = sorted(lengths)[-2]
    with pytest.raises(DataError) as raised:
        rendered(rows, tokenizer, max_prompt_tokens=limit)
    assert raised.value.code == "data.prompt-too-long"
    assert f"Prompts longer than max_prompt_tokens ({limit}): 1 of 64.\n" in raised.value.given
    assert f"rows.jsonl:31: {lengths[30]} tokens" in raised.value.given
    skipped = rendered(rows, tokenizer, max_prompt_tokens=limit, on_long="skip")
    assert f"max_prompt_tokens ({limit}): 1 row (rows.jsonl:31: {lengths[30]} tokens)." in skipped.notes[0]
    # the other 63, one of them exactly as long as the limit, are whole
    assert skipped.prompts == tuple(prompt for prompt in whole.prompts if prompt.source != "rows.jsonl:31")


@pytest.mark.report("LT-01")
@pytest.mark.parametrize("on_long", ["refuse", "skip"])
def test_with_no_prompt_left_there_is_no_run(on_long: str) -> None:
    code = "data.no-prompts-left" if on_long == "skip" else "data.prompt-too-long"
    with pytest.raises(DataError) as raised:
        rendered(rows_of(["long " * 50] * 30), tiny_tokenizer(), max_prompt_tokens=20, on_long=on_long)
    assert raised.value.code == code
    assert "(20): 30 of 30." in raised.value.given
    assert "and 10 more" in raised.value.given
    assert ("long_prompts: skip" in raised.value.fix) == (on_long == "refuse")


@pytest.mark.report("DL-10")
@pytest.mark.parametrize("on_long", ["refuse", "skip"])
def test_a_book_in_one_row_is_named_with_its_size_and_never_tokenised_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_long: str
) -> None:
    book = "a word and another, " * 2_000_000
    contents = [f"question {i}" for i in range(100)]
    contents.insert(49, book)
    file = write_rows(tmp_path / "rows.jsonl", [prompt_row(text) for text in contents])
    rows = read_rows(file).rows
    assert [len(row.messages[0].content) for row in rows[48:51]] == [11, 40_000_000, 11]
    given: list[int] = []
    monkeypatch.setattr(chat, "tokenise", lambda texts, own: given.extend(map(len, texts)) or tokenise(texts, own))
    if on_long == "refuse":
        with pytest.raises(
            DataError, match=r"rows\.jsonl:50: \d{5,} tokens in the first 262144 of its 400000\d\d char"
        ):
            rendered(rows, tiny_tokenizer())
    else:
        result = rendered(rows, tiny_tokenizer(), on_long="skip")
        told = (
            r"Skipped because .*: 1 row "
            r"\(rows\.jsonl:50: \d{5,} tokens in the first 262144 of its 400000\d\d characters\)\."
        )
        assert re.fullmatch(told, result.notes[0])
        assert len(result.prompts) == 100
    assert max(given) == 2**18


def test_a_long_text_of_few_tokens_is_measured_to_its_end() -> None:
    wide = tiny_tokenizer(extra_tokens=["<" + "-" * 498 + ">"])
    text = wide.convert_ids_to_tokens(300) * 600
    num_around = len(rendered(rows_of(["a"]), wide).prompts[0].ids) - 1
    assert len(rendered(rows_of([text]), wide, max_prompt_tokens=700).prompts[0].ids) == 600 + num_around
    with pytest.raises(DataError, match=rf"rows\.jsonl:1: {600 + num_around} tokens\n"):
        rendered(rows_of([text]), wide, max_prompt_tokens=600)


# -- the mask rule ---------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4)), min_size=1, max_size=6), st.integers(0, 3))
def test_positions_are_those_before_each_completion_token(lengths: list[tuple[int, int]], spare: int) -> None:
    width = max(prompt + completion for prompt, completion in lengths) + spare
    expected = [
        row * width + prompt - 1 + step
        for row, (prompt, completion) in enumerate(lengths)
        for step in range(completion)
    ]
    prompts, completions = [prompt for prompt, _ in lengths], [completion for _, completion in lengths]
    found = completion_positions(prompts, completions, width)
    assert found.dtype == torch.int64
    assert found.tolist() == expected


def test_no_completion_gives_no_position() -> None:
    assert completion_positions([3, 2], [0, 0], 3).tolist() == []
    assert completion_positions([], [], 0).tolist() == []


@pytest.mark.parametrize(("prompts", "completions", "width"), [([0], [1], 4), ([3], [2], 4), ([2], [-1], 4)])
def test_lengths_that_cannot_be_are_our_own_mistake(prompts: list[int], completions: list[int], width: int) -> None:
    with pytest.raises(AssertionError):
        completion_positions(prompts, completions, width)


@pytest.mark.report("EP-01")
def test_padding_with_the_stop_id_loses_no_stop() -> None:
    end = 2
    prompts = [[1, 20, end, 1, 21], [1, 22, end, 23]]
    answers = [[30 + i % 5] * length + [end] for i, length in enumerate((1, 2, 5, 9, 14, 20, 25, 30))]
    rows = [(prompts[i % 2], answer) for i, answer in enumerate(answers)]
    batch = collate([p for p, _ in rows], [a for _, a in rows], pad_id=end, device=torch.device("cpu"))
    next_N = batch.ids_BT.flatten()[batch.predict_N + 1]
    assert next_N.tolist() == batch.targets_N.tolist()
    for row, (prompt, answer) in enumerate(rows):
        # end-of-turn ids inside the prompt are read, the padding after the answer is not
        assert batch.mask_BT[row].sum() == len(prompt) + len(answer)
        supervised = next_N[batch.row_N == row].tolist()
        assert supervised == answer
        assert supervised.count(end) == 1
        assert supervised[-1] == end
