"""Does a fast decoder agree with the model's own plain forward pass? Checked once, when a model is loaded.

A few answers are generated for prompts of different lengths, one longer than the sliding window if the run's sequences
can be, in fewer slots than there are prompts, so that slots are refilled and moved. Each token's log-probability is
compared with that of a plain forward pass over its row alone, without padding, cache or explicit mask. The right-padded
batches of training are compared in the same way.

Shapes  T = positions, H = hidden, N = completion tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Self

import torch
from torch import Tensor

import limbeck.rollouts.messages as messages
from limbeck.compat import Renamed
from limbeck.data.batch import collate
from limbeck.models.attention import Unsuitable, kinds_of
from limbeck.models.language_model import LanguageModel
from limbeck.rollouts.engine import Engine
from limbeck.rollouts.plain import TransformersGenerator
from limbeck.rollouts.request import Completion, DecoderKind, GenerationRequest
from limbeck.rollouts.sampling import Purpose, Sampling, stream_key
from limbeck.rollouts.slots import BatchGenerator, Decoder, SlotDecoder

__all__ = ["GenerationMethod", "MakeDecoder", "choose_method"]

NUM_NEW_TOKENS = 8
SHARED_TOKENS = 16  # with ten prompts, sharing a prefix of this length is worthwhile
# Nats, for the worst token. Rounding gives about 1e-5 in float32; a wrong mask or position gives far more.
TOLERANCE_NATS = {torch.float64: 1e-6, torch.float32: 1e-3}
FAST_NATS = {torch.float64: 1e-6, torch.float32: 2e-4}
# Nats, for the mean over the tokens of the worst row: in a deep bf16 model two correct computations of one token can
# differ by more than 0.1.
TOLERANCE_HALF_NATS = 0.1

MakeDecoder = Callable[[LanguageModel], Decoder | BatchGenerator]


@dataclass(frozen=True)
class GenerationMethod:
    """How a model generates in this run.

    decoder     the fastest decoder whose log-probabilities agree with the model's own forward pass
    share       whether the rows of a batch may share a common prefix: it is then computed once
    gap_nats    how far the decoder's log-probabilities are from those of the forward pass
    reason      why this decoder was chosen
    fallback    why each faster decoder was rejected; empty if none was
    """

    decoder: DecoderKind
    share: bool
    gap_nats: float
    reason: str
    fallback: str = ""

    def record(self) -> dict[str, str | float]:
        """The method as the events of a run store it."""
        fields = asdict(self)
        return {"way": fields.pop("decoder"), **fields}

    @classmethod
    def recorded(cls, way: DecoderKind, share: bool, gap_nats: float, reason: str, fallback: str = "") -> Self:
        """The method that `record` stored, from its fields."""
        return cls(way, share, gap_nats, reason, fallback)


@torch.no_grad()
def choose_method(
    model: LanguageModel, *, max_length: int, pad_id: int, fast: Mapping[DecoderKind, MakeDecoder] | None = None
) -> GenerationMethod:
    """The first decoder that agrees with the model's own forward pass: a fast one, the slots, or `generate`.

    Args:
        model: the model that will generate.
        max_length: the longest prompt plus answer of the run, in tokens.
        pad_id: an id for padding.
        fast: decoders made for models of this shape, by name.

    Raises:
        Refusal: no decoder agrees with the plain forward pass, or the padded training batch does not.
    """
    prompts = _probe_prompts(model, max_length)
    kind = model.module.config.model_type
    makers: dict[DecoderKind, MakeDecoder] = {**(fast or {}), "slots": SlotDecoder, "generate": TransformersGenerator}
    gaps: list[float] = []
    rejected: list[str] = []
    share: bool | None = None
    for decoder, make in makers.items():
        try:
            completions = _generate(model, prompts, pad_id, make)
        except (Renamed, Unsuitable) as error:
            rejected.append(messages.decoder_unavailable(decoder=decoder, reason=str(error)))
            continue
        alone_N = _alone(model, prompts, completions)
        if share is None:
            share = _shares(model, prompts, completions, alone_N, pad_id)
        generated_N = torch.tensor([logprob for completion in completions for logprob in completion.logprobs])
        gaps.append(_gap(model, generated_N, alone_N, completions))
        if gaps[-1] <= _tolerance(model, FAST_NATS if fast and decoder in fast else TOLERANCE_NATS):
            reason = messages.decoder_agrees(architecture=kind, decoder=decoder)
            return GenerationMethod(decoder, share, gaps[-1], reason, "; ".join(rejected))
        rejected.append(messages.decoder_disagrees(decoder=decoder, gap_nats=gaps[-1]))
    gap = min(gaps, default=torch.inf)
    raise messages.no_decoder_agrees(model=model.name, architecture=kind, gap_nats=gap, attempts=rejected)


def _shares(
    model: LanguageModel, prompts: list[tuple[int, ...]], completions: list[Completion], alone_N: Tensor, pad_id: int
) -> bool:
    """Whether a batch that computes common prefixes once agrees with the plain forward pass; a plain batch must."""
    gap = _gap(model, _batched(model, prompts, completions, pad_id, share=False), alone_N, completions)
    if gap > _tolerance(model, TOLERANCE_NATS):
        kind = model.module.config.model_type
        raise messages.batches_disagree(model=model.name, architecture=kind, gap_nats=gap)
    # a long common prefix, and the same prompt several times
    start = (*max(prompts, key=len), *prompts[0])[:SHARED_TOKENS]
    prompts = [start + prompt for prompt in prompts for _ in range(2)]
    completions = [completion for completion in completions for _ in range(2)]
    try:
        shared_N = _batched(model, prompts, completions, pad_id, share=True)
    except Unsuitable:
        return False
    return _gap(model, shared_N, _alone(model, prompts, completions), completions) <= _tolerance(model, TOLERANCE_NATS)


def _probe_prompts(model: LanguageModel, max_length: int) -> list[tuple[int, ...]]:
    """Prompts of different lengths; one exceeds the sliding window if the run's longest sequence does."""
    window = kinds_of(model.module.config).window
    longest = max(max_length - NUM_NEW_TOKENS, 1)
    lengths = [3, 17, 1, 40, 9]
    if window is not None:
        lengths.append(window + NUM_NEW_TOKENS)
    generator = torch.Generator().manual_seed(0)
    return [
        tuple(torch.randint(model.head.num_real, (min(length, longest),), generator=generator).tolist())
        for length in lengths
    ]


def _generate(model: LanguageModel, prompts: list[tuple[int, ...]], pad_id: int, make: MakeDecoder) -> list[Completion]:
    engine = Engine(model, stop_ids=(), pad_id=pad_id, num_slots=2, decoder=make(model))
    requests = [
        GenerationRequest(prompt, stream_key(0, Purpose.EVALUATION, 0, "0", number, 0), NUM_NEW_TOKENS - number % 3)
        for number, prompt in enumerate(prompts)
    ]
    return engine.generate(requests, Sampling())


def _gap(model: LanguageModel, other_N: Tensor, alone_N: Tensor, completions: list[Completion]) -> float:
    gap_N = (other_N.to(alone_N) - alone_N).abs()
    exact = model.dtype in TOLERANCE_NATS
    rows = gap_N.split([len(completion.ids) for completion in completions])
    gap = gap_N.max() if exact else torch.stack([row_N.mean() for row_N in rows]).max()
    return torch.nan_to_num(gap, nan=torch.inf).item()


def _tolerance(model: LanguageModel, nats: dict[torch.dtype, float]) -> float:
    return nats.get(model.dtype, TOLERANCE_HALF_NATS)


def _batched(
    model: LanguageModel, prompts: list[tuple[int, ...]], completions: list[Completion], pad_id: int, share: bool
) -> Tensor:
    answers = [completion.ids for completion in completions]
    batch = collate(prompts, answers, pad_id=pad_id, device=model.device, share=share)
    return _logprobs(model, model.completion_hidden(batch), batch.targets_N)


def _alone(model: LanguageModel, prompts: list[tuple[int, ...]], completions: list[Completion]) -> Tensor:
    """Log-probabilities [N] from one forward pass per row, without padding, cache or mask."""
    parts: list[Tensor] = []
    for prompt, completion in zip(prompts, completions, strict=True):
        ids_1T = torch.tensor([[*prompt, *completion.ids]], device=model.device)
        hidden_TH = model.module.base_model(input_ids=ids_1T, use_cache=False).last_hidden_state[0]
        parts.append(_logprobs(model, hidden_TH[len(prompt) - 1 : -1], ids_1T[0, len(prompt) :]))
    return torch.cat(parts)


def _logprobs(model: LanguageModel, hidden_NH: Tensor, targets_N: Tensor) -> Tensor:
    logits_NV = model.head.logits(hidden_NH)
    return logits_NV.gather(1, targets_N.unsqueeze(1)).squeeze(1) - logits_NV.logsumexp(dim=-1)
