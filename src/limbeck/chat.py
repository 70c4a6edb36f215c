"""A conversation with one model: the same template, stop tokens and sampling as in a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from limbeck.data.chat import choose_template, pad_id, render_prompts, stop_ids
from limbeck.data.rows import Message, Row
from limbeck.errors import UsageError
from limbeck.machine import use_machine
from limbeck.models.load import load_model, positions_of
from limbeck.models.refs import ModelRef, parse_ref
from limbeck.recipe.files import load_recipe
from limbeck.rollouts.engine import Engine
from limbeck.rollouts.probe import choose_method
from limbeck.rollouts.request import Request
from limbeck.rollouts.sampling import Purpose, Sampling, stream_key
from limbeck.runs.store import resolve_run

__all__ = ["Conversation"]

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Conversation:
    """Turns so far, and a model that answers them. Every turn is rendered anew with the whole conversation."""

    def __init__(
        self,
        model: str,
        *,
        workspace: Path,
        system: str | None = None,
        sampling: Sampling,
        max_tokens: int = 256,
        seed: int = 0,
    ) -> None:
        if max_tokens < 1:
            raise _bad_length(max_tokens, "An answer has at least one token.")
        machine = use_machine()
        ref = parse_ref(model, workspace=workspace)
        self.model = load_model(ref, trainable=False, dtype=torch.float32, device=torch.device(machine.device))
        tokenizer = self.model.tokenizer
        self.model = self.model.with_vocabulary(min(self.model.head.num_real, len(tokenizer)))
        self.template = choose_template("student", tokenizer, tokenizer, student_name=model, teacher_name=model)
        self.options = _template_options(ref, workspace)
        stop = stop_ids(tokenizer, self.model.generation_config, self.template, self.options)
        fill = pad_id(tokenizer, stop)
        limit = positions_of(self.model.module.config)
        self.max_prompt_tokens = (limit or 2**20) - max_tokens
        if self.max_prompt_tokens < 1:
            raise _bad_length(max_tokens, f"The model has {limit} positions for the conversation and its answer.")
        writing = choose_method(self.model, max_length=256 + max_tokens, pad_id=fill)
        self.engine = Engine(self.model, stop_ids=stop.ids, pad_id=fill, num_slots=1, way=writing.way)
        self.sampling = sampling
        self.max_tokens = max_tokens
        self.seed = seed
        self.messages: list[Message] = [] if system is None else [Message("system", system)]

    def reply(self, text: str) -> Iterator[str]:
        """Answer one turn; yields pieces of text as they are written, and remembers the turn.

        Raises:
            DataError: the conversation is longer than the model can read.
        """
        messages = (*self.messages, Message("user", text))
        row = Row(messages=messages, reference=None, source="this turn", content_hash="0", extra={})
        prompt = render_prompts(
            [row],
            self.model.tokenizer,
            self.template,
            options=self.options,
            max_prompt_tokens=self.max_prompt_tokens,
            on_long="refuse",
        ).prompts[0]
        key = stream_key(self.seed, Purpose.CHAT, len(messages), prompt.content_hash, 0, 0)
        ids: list[int] = []
        shown = ""
        for written in self.engine.write([Request(prompt.ids, key, self.max_tokens)], self.sampling):
            if written.end == "stop":
                break
            ids.append(written.token)
            so_far = self.model.text(ids)
            if not so_far.endswith(REPLACEMENT):  # half of a character: its other bytes are still to come
                yield so_far[len(shown) :]
                shown = so_far
        else:
            yield " [cut off]"
        self.messages = [*messages, Message("assistant", shown)]


def _template_options(ref: ModelRef, workspace: Path) -> dict[str, object]:
    """A run's model is asked as it was trained: with the template options of its recipe."""
    if ref.kind != "run":
        return {}
    recipe = resolve_run(workspace, ref.text.removeprefix("run:").partition("@")[0]).recipe_path
    return dict(load_recipe(recipe, [], {}).recipe.template_options)


def _bad_length(max_tokens: int, needed: str) -> UsageError:
    return UsageError(
        "chat.max-tokens", given=f"max tokens is {max_tokens}.", needed=needed, fix="Choose another number."
    )
