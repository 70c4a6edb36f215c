"""How a model is prompted and where its answers end: one object for training, evaluation, chat, marks and judge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from transformers import GenerationConfig
from transformers import PreTrainedTokenizerBase as Tokenizer

from limbeck.data.chat import RenderedPrompts, render_prompts
from limbeck.data.prompt import PromptRow
from limbeck.data.row_errors import RowErrors
from limbeck.data.stops import StopSet, pad_id, stop_ids
from limbeck.data.templates import Template, TemplateOptions

__all__ = ["NO_LIMIT", "Dialogue", "make_dialogue"]

NO_LIMIT = 2**31


@dataclass(frozen=True)
class Dialogue:
    """Everything needed to turn messages into the token ids of a model.

    The first `num_real` ids are defined by the tokenizer and have a row in the output layer; logits are restricted to
    them before the softmax. `num_positions` is the context length of the model, NO_LIMIT if it has none.
    """

    tokenizer: Tokenizer
    template: Template
    options: TemplateOptions
    stop: StopSet
    pad_id: int
    num_real: int
    num_positions: int = NO_LIMIT

    def render(
        self,
        rows: Sequence[PromptRow],
        *,
        max_prompt_tokens: int = NO_LIMIT,
        on_long: Literal["refuse", "skip"] = "refuse",
        errors: RowErrors | None = None,
    ) -> RenderedPrompts:
        """Rows to prompts of token ids, as `render_prompts` does."""
        return render_prompts(
            rows,
            self.tokenizer,
            self.template,
            options=self.options,
            max_prompt_tokens=max_prompt_tokens,
            on_long=on_long,
            errors=errors,
        )

    def with_vocabulary(self, num_real: int) -> Dialogue:
        """The same dialogue with `num_real` ids, its padding id among them."""
        return replace(self, num_real=num_real, pad_id=pad_id(self.tokenizer, self.stop, num_rows=num_real))


def make_dialogue(
    tokenizer: Tokenizer,
    generation_config: GenerationConfig | None,
    template: Template,
    options: TemplateOptions,
    *,
    num_real: int,
    num_positions: int | None = None,
) -> Dialogue:
    """Determine the stop tokens and the padding id.

    Raises:
        ModelError: there is no token that ends an answer.
    """
    stop = stop_ids(tokenizer, generation_config, template, options)
    fill = pad_id(tokenizer, stop, num_rows=num_real)
    return Dialogue(tokenizer, template, options, stop, fill, num_real, num_positions or NO_LIMIT)
