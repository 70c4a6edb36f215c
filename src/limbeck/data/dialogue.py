"""How a model is asked for text and where its answers end: one object for training, evaluation, chat, marks, judge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from transformers import GenerationConfig
from transformers import PreTrainedTokenizerBase as Tokenizer

from limbeck.data.chat import RenderedPrompts, render_prompts
from limbeck.data.faults import Faults
from limbeck.data.prompt import Row
from limbeck.data.stops import StopSet, pad_id, stop_ids
from limbeck.data.templates import Options, Template

__all__ = ["NO_LIMIT", "Dialogue", "make_dialogue"]

NO_LIMIT = 2**31


@dataclass(frozen=True)
class Dialogue:
    """Everything that stands between messages and the token ids of a model.

    `num_real` ids are defined by the tokenizer and have a row in the output layer: logits are cut to them before the
    softmax. `num_positions` is the longest prompt plus answer that the model can read, NO_LIMIT where it has no limit.
    """

    tokenizer: Tokenizer
    template: Template
    options: Options
    stop: StopSet
    pad_id: int
    num_real: int
    num_positions: int = NO_LIMIT

    def render(
        self,
        rows: Sequence[Row],
        *,
        max_prompt_tokens: int = NO_LIMIT,
        on_long: Literal["refuse", "skip"] = "refuse",
        faults: Faults | None = None,
    ) -> RenderedPrompts:
        """Rows to prompts of token ids, as `render_prompts` does."""
        return render_prompts(
            rows,
            self.tokenizer,
            self.template,
            options=self.options,
            max_prompt_tokens=max_prompt_tokens,
            on_long=on_long,
            faults=faults,
        )

    def with_vocabulary(self, num_real: int) -> Dialogue:
        """The same dialogue, its padding among the first `num_real` ids."""
        return replace(self, num_real=num_real, pad_id=pad_id(self.tokenizer, self.stop, num_rows=num_real))


def make_dialogue(
    tokenizer: Tokenizer,
    generation_config: GenerationConfig | None,
    template: Template,
    options: Options,
    *,
    num_real: int,
    num_positions: int | None = None,
) -> Dialogue:
    """Find out where answers end and what fills unused places.

    Raises:
        ModelError: nothing ends an answer.
    """
    stop = stop_ids(tokenizer, generation_config, template, options)
    fill = pad_id(tokenizer, stop, num_rows=num_real)
    return Dialogue(tokenizer, template, options, stop, fill, num_real, num_positions or NO_LIMIT)
