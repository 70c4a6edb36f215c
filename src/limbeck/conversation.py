"""A conversation with one model, with the chat template, stop tokens and sampling of a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from limbeck.data.dialogue import make_dialogue
from limbeck.data.prompt import Message, PromptRow
from limbeck.data.templates import choose_template
from limbeck.evaluation.answering.evaluated import template_options_of
from limbeck.machine import use_machine
from limbeck.messages import chat_max_tokens, chat_truncated
from limbeck.models.load import load_model, max_positions
from limbeck.models.resolve import parse_ref
from limbeck.rollouts.request import GenerationRequest
from limbeck.rollouts.sampling import Purpose, Sampling, stream_key
from limbeck.training.generation import choose_method, engine_for

__all__ = ["Conversation"]

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Conversation:
    """The turns so far, and a model that answers them. The whole conversation is rendered again for every turn."""

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
            raise chat_max_tokens(max_tokens=max_tokens, num_positions=limit)
        writing = choose_method(self.model, max_length=256 + max_tokens, pad_id=self.dialogue.pad_id)
        self.engine = engine_for(self.model, self.dialogue, writing.decoder, num_slots=1)
        self.sampling = sampling
        self.max_tokens = max_tokens
        self.seed = seed
        self.messages: list[Message] = [] if system is None else [Message("system", system)]

    def reply(self, text: str) -> Iterator[str]:
        """Answer one turn: yields pieces of text as they are generated, and keeps the turn.

        Raises:
            DataError: the conversation does not fit into the positions of the model.
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
            if not so_far.endswith(REPLACEMENT):  # half of a character, whose other bytes are still missing
                yield so_far[len(shown) :]
                shown = so_far
        else:
            yield chat_truncated()
        self.messages = [*messages, Message("assistant", shown)]
