"""Rows to token ids, once: every later step uses these ids, and text is never tokenised again."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from transformers import PreTrainedTokenizerBase as Tokenizer

from limbeck.data.faults import Faults, listing, named, places, shown
from limbeck.data.messages import prompts as messages
from limbeck.data.messages import templates as about_templates
from limbeck.data.prompt import Prompt, Row, content_hash
from limbeck.data.templates import (
    RENDER_ERRORS,
    Options,
    Template,
    TemplateFacts,
    check_options,
    describe_refusal,
    probe_template,
    render,
)

__all__ = ["RenderedPrompts", "key_of", "prompts_hash", "render_prompts", "tokenise"]

_NUM_TOKENISED_AT_ONCE = 1000
# A text longer than both is measured by its beginning first; few texts but blanks have so many characters in a token.
_CHARACTERS_AT_ONCE = 2**18
_CHARACTERS_PER_TOKEN = 64


@dataclass(frozen=True)
class RenderedPrompts:
    """Prompts in the order of their rows; `injected_system` is what the template adds to a row without system turn."""

    prompts: tuple[Prompt, ...]
    injected_system: str | None
    notes: tuple[str, ...]


def render_prompts(
    rows: Sequence[Row],
    tokenizer: Tokenizer,
    template: Template,
    *,
    options: Options,
    max_prompt_tokens: int,
    on_long: Literal["refuse", "skip"],
    faults: Faults | None = None,
) -> RenderedPrompts:
    """Renders each row up to where the answer begins, and tokenises the text, adding no tokens to it.

    `options` are variables for the template; `max_prompt_tokens` includes the generation prompt. With `faults`, rows
    that the template refuses are left out and added there, unless none is left.

    Raises:
        DataError: the template refuses rows (all are listed), rows are over the limit, or none is left.
        Refusal: the template does not open an answer, leaves the user's text out, or doubles the start token.
        RecipeError: an option that the template does not read.
    """
    check_options(template, options)
    facts = probe_template(tokenizer, template, options)
    rows, texts = _render_all(rows, tokenizer, template, options, faults)
    starts, tokenised = _tokenise_as_far_as_needed(texts, tokenizer, max_prompt_tokens)
    prompts: list[Prompt] = []
    long: list[str] = []
    seen: Counter[str] = Counter()
    for row, text, start, ids in zip(rows, texts, starts, tokenised, strict=True):
        if len(ids) > max_prompt_tokens:
            part = "" if start == len(text) else f" in the first {start} of its {len(text)} characters"
            long.append(f"{row.source}: {len(ids)} tokens{part}")
            continue
        key = hashlib.sha256(b"".join(token.to_bytes(4, "little") for token in ids)).hexdigest()
        known = (row.source, row.reference, row.extra, row.others)
        prompts.append(Prompt(ids, text, row.messages, key, seen[key], *known))
        seen[key] += 1
    if long and (on_long == "refuse" or not prompts):
        if on_long == "skip":
            raise messages.no_prompts_left(num=len(long), limit=max_prompt_tokens, listing=listing(long))
        counts = {"num": len(long), "num_rows": len(rows), "limit": max_prompt_tokens}
        raise messages.prompts_too_long(**counts, listing=listing(long))
    notes = [*_template_notes(prompts, template, facts, options), *_token_notes(prompts, tokenizer)]
    if long:
        notes.insert(0, messages.prompts_skipped(limit=max_prompt_tokens, rows=places(long)))
    injected = facts.injected_system if _without_system(prompts) else None
    return RenderedPrompts(tuple(prompts), injected, tuple(notes))


def key_of(prompt: Prompt) -> str:
    """The key of a prompt in every model's answers: its conversation, however a template renders it."""
    return content_hash(prompt.messages)


def prompts_hash(prompts: Sequence[Prompt]) -> str:
    """SHA-256 over the conversations, each once, whatever their order and however a template writes them."""
    return hashlib.sha256("\n".join(sorted({key_of(prompt) for prompt in prompts})).encode("ascii")).hexdigest()


def _render_all(
    rows: Sequence[Row], tokenizer: Tokenizer, template: Template, options: Options, faults: Faults | None
) -> tuple[list[Row], list[str]]:
    """The rows that the template writes, and what it writes. A row is rendered as it stands: no turn is dropped,
    merged or moved to please a template."""
    kept: list[Row] = []
    texts: list[str] = []
    found = Faults(rows[0].source.partition(":")[0] if rows else "") if faults is None else faults
    for row in rows:
        try:
            texts.append(render(tokenizer, template, row.messages, options, opened=True))
            kept.append(row)
        except RENDER_ERRORS as error:
            place = _refused_turn(row, tokenizer, template, options)
            field = f"messages[{place}] ({row.messages[place].role})"
            refused = about_templates.template_refused(reason=describe_refusal(error), origin=template.origin)
            found.add(named(row.source, row.extra), field, refused)
    if faults is None or not kept:
        found.raise_if_any()
    return kept, texts


def _refused_turn(row: Row, tokenizer: Tokenizer, template: Template, options: Options) -> int:
    """The place of the turn before which the template still wrote the conversation."""
    for place in range(len(row.messages) - 1, 0, -1):
        with suppress(*RENDER_ERRORS):
            render(tokenizer, template, row.messages[:place], options, opened=False)
            return place
    return 0


def tokenise(texts: Sequence[str], tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """The ids of texts that carry their own control tokens; nothing is added."""
    ids: list[tuple[int, ...]] = []
    for start in range(0, len(texts), _NUM_TOKENISED_AT_ONCE):
        batch = list(texts[start : start + _NUM_TOKENISED_AT_ONCE])
        # the template carries its own start token; a length beyond the model's own limit is ours to name
        encoded = tokenizer(batch, add_special_tokens=False, padding=False, truncation=False, verbose=False)
        ids.extend(tuple(row) for row in encoded["input_ids"])
    return ids


def _tokenise_as_far_as_needed(
    texts: Sequence[str], tokenizer: Tokenizer, max_tokens: int
) -> tuple[list[int], list[tuple[int, ...]]]:
    """The ids of each text and of how many of its characters they are.

    They are of all of them unless a beginning already shows that the text has over `max_tokens`: the ids of a book take
    a hundred times the memory of the book.
    """
    longest = max(_CHARACTERS_AT_ONCE, _CHARACTERS_PER_TOKEN * max_tokens)
    starts = [min(len(text), longest) for text in texts]
    ids = tokenise([text[:start] for text, start in zip(texts, starts, strict=True)], tokenizer)
    for place, text in enumerate(texts):
        # what follows may change how the last word is cut, and cannot halve the number of tokens
        if starts[place] < len(text) and len(ids[place]) <= 2 * max_tokens:
            starts[place], (ids[place],) = len(text), tokenise([text], tokenizer)
    return starts, ids


def _without_system(prompts: Sequence[Prompt]) -> list[str]:
    return [prompt.source for prompt in prompts if all(turn.role != "system" for turn in prompt.messages)]


def _template_notes(
    prompts: Sequence[Prompt], template: Template, facts: TemplateFacts, options: Options
) -> Iterator[str]:
    """What the template adds to rows, and what it leaves out."""
    bare = _without_system(prompts)
    if facts.injected_system is not None and bare:
        yield about_templates.system_injected(rows=places(bare), text=shown(facts.injected_system))
    if template.start_added:
        yield about_templates.start_token_added()
    if "think" in facts.generation_prompt:
        yield about_templates.answer_opened(text=shown(facts.generation_prompt))
    if "strftime_now" in template.source and "date_string" not in options:
        yield about_templates.template_dated()
    changed = [each.source for each in prompts if any(turn.content.strip() not in each.text for turn in each.messages)]
    if changed:
        yield about_templates.turns_changed(rows=places(changed))


def _token_notes(prompts: Sequence[Prompt], tokenizer: Tokenizer) -> Iterator[str]:
    """Start tokens, which stand once (two are refused), and control tokens in the text of rows."""
    bos = tokenizer.bos_token_id
    doubled = [prompt.source for prompt in prompts if bos is not None and prompt.ids[:2] == (bos, bos)]
    if doubled:
        raise about_templates.template_double_bos(token=str(tokenizer.bos_token), rows=places(doubled))
    missing = [prompt.source for prompt in prompts if prompt.ids[:1] != (bos,)]
    if bos is not None and missing and tokenizer("a")["input_ids"][:1] == [bos]:
        yield about_templates.start_token_missing(token=str(tokenizer.bos_token), rows=places(missing))
    special = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    pattern = re.compile("|".join(re.escape(token) for token in special) or "(?!)")
    controlled = [prompt.source for prompt in prompts if any(pattern.search(turn.content) for turn in prompt.messages)]
    if controlled:
        yield about_templates.control_tokens_in_text(rows=places(controlled))
