"""Rows to token ids, once: every later step uses these ids, and text is never tokenised again.

Also the one mask rule: what is prompt, completion and padding follows from lengths, never from comparing ids. A
padding id that is also the stop id therefore hides nothing.

Shapes  B = sequences, T = positions, N = completion tokens of all sequences, row after row.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from limbeck.data.faults import listing, shown
from limbeck.data.rows import Message, Row
from limbeck.data.stops import StopSet, compare_stops, pad_id, stop_ids
from limbeck.data.templates import (
    RENDER_ERRORS,
    Template,
    TemplateFacts,
    check_options,
    choose_template,
    describe_refusal,
    probe_template,
    render,
)
from limbeck.errors import DataError, Refusal

__all__ = [
    "Prompt",
    "RenderedPrompts",
    "StopSet",
    "Template",
    "choose_template",
    "compare_stops",
    "completion_mask",
    "completion_positions",
    "pad_id",
    "render_prompts",
    "stop_ids",
]

_NUM_TOKENISED_AT_ONCE = 1000
_NUM_NAMED = 5


@dataclass(frozen=True)
class Prompt:
    """A rendered prompt. `occurrence` counts the earlier prompts of the same rendering that have the same ids."""

    ids: tuple[int, ...]
    text: str
    messages: tuple[Message, ...]
    content_hash: str
    occurrence: int
    source: str
    reference: str | None
    extra: Mapping[str, object]


@dataclass(frozen=True)
class RenderedPrompts:
    """Prompts in the order of their rows.

    Attributes:
        prompts: what is trained or evaluated on.
        skipped: rows over the limit, with their tokens.
        injected_system: what the template wrote where a row had no system turn; None if nothing.
        notes: sentences for the user.
        generation_prompt: the text that opens an answer.
    """

    prompts: tuple[Prompt, ...]
    skipped: tuple[tuple[str, int], ...]
    injected_system: str | None
    notes: tuple[str, ...]
    generation_prompt: str = ""


def render_prompts(
    rows: Sequence[Row],
    tokenizer: PreTrainedTokenizerBase,
    template: Template,
    *,
    options: Mapping[str, object],
    max_prompt_tokens: int,
    on_long: Literal["refuse", "skip"],
) -> RenderedPrompts:
    """Renders each row with its generation prompt and tokenises the text, adding no tokens to what the template wrote.

    Args:
        rows: the rows; none gives none.
        tokenizer: the student's.
        template: the frozen template.
        options: variables for the template (template_options), for example date_string or enable_thinking.
        max_prompt_tokens: the limit in tokens, the generation prompt included.
        on_long: what happens to rows over the limit: refuse names them all and stops, skip leaves them out.

    Raises:
        DataError: the template refuses rows (all are listed), rows are over the limit, or none is left.
        Refusal: the template does not open an answer, leaves the user's text out, or doubles the start token.
        RecipeError: an option that the template does not read.
    """
    check_options(template, options)
    facts = probe_template(tokenizer, template, options)
    texts = _render_all(rows, tokenizer, template, options)
    ids = _tokenise(texts, tokenizer)
    _check_lengths(rows, ids, max_prompt_tokens, on_long)
    prompts: list[Prompt] = []
    skipped: list[tuple[str, int]] = []
    seen: Counter[str] = Counter()
    for row, text, row_ids in zip(rows, texts, ids, strict=True):
        if len(row_ids) > max_prompt_tokens:
            skipped.append((row.source, len(row_ids)))
            continue
        key = _ids_hash(row_ids)
        prompts.append(Prompt(row_ids, text, row.messages, key, seen[key], row.source, row.reference, row.extra))
        seen[key] += 1
    injected = facts.injected_system if any(not _has_system(prompt.messages) for prompt in prompts) else None
    notes = [
        *_skip_notes(skipped, len(rows), max_prompt_tokens),
        *_template_notes(prompts, template, facts, injected, options),
        *_start_notes(prompts, tokenizer),
        *_content_notes(prompts, tokenizer),
    ]
    return RenderedPrompts(tuple(prompts), tuple(skipped), injected, tuple(notes), facts.generation_prompt)


def completion_positions(
    prompt_lengths: Sequence[int] | Tensor, completion_lengths: Sequence[int] | Tensor, width: int
) -> Tensor:
    """Flat indices [N] into [B * T] of the positions that predict each completion token, sequence after sequence.

    Token t is predicted at position t - 1: a prompt of p tokens and a completion of c take the positions p - 1 to
    p + c - 2, so the first is that of the prompt's last token, and the last predicts the completion's last token (its
    stop token, if it has one). Nothing else trains. A sequence is its prompt, then its completion, from position 0.

    Args:
        prompt_lengths: [B] integers, at least 1.
        completion_lengths: [B] integers, at least 0; all 0 gives an empty result.
        width: T.

    Returns:
        int64 [N] on the CPU, or on the device of `prompt_lengths` if that is a tensor.
    """
    prompt_B = torch.as_tensor(prompt_lengths, dtype=torch.int64)
    completion_B = torch.as_tensor(completion_lengths, dtype=torch.int64, device=prompt_B.device)
    assert prompt_B.shape == completion_B.shape
    assert prompt_B.ndim == 1
    if len(prompt_B) == 0:
        return prompt_B
    assert int(prompt_B.min()) >= 1, "the first completion token needs a position that predicts it"
    assert int(completion_B.min()) >= 0
    assert int((prompt_B + completion_B).max()) <= width, "a sequence is wider than the batch"
    first_B = torch.arange(len(prompt_B), device=prompt_B.device) * width + prompt_B - 1
    passed_B = completion_B.cumsum(0) - completion_B
    position_N = torch.arange(int(completion_B.sum()), device=prompt_B.device)
    return position_N + (first_B - passed_B).repeat_interleave(completion_B)


def completion_mask(
    prompt_lengths: Sequence[int] | Tensor, completion_lengths: Sequence[int] | Tensor, width: int
) -> Tensor:
    """The same positions as a boolean mask [B, T]: True where a completion token is predicted."""
    flat_N = completion_positions(prompt_lengths, completion_lengths, width)
    mask_BT = torch.zeros(len(prompt_lengths), width, dtype=torch.bool, device=flat_N.device)
    mask_BT.view(-1)[flat_N] = True
    return mask_BT


def _render_all(
    rows: Sequence[Row], tokenizer: PreTrainedTokenizerBase, template: Template, options: Mapping[str, object]
) -> list[str]:
    faults: list[str] = []

    def rendered(row: Row) -> str:
        try:
            return render(tokenizer, template, row.messages, options, add_generation_prompt=True)
        except RENDER_ERRORS as error:
            roles = ", ".join(message.role for message in row.messages)
            faults.append(f"{row.source} (turns {roles}): {describe_refusal(error)}")
            return ""

    texts = [rendered(row) for row in rows]
    if faults:
        raise DataError(
            "data.template-refused",
            given=f"The {template.origin} template refuses {len(faults)} of {len(rows)} rows:{listing(faults)}\n",
            needed="A row is rendered as it stands: no turn is dropped, merged or moved to please a template.",
            fix="Correct or remove these rows, or set template: FILE with a template that writes them.",
        )
    if rows and rendered(rows[0]) != texts[0]:
        # a template that writes the date, and midnight passed while rendering: all rows shall say the same day
        texts = [rendered(row) for row in rows]
    return texts


def _tokenise(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[tuple[int, ...]]:
    ids: list[tuple[int, ...]] = []
    for start in range(0, len(texts), _NUM_TOKENISED_AT_ONCE):
        batch = list(texts[start : start + _NUM_TOKENISED_AT_ONCE])
        # the template carries its own start token; a length beyond the model's own limit is ours to name
        encoded = tokenizer(batch, add_special_tokens=False, padding=False, truncation=False, verbose=False)
        ids.extend(tuple(row) for row in encoded["input_ids"])
    return ids


def _check_lengths(
    rows: Sequence[Row], ids: Sequence[tuple[int, ...]], max_prompt_tokens: int, on_long: Literal["refuse", "skip"]
) -> None:
    long = [
        f"{row.source}: {len(row_ids)} tokens"
        for row, row_ids in zip(rows, ids, strict=True)
        if len(row_ids) > max_prompt_tokens
    ]
    if not long or (on_long == "skip" and len(long) < len(rows)):
        return
    all_of_them = on_long == "skip"
    raise DataError(
        "data.no-prompts-left" if all_of_them else "data.prompt-too-long",
        given=f"{len(long)} of {len(rows)} prompts are longer than max_prompt_tokens: {max_prompt_tokens}:"
        f"{listing(long)}\n",
        needed="A prompt is never cut, since the cut may take the question itself"
        + (", and with these skipped none is left." if all_of_them else "."),
        fix="Raise max_prompt_tokens or shorten these prompts"
        + ("." if all_of_them else ", or set long_prompts: skip to leave them out."),
    )


def _ids_hash(ids: Sequence[int]) -> str:
    return hashlib.sha256(b"".join(token.to_bytes(4, "little") for token in ids)).hexdigest()


def _has_system(messages: Sequence[Message]) -> bool:
    return any(message.role == "system" for message in messages)


def _rows(num: int) -> str:
    return "1 row" if num == 1 else f"{num} rows"


def _named_rows(sources: Sequence[str]) -> str:
    more = len(sources) - _NUM_NAMED
    return ", ".join(sources[:_NUM_NAMED]) + (f" and {more} more" if more > 0 else "")


def _skip_notes(skipped: Sequence[tuple[str, int]], num_rows: int, max_prompt_tokens: int) -> list[str]:
    if not skipped:
        return []
    named = _named_rows([f"{source} ({num_tokens} tokens)" for source, num_tokens in skipped])
    return [f"{_rows(len(skipped))} of {num_rows} skipped, longer than {max_prompt_tokens} tokens: {named}."]


def _template_notes(
    prompts: Sequence[Prompt],
    template: Template,
    facts: TemplateFacts,
    injected: str | None,
    options: Mapping[str, object],
) -> list[str]:
    notes: list[str] = []
    if injected is not None:
        num = sum(not _has_system(prompt.messages) for prompt in prompts)
        notes.append(f"The template writes a system text into the {_rows(num)} without one: {shown(injected)}.")
    if "think" in facts.generation_prompt:
        notes.append(f"The template opens each answer with {shown(facts.generation_prompt)}; it belongs to the prompt.")
    if "strftime_now" in template.source and "date_string" not in options:
        fix = " Set template_options: {date_string: ...} to choose it." if "date_string" in template.source else ""
        notes.append(f"The template may write the date of today, which then stays fixed for this run.{fix}")
    for role in ("assistant", "system", "user"):
        changed = [
            prompt.source
            for prompt in prompts
            if any(turn.role == role and turn.content.strip() not in prompt.text for turn in prompt.messages)
        ]
        if changed:
            notes.append(
                f"The template does not write every {role} turn as it stands ({_rows(len(changed))}: "
                f"{_named_rows(changed)}); both models read what it writes."
            )
    return notes


def _start_notes(prompts: Sequence[Prompt], tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """A start token must stand once. Two are refused; none, where the tokenizer usually writes one, is said."""
    bos = tokenizer.bos_token_id
    if bos is None:
        return []
    doubled = [prompt.source for prompt in prompts if prompt.ids[:2] == (bos, bos)]
    if doubled:
        raise Refusal(
            "data.template-double-bos",
            given=f"{_rows(len(doubled))} begin with two start tokens {tokenizer.bos_token}: {_named_rows(doubled)}.",
            needed="The models were trained with one; a second moves every position and lowers quality unseen.",
            fix="Remove it from the template or from the rows' text.",
        )
    num_missing = sum(prompt.ids[:1] != (bos,) for prompt in prompts)
    if num_missing and tokenizer("a")["input_ids"][:1] == [bos]:
        without = f"{_rows(num_missing)} begin without it, in every use alike"
        return [f"The tokenizer usually begins a text with {tokenizer.bos_token}, the template does not: {without}."]
    return []


def _content_notes(prompts: Sequence[Prompt], tokenizer: PreTrainedTokenizerBase) -> list[str]:
    special = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    if not special:
        return []
    pattern = re.compile("|".join(re.escape(token) for token in sorted(special, key=len, reverse=True)))
    found: dict[str, set[str]] = {}
    for prompt in prompts:
        tokens = {token for message in prompt.messages for token in pattern.findall(message.content)}
        if tokens:
            found[prompt.source] = tokens
    if not found:
        return []
    names = ", ".join(sorted({token for tokens in found.values() for token in tokens})[:_NUM_NAMED])
    return [
        f"{_rows(len(found))} with control tokens in their text ({names}): {_named_rows(list(found))}. The tokenizer "
        "reads them as control tokens, so a turn may end early or another role may seem to speak; remove them if that "
        "is not meant."
    ]
