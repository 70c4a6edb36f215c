"""A conversation with one model: the same template, stop tokens and sampling as in a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from limbeck.data.dialogue import make_dialogue
from limbeck.data.prompt import Message, PromptRow
from limbeck.data.templates import choose_template
from limbeck.errors import UsageError
from limbeck.evaluation.answering.evaluated import template_options_of
from limbeck.machine import use_machine
from limbeck.models.load import load_model, max_positions
from limbeck.models.resolve import parse_ref
from limbeck.rollouts.request import GenerationRequest
from limbeck.rollouts.sampling import Purpose, Sampling, stream_key
from limbeck.training.generation import choose_method, engine_for

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
        ref = parse_ref(model, workspace=workspace)
        device = torch.device(use_machine().device)
        loaded = load_model(ref, trainable=False, dtype=torch.float32, device=device)
        tokenizer = loaded.tokenizer
        self.model = loaded.with_vocabulary(min(loaded.head.num_real, len(tokenizer)))
        self.dialogue = make_dialogue(
            tokenizer,
            self.model.generation_config,
            choose_template("student", tokenizer, tokenizer, student_name=model, teacher_name=model),
            template_options_of(ref),
            num_real=self.model.head.num_real,
            num_positions=max_positions(loaded.module.config),
        )
        limit = self.dialogue.num_positions
        self.max_prompt_tokens = limit - max_tokens
        if max_tokens < 1 or self.max_prompt_tokens < 1:
            raise UsageError(
                "chat.max-tokens",
                given=f"max tokens is {max_tokens}.",
                needed=f"An answer has a token or more, and the model {limit} positions for conversation and answer.",
                fix="Choose another number.",
            )
        writing = choose_method(self.model, max_length=256 + max_tokens, pad_id=self.dialogue.pad_id)
        self.engine = engine_for(self.model, self.dialogue, writing.decoder, num_slots=1)
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
        row = PromptRow(messages, None, "this turn")
        prompt = self.dialogue.render([row], max_prompt_tokens=self.max_prompt_tokens).prompts[0]
        key = stream_key(self.seed, Purpose.CHAT, len(messages), prompt.content_hash, 0, 0)
        ids: list[int] = []
        shown = ""
        for written in self.engine.stream([GenerationRequest(prompt.ids, key, self.max_tokens)], self.sampling):
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
