"""The choice of the decoder that generates with a model. Only this module connects `rollouts` with `fast`."""

from __future__ import annotations

from limbeck.data.dialogue import Dialogue
from limbeck.fast.lean import LeanDecoder, is_lean
from limbeck.models.language_model import LanguageModel
from limbeck.rollouts import probe
from limbeck.rollouts.engine import MAX_READ_TOKENS, Engine
from limbeck.rollouts.plain import TransformersGenerator
from limbeck.rollouts.probe import GenerationMethod, MakeDecoder
from limbeck.rollouts.request import DecoderKind
from limbeck.rollouts.slots import SlotDecoder

__all__ = ["choose_method", "engine_for"]


def choose_method(model: LanguageModel, *, max_length: int, pad_id: int) -> GenerationMethod:
    """The fastest decoder that agrees with the model's own forward pass; see `rollouts.probe`."""
    fast: dict[DecoderKind, MakeDecoder] = {"lean": LeanDecoder} if is_lean(model) else {}
    return probe.choose_method(model, max_length=max_length, pad_id=pad_id, fast=fast)


def engine_for(
    model: LanguageModel,
    dialogue: Dialogue,
    decoder: DecoderKind,
    *,
    num_slots: int,
    max_read_tokens: int = MAX_READ_TOKENS,
) -> Engine:
    """An engine that generates with `model`, using the decoder that was chosen for it."""
    makers: dict[DecoderKind, MakeDecoder] = {
        "lean": LeanDecoder,
        "slots": SlotDecoder,
        "generate": TransformersGenerator,
    }
    return Engine(
        model,
        stop_ids=dialogue.stop.ids,
        pad_id=dialogue.pad_id,
        num_slots=num_slots,
        max_read_tokens=max_read_tokens,
        decoder=makers[decoder](model),
    )
