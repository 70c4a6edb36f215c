"""A causal language model in this process, as training, generation and scoring use it.

Shapes  B = sequences, T = positions, N = completion positions of all sequences, H = hidden, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.cache_utils import Cache

from limbeck.data.batch import TokenBatch
from limbeck.models.attention import NEVER_SEEN, ContextCache, Unsuitable, attention_mask, layer_kinds
from limbeck.models.refs import ModelRef
from limbeck.objectives.fused import Head

__all__ = ["LanguageModel"]


@dataclass(frozen=True)
class LanguageModel:
    """A causal language model in this process: its body gives hidden states, its head turns them into logits.

    The module stays in evaluation mode, even in training: with dropout, the student that trains would differ from the
    student that generates.
    """

    ref: ModelRef
    module: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    generation_config: GenerationConfig
    head: Head

    @property
    def name(self) -> str:
        return self.ref.text

    @property
    def device(self) -> torch.device:
        return self.module.device

    @property
    def dtype(self) -> torch.dtype:
        return self.module.dtype

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.module.parameters())

    @cached_property
    def takes_positions(self) -> bool:
        """Whether the architecture takes positions; others count them from a padding mask, as Bloom and MPT do."""
        return "position_ids" in signature(self.module.base_model.forward).parameters

    def require_positions(self) -> None:
        """Raises Unsuitable if the architecture does not support explicit positions and masks."""
        if not self.takes_positions:
            raise Unsuitable("it counts positions itself, from a padding mask")

    def with_vocabulary(self, num_real: int) -> LanguageModel:
        """The same model with its logits cut to the first `num_real` ids."""
        return replace(self, head=replace(self.head, num_real=num_real))

    def text(self, ids: Sequence[int]) -> str:
        """Token ids as text with control tokens. For display only: the text is never tokenised again."""
        text = self.tokenizer.decode(list(ids), skip_special_tokens=False)
        assert isinstance(text, str)
        return text

    def hidden(self, ids_BT: Tensor, positions_BT: Tensor, mask: Any, *, cache: Cache | None = None) -> Tensor:
        """Last hidden states [B, T, H] in the model's dtype, after the final norm, before the head.

        `mask` is a padding mask [B, T], an explicit additive mask [B, 1, T, K] or one of these for each kind of layer.
        """
        outputs = self.module.base_model(
            input_ids=ids_BT,
            attention_mask=mask,
            position_ids=positions_BT,
            cache=cache,
            use_cache=cache is not None,
        )
        return outputs.last_hidden_state

    @torch.no_grad()
    def on_few_tokens(self) -> tuple[Tensor, Tensor]:
        """Hidden states [N, H] and the architecture's own logits [N, V] of eight tokens, to compare models."""
        ids_BT = torch.arange(1, 9, device=self.device).remainder(self.head.num_real).unsqueeze(0)
        positions_BT, mask_BT = torch.arange(8, device=self.device).unsqueeze(0), torch.ones_like(ids_BT)
        own = self.module(input_ids=ids_BT, attention_mask=mask_BT, position_ids=positions_BT)
        return self.hidden(ids_BT, positions_BT, mask_BT)[0], own.logits[0]

    def completion_hidden(self, batch: TokenBatch) -> Tensor:
        """Hidden states [N, H] of the positions that predict the completion tokens of `batch`, row after row."""
        if batch.context is None:
            hidden_BTH = self.hidden(batch.ids_BT, batch.positions_BT, batch.mask_BT)
        else:
            hidden_BTH, _, _ = self._forward_with_context(batch)
        return hidden_BTH.flatten(0, 1)[batch.predict_N]

    def _forward_with_context(self, batch: TokenBatch) -> tuple[Tensor, ContextCache, Tensor]:
        """Hidden states [B, T, H] after the context, the cache of keys and values, and their positions [B, K]."""
        self.require_positions()
        context_cache, context_BK = None, None
        if batch.context is not None:
            _, context_cache, context_BK = self._forward_with_context(batch.context.batch)
            context_BK = context_BK[batch.context.row_B]
        cache = ContextCache(context_cache, batch.context.row_B if batch.context is not None else None)

        def with_context(own_BT: Tensor) -> Tensor:
            return own_BT if context_BK is None else torch.cat([context_BK, own_BT], dim=1)

        # within this pass, padding comes after all tokens of its row; for later passes its keys get NEVER_SEEN
        mask = attention_mask(
            batch.positions_BT, with_context(batch.positions_BT), self.dtype, layer_kinds(self.module.config)
        )
        hidden_BTH = self.hidden(batch.ids_BT, batch.positions_BT, mask, cache=cache)
        return hidden_BTH, cache, with_context(batch.positions_BT.masked_fill(batch.mask_BT == 0, NEVER_SEEN))
