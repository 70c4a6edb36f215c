"""Every message of the objectives."""

from __future__ import annotations

from limbeck.errors import Refusal, Text, UsageError, VocabularyMismatch, error, note

# ---------------------------------------------------------------------------------------- settings of an objective


@error(UsageError, "objective.kind")
def unknown_kind(*, value: str, allowed: list[str]) -> Text:
    return Text(given="kind is {value!r}.", needed="It must be one of {allowed}.", fix="Use kind='divergence'.")


@error(UsageError, "objective.scale")
def unknown_scale(*, value: str, allowed: list[str]) -> Text:
    return Text(given="scale is {value!r}.", needed="It must be one of {allowed}.", fix="Use scale='gkd'.")


@error(UsageError, "objective.beta")
def beta_out_of_range(*, value: float) -> Text:
    return Text(
        given="beta is {value!r}.",
        needed="It must be from 0 (forward KL) to 1 (reverse KL).",
        fix="Use 0, 1 or a number between them.",
    )


@error(UsageError, "objective.forward-weight")
def forward_weight_out_of_range(*, value: float) -> Text:
    return Text(
        given="forward_weight is {value!r}.",
        needed="It is the weight of the forward KL, so it must be from 0 to 1.",
        fix="Use a number from 0 to 1.",
    )


@error(UsageError, "objective.beta-near-end")
def beta_near_end(*, value: float, smallest: float) -> Text:
    return Text(
        given="beta is {value!r}.",
        needed="Between 0 and 1 it must keep a distance of {smallest} from both, or rounding dominates the result.",
        fix="Use exactly 0 or 1 for a KL divergence.",
    )


@error(UsageError, "objective.temperature")
def temperature_out_of_range(*, value: float) -> Text:
    return Text(
        given="temperature is {value!r}.",
        needed="It divides the logits of both models, so it must be a finite number above 0.",
        fix="Use 1 to leave the distributions unchanged, or more to soften them.",
    )


@error(UsageError, "objective.unused-setting")
def unused_setting(*, name: str, value: str, kind: str) -> Text:
    return Text(
        given="{name} is {value}.",
        needed="The objective {kind} does not use {name}, and no setting is silently ignored.",
        fix="Remove {name}, or choose the objective that uses it.",
    )


# ---------------------------------------------------------------------------------------- what an objective is


@note("objective.cross-entropy")
def describe_cross_entropy() -> str:
    return "cross-entropy -log student(token) of the answers, nats per token"


@note("objective.soft-targets")
def describe_soft_targets(*, temperature: float) -> str:
    return "soft targets T²·KL(teacher‖student) with temperature T = {temperature:g}, nats per token"


@note("objective.kl-mix")
def describe_kl_mix(*, forward: float, reverse: float, temperature: float) -> str:
    return (
        "KL mix {forward:g}·KL(teacher‖student) + {reverse:g}·KL(student‖teacher), temperature {temperature:g}, "
        "nats per token"
    )


@note("objective.forward-kl")
def describe_forward_kl(*, scale: str, temperature: float) -> str:
    return "forward KL(teacher‖student), beta 0, scale {scale}, temperature {temperature:g}, nats per token"


@note("objective.reverse-kl")
def describe_reverse_kl(*, scale: str, temperature: float) -> str:
    return "reverse KL(student‖teacher), beta 1, scale {scale}, temperature {temperature:g}, nats per token"


@note("objective.jsd")
def describe_jsd(*, beta: float, temperature: float) -> str:
    return f"generalized JSD {_JSD}, beta {{beta:g}}, scale gkd, temperature {{temperature:g}}, nats per token"


@note("objective.jsd-unit")
def describe_unit_jsd(*, beta: float, temperature: float) -> str:
    return (
        f"generalized JSD [{_JSD}] / (beta(1-beta)), beta {{beta:g}}, scale unit, temperature {{temperature:g}}, "
        "nats per token"
    )


_JSD = "beta·KL(teacher‖m) + (1-beta)·KL(student‖m) with m = beta·teacher + (1-beta)·student"


# ---------------------------------------------------------------------------------------- logits


@error(UsageError, "objective.second-derivative")
def second_derivative() -> Text:
    return Text(
        given="A second derivative of the divergence is requested (create_graph=True).",
        needed="The gradient is computed in the forward pass, so the divergence can be differentiated once.",
        fix="Call backward without create_graph.",
    )


@error(UsageError, "objective.logits-type")
def logits_type(*, student: str, teacher: str) -> Text:
    return Text(
        given="The logits have the dtypes {student} and {teacher}.",
        needed="Logits are floating-point numbers.",
        fix="Pass the outputs of the output heads, not token ids.",
    )


@error(UsageError, "objective.shape")
def logits_shape(*, student: str, teacher: str) -> Text:
    return Text(
        given="The student's logits have the shape {student}, the teacher's {teacher}.",
        needed="Both need the same leading shape, position by position, with the vocabulary as the last axis.",
        fix="Select the same positions of the same token ids for both models.",
    )


@error(VocabularyMismatch, "objective.vocabulary-size")
def vocabulary_size(*, student: int, teacher: int) -> Text:
    return Text(
        given="The student's logits have {student:column|columns}, the teacher's {teacher}.",
        needed="The last axis is the vocabulary that both models share, with one column per token.",
        fix="Cut both to the shared vocabulary first: models of one family can differ in the number of padded rows.",
    )


# ---------------------------------------------------------------------------------------- top-k


@error(UsageError, "objective.topk-sum")
def topk_sum(*, num_tokens: int, row: int, total: float) -> Text:
    return Text(
        given="The teacher's {num_tokens:probability|probabilities} of token {row} sum to {total:.6g}.",
        needed="Log-probabilities over the full vocabulary are required, so the probabilities sum to at most 1.",
        fix="Pass natural logarithms of probabilities, not logits and not base 2 or base 10.",
    )


@error(UsageError, "objective.topk-shape")
def topk_shape(*, student: str, ids: str, logprobs: str) -> Text:
    return Text(
        given="Student logits have the shape {student}, teacher ids {ids}, teacher log-probabilities {logprobs}.",
        needed="The shapes must be [..., V], [..., k] and [..., k] with the same leading shape and 1 <= k <= V.",
        fix="Select the same positions for all three, and at most as many tokens as the vocabulary has.",
    )


@error(UsageError, "objective.topk-type")
def topk_type(*, student: str, ids: str, logprobs: str) -> Text:
    return Text(
        given="The dtypes are {student}, {ids} and {logprobs}.",
        needed="Logits and log-probabilities are floating-point numbers, ids are integers.",
        fix="Check the order of the arguments: student logits, teacher ids, teacher log-probabilities.",
    )


@error(UsageError, "objective.topk-id-range")
def topk_id_range(*, smallest: int, largest: int, num_vocabulary: int, last: int) -> Text:
    return Text(
        given="The teacher's ids range from {smallest} to {largest}.",
        needed="The student's logits have {num_vocabulary:column|columns}, so ids range from 0 to {last}.",
        fix="Check that the two models share their vocabulary, and remove padded entries.",
    )


@error(UsageError, "objective.topk-id-twice")
def topk_id_twice(*, row: int) -> Text:
    return Text(
        given="The ids of token {row} contain the same id twice.",
        needed="Each id is one outcome; its probability would be counted twice.",
        fix="Remove duplicates, for example the sampled token if it is also among the top k.",
    )


# ---------------------------------------------------------------------------------------- heads and the fused forms


@error(UsageError, "head.bias-shape")
def head_bias_shape(*, num_rows: int, bias: str) -> Text:
    return Text(
        given="The output head has {num_rows:row|rows} and a bias of shape {bias}.",
        needed="A bias has one entry per row of the head.",
        fix="Pass the weight and bias of the same output embedding.",
    )


@error(VocabularyMismatch, "head.num-real")
def head_num_real(*, num_real: int, num_rows: int) -> Text:
    return Text(
        given="num_real is {num_real}, but the output head has {num_rows:row|rows}.",
        needed="Every id of the shared vocabulary needs a row in the head.",
        fix="Compare the two tokenizers again: num_real is the highest shared id + 1.",
    )


@error(UsageError, "head.scale")
def head_scale(*, scale: str, softcap: str) -> Text:
    return Text(
        given="scale is {scale} and softcap is {softcap}.",
        needed="The scale must be finite and not 0, the softcap None or a finite number above 0.",
        fix="Take both from the model's configuration.",
    )


@error(Refusal, "head.not-plain")
def head_not_plain(*, layer: str) -> Text:
    return Text(
        given="The output head is a {layer}.",
        needed="The fused divergence uses the head's weight and bias directly, so it must be a plain nn.Linear. An "
        "adapter or another wrapper around it would be ignored, and the loss would be that of other logits.",
        fix="Remove the output head from the adapter's target modules, or merge the adapter first.",
    )


@error(UsageError, "fused.token-ids")
def fused_token_ids(*, ids: str, num_positions: int, last: int) -> Text:
    return Text(
        given="Token ids of shape {ids} for {num_positions:position|positions}.",
        needed="One id per position is required, from 0 to {last}, the end of the shared vocabulary.",
        fix="Pass the token that each position predicts.",
    )


@error(VocabularyMismatch, "fused.num-real")
def fused_num_real(*, student: int, teacher: int) -> Text:
    return Text(
        given="The student's head keeps {student:row|rows}, the teacher's {teacher}.",
        needed="Both must be cut to the shared vocabulary, or the two softmaxes are over different tokens.",
        fix="Give both heads the same num_real, from the comparison of the two vocabularies.",
    )


@error(UsageError, "fused.hidden-shape")
def fused_hidden_shape(*, model: str, hidden: str, head: str) -> Text:
    return Text(
        given="The {model}'s hidden states have the shape {hidden}, its head {head}.",
        needed="Hidden states must be [tokens, hidden size], with the hidden size of their own head.",
        fix="Select the completion positions and pass them as one flat axis.",
    )


@error(UsageError, "fused.token-count")
def fused_token_count(*, student: int, teacher: int, weights: str) -> Text:
    return Text(
        given="There are {student:student position|student positions}, {teacher:teacher position|teacher positions} "
        "and weights of shape {weights}.",
        needed="All three describe the same tokens, one row each.",
        fix="Take both models' hidden states at the same positions, and one weight per position.",
    )


@error(UsageError, "fused.chunk-tokens")
def fused_chunk_tokens(*, chunk_tokens: int) -> Text:
    return Text(
        given="chunk_tokens is {chunk_tokens}.",
        needed="A chunk has at least one token.",
        fix="Leave it out: the size then follows from the size of the vocabulary.",
    )


@error(UsageError, "cross-entropy.tokens")
def cross_entropy_tokens(*, num_tokens: int, hidden: str, weights: str, last: int) -> Text:
    return Text(
        given="There are {num_tokens:token|tokens}, hidden states of shape {hidden} and weights of shape {weights}.",
        needed="One hidden state and one weight per token are required, and tokens from 0 to {last}.",
        fix="Pass the token that each position predicts, as ids of the student's vocabulary.",
    )


@error(UsageError, "reduce.token-count")
def micro_batch_too_large(*, num: int, num_of_step: int) -> Text:
    return Text(
        given="A micro-batch of {num:token|tokens} is part of a step of {num_of_step:token|tokens}.",
        needed="The divisor is the number of completion tokens of the whole step, so no part can be larger.",
        fix="Count the tokens of all micro-batches before computing the first weights.",
    )
