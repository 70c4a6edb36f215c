"""Rows to token ids, once: every later step uses these ids and never tokenises the text again."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from transformers import PreTrainedTokenizerBase as Tokenizer

from limbeck.data.messages import prompts as messages
from limbeck.data.messages import templates as about_templates
from limbeck.data.prompt import Prompt, PromptRow, content_hash
from limbeck.data.row_errors import RowErrors, indented_lines, row_label, rows_phrase, short_json
from limbeck.data.templates import (
    RENDER_ERRORS,
    Template,
    TemplateFacts,
    TemplateOptions,
    check_options,
    describe_refusal,
    probe_template,
    render,
)

__all__ = ["RenderedPrompts", "conversation_key", "prompts_hash", "render_prompts", "tokenise"]

_NUM_TOKENISED_AT_ONCE = 1000
# If a text is longer than both, its beginning is tokenised first; few texts have so many characters per token.
_CHARACTERS_AT_ONCE = 2**18
_CHARACTERS_PER_TOKEN = 64


@dataclass(frozen=True)
class RenderedPrompts:
    """Prompts in the order of their rows; `injected_system` is what the template adds to rows without a system turn."""

    prompts: tuple[Prompt, ...]
    injected_system: str | None
    notes: tuple[str, ...]


def render_prompts(
    rows: Sequence[PromptRow],
    tokenizer: Tokenizer,
    template: Template,
    *,
    options: TemplateOptions,
    max_prompt_tokens: int,
    on_long: Literal["refuse", "skip"],
    errors: RowErrors | None = None,
) -> RenderedPrompts:
    """Render each row up to where the answer begins, and tokenise the text without adding tokens.

    `options` are variables for the template; `max_prompt_tokens` includes the generation prompt. With `errors`, rows
    that the template cannot render are left out and reported there, unless no row is left.

    Raises:
        DataError: rows that the template cannot render (all are listed), prompts over the limit, or no prompt left.
        Refusal: the template does not open an answer, leaves out the user's text, or doubles the start token.
        RecipeError: an option that the template does not use.
    """
    check_options(template, options)
    facts = probe_template(tokenizer, template, options)
    rows, texts = _render_all(rows, tokenizer, template, options, errors)
    starts, tokenised = _tokenise_up_to_limit(texts, tokenizer, max_prompt_tokens)
    prompts: list[Prompt] = []
    long: list[str] = []
    seen: Counter[str] = Counter()
    for row, text, start, ids in zip(rows, texts, starts, tokenised, strict=True):
        if len(ids) > max_prompt_tokens:
            part = "" if start == len(text) else f" in the first {start} of its {len(text)} characters"
            long.append(f"{row.source}: {len(ids)} tokens{part}")
            continue
        key = hashlib.sha256(b"".join(token.to_bytes(4, "little") for token in ids)).hexdigest()
        of_row = (row.source, row.reference, row.extra, row.others)
        prompts.append(Prompt(ids, text, row.messages, key, seen[key], *of_row))
        seen[key] += 1
    if long and (on_long == "refuse" or not prompts):
        if on_long == "skip":
            raise messages.no_prompts_left(num=len(long), limit=max_prompt_tokens, listing=indented_lines(long))
        counts = {"num": len(long), "num_rows": len(rows), "limit": max_prompt_tokens}
        raise messages.prompts_too_long(**counts, listing=indented_lines(long))
    notes = [*_template_notes(prompts, template, facts, options), *_token_notes(prompts, tokenizer)]
    if long:
        notes.insert(0, messages.prompts_skipped(limit=max_prompt_tokens, rows=rows_phrase(long)))
    injected = facts.injected_system if _without_system(prompts) else None
    return RenderedPrompts(tuple(prompts), injected, tuple(notes))


def conversation_key(prompt: Prompt) -> str:
    """The key of a prompt in the answers of every model: a hash of its conversation, whatever the template."""
    return content_hash(prompt.messages)


def prompts_hash(prompts: Sequence[Prompt]) -> str:
    """SHA-256 over the distinct conversations, whatever their order and template."""
    return hashlib.sha256(
        "\n".join(sorted({conversation_key(prompt) for prompt in prompts})).encode("ascii")
    ).hexdigest()


def _render_all(
    rows: Sequence[PromptRow],
    tokenizer: Tokenizer,
    template: Template,
    options: TemplateOptions,
    errors: RowErrors | None,
) -> tuple[list[PromptRow], list[str]]:
    """The rows that the template can render, and their texts. No turn is dropped, merged or moved to fit a template."""
    kept: list[PromptRow] = []
    texts: list[str] = []
    found = RowErrors(rows[0].source.partition(":")[0] if rows else "") if errors is None else errors
    for row in rows:
        try:
            texts.append(render(tokenizer, template, row.messages, options, opened=True))
            kept.append(row)
        except RENDER_ERRORS as error:
            place = _refused_turn(row, tokenizer, template, options)
            field = f"messages[{place}] ({row.messages[place].role})"
            refused = about_templates.turn_refused(reason=describe_refusal(error), origin=template.origin)
            found.add(row_label(row.source, row.extra), field, refused)
    if errors is None or not kept:
        found.raise_if_any()
    return kept, texts


def _refused_turn(row: PromptRow, tokenizer: Tokenizer, template: Template, options: TemplateOptions) -> int:
    """The index of the first turn with which the template fails."""
    for place in range(len(row.messages) - 1, 0, -1):
        with suppress(*RENDER_ERRORS):
            render(tokenizer, template, row.messages[:place], options, opened=False)
            return place
    return 0


def tokenise(texts: Sequence[str], tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """The ids of texts that contain their own control tokens; nothing is added."""
    ids: list[tuple[int, ...]] = []
    for start in range(0, len(texts), _NUM_TOKENISED_AT_ONCE):
        batch = list(texts[start : start + _NUM_TOKENISED_AT_ONCE])
        # the template writes its own start token; `verbose=False` because we report lengths over the limit ourselves
        encoded = tokenizer(batch, add_special_tokens=False, padding=False, truncation=False, verbose=False)
        ids.extend(tuple(row) for row in encoded["input_ids"])
    return ids


def _tokenise_up_to_limit(
    texts: Sequence[str], tokenizer: Tokenizer, max_tokens: int
) -> tuple[list[int], list[tuple[int, ...]]]:
    """For each text, how many of its characters were tokenised, and their ids.

    The whole text is tokenised unless its beginning already has more than `max_tokens` tokens: the ids of a book take a
    hundred times the memory of the book.
    """
    longest = max(_CHARACTERS_AT_ONCE, _CHARACTERS_PER_TOKEN * max_tokens)
    starts = [min(len(text), longest) for text in texts]
    ids = tokenise([text[:start] for text, start in zip(texts, starts, strict=True)], tokenizer)
    for place, text in enumerate(texts):
        # the rest of the text may change the last tokens, but cannot halve their number
        if starts[place] < len(text) and len(ids[place]) <= 2 * max_tokens:
            starts[place], (ids[place],) = len(text), tokenise([text], tokenizer)
    return starts, ids


def _without_system(prompts: Sequence[Prompt]) -> list[str]:
    return [prompt.source for prompt in prompts if all(turn.role != "system" for turn in prompt.messages)]


def _template_notes(
    prompts: Sequence[Prompt], template: Template, facts: TemplateFacts, options: TemplateOptions
) -> Iterator[str]:
    """What the template adds to rows, and what it changes."""
    bare = _without_system(prompts)
    if facts.injected_system is not None and bare:
        yield about_templates.system_injected(rows=rows_phrase(bare), text=short_json(facts.injected_system))
    if template.start_added:
        yield about_templates.start_token_added()
    if "think" in facts.generation_prompt:
        yield about_templates.answer_opened(text=short_json(facts.generation_prompt))
    if "strftime_now" in template.source and "date_string" not in options:
        yield about_templates.template_dated()
    changed = [each.source for each in prompts if any(turn.content.strip() not in each.text for turn in each.messages)]
    if changed:
        yield about_templates.turns_changed(rows=rows_phrase(changed))


def _token_notes(prompts: Sequence[Prompt], tokenizer: Tokenizer) -> Iterator[str]:
    """Notes on missing start tokens and on control tokens in the text of rows. Raises Refusal for two start tokens."""
    bos = tokenizer.bos_token_id
    doubled = [prompt.source for prompt in prompts if bos is not None and prompt.ids[:2] == (bos, bos)]
    if doubled:
        raise about_templates.template_double_bos(token=str(tokenizer.bos_token), rows=rows_phrase(doubled))
    missing = [prompt.source for prompt in prompts if prompt.ids[:1] != (bos,)]
    if bos is not None and missing and tokenizer("a")["input_ids"][:1] == [bos]:
        yield about_templates.start_token_missing(token=str(tokenizer.bos_token), rows=rows_phrase(missing))
    special = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    pattern = re.compile("|".join(re.escape(token) for token in special) or "(?!)")
    controlled = [prompt.source for prompt in prompts if any(pattern.search(turn.content) for turn in prompt.messages)]
    if controlled:
        yield about_templates.control_tokens_in_text(rows=rows_phrase(controlled))
