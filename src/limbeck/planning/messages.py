"""What is said before a run about memory, the objective and the machine; and the alerts during it."""

from __future__ import annotations

from limbeck.errors import ModelError, Refusal, Text, error, note

__all__: list[str] = []


@error(Refusal, "memory.does-not-fit.reducible")
def does_not_fit(
    *, phase: str, peak_gib: float, largest: str, largest_gib: float, free_gib: float, remedy: str
) -> Text:
    return Text(
        given="The {phase} phase needs about {peak_gib:.1f} GiB, of which {largest} take {largest_gib:.1f} GiB. "
        "{free_gib:.1f} GiB are free.",
        needed="The operating system would kill the run for lack of memory.",
        fix="{remedy}",
    )


@note("memory.lora")
def train_fewer_weights() -> str:
    return "Set lora: {{}} to train adapters only, or use a smaller student."


@note("memory.batch")
def lower_micro_batch() -> str:
    return "Lower micro_batch_tokens. Results do not change with it."


@note("memory.teacher")
def smaller_teacher() -> str:
    return "Set teacher_dtype: bfloat16, or use a smaller teacher."


@note("memory.cache")
def smaller_cache() -> str:
    return "Lower slots, max_practice_tokens or max_prompt_tokens."


@note("memory.slots")
def fewer_slots() -> str:
    return "Lower slots."


@note("memory.chunk")
def smaller_chunk() -> str:
    return "Lower chunk_tokens. Results do not change with it."


@note("memory.other")
def smaller_model() -> str:
    return "Use a smaller student, or a machine with more memory."


@error(ModelError, "model.unsupported.sizes")
def sizes_unknown(*, model: str, model_type: str, reason: str) -> Text:
    return Text(
        given="{model} is a {model_type} model, whose size cannot be determined: {reason}.",
        needed="Student and teacher must be decoder-only language models with attention layers.",
        fix="Choose another model.",
    )


@error(Refusal, "check.certificate")
def objective_check_failed(*, lines: list[str]) -> Text:
    return Text(
        given="The objective check failed on these models: {lines}.",
        needed="A run would minimise something other than the objective in its recipe.",
        fix="Report this as a bug, with the names of both models.",
    )


@note("check.failed-line")
def failed_line(*, name: str, value: float, limit: str) -> str:
    return "{name} is {value:.3g} and must be {limit}"


@note("check.claim-self")
def claim_self() -> str:
    return "the student as its own teacher: divergence and gradient"


@note("check.claim-fused")
def claim_fused() -> str:
    return "chunked computation against the plain definition: relative difference of value and gradient"


@note("check.claim-teacher")
def claim_teacher() -> str:
    return "another teacher gives another gradient: relative difference"


@note("check.claim-shift")
def claim_shift() -> str:
    return "the student as its own teacher, shifted by one position: divergence"


@note("check.claim-engine")
def claim_engine() -> str:
    return "log-probabilities from generation and from training: largest difference, nats"


@note("check.bfloat16-slower")
def bfloat16_slower(*, factor: float, settings: list[str]) -> str:
    return (
        "WARNING: matrix products in bfloat16 take {factor:.2g} times as long as in float32 on this machine, and the "
        "recipe sets {settings}. This saves memory, not time; float32 or auto is faster."
    )


@note("guard.cut-off")
def answers_truncated(*, share: float, limit: int) -> str:
    return (
        "{share:.0%} of the practice answers reach the limit of {limit:,} tokens, so the student hardly practises "
        "ending an answer. Raise max_practice_tokens, and check the stop tokens with `limbeck check`."
    )


@note("guard.empty")
def answers_empty(*, share: float) -> str:
    return (
        "{share:.0%} of the practice answers are empty: they consist of a stop token only. Check the rendered prompts "
        "with `limbeck check`."
    )


@note("guard.repetition")
def answers_repetitive(*, share: float) -> str:
    return (
        "{share:.0%} of the practice answers end in repetition. Lower learning_rate or max_practice_tokens, or set "
        "objective: kl_mix."
    )


@note("guard.entropy")
def entropy_fell(*, first: float, now: float, teacher: float) -> str:
    return (
        "The student's entropy fell from {first:.2f} to {now:.2f} nats per token, far below the teacher's "
        "{teacher:.2f}: its answers lose variety. Lower learning_rate, or set objective: kl_mix."
    )


@note("guard.length")
def answers_grew(*, first: float, now: float) -> str:
    return (
        "Practice answers grew from {first:.0f} to {now:.0f} tokens on average. Compare the stop tokens of student and "
        "teacher with `limbeck check`, or lower max_practice_tokens."
    )


@note("guard.engine")
def engine_differs(*, gap: float) -> str:
    return (
        "Log-probabilities from generation and from training differ by up to {gap:.2g} nats per token, so practice "
        "answers do not come exactly from the distribution being trained. Set precision: float32 if this persists."
    )


@note("planning.few-prompts")
def few_prompts(*, num: int, enough: int) -> str:
    return "The off-policy route has only {num:prompt|prompts}. With {enough} or more the student learns more habits."


@note("planning.very-few-prompts")
def very_few_prompts(*, num: int, enough: int) -> str:
    return (
        "WARNING: only {num:prompt|prompts}. With so few teacher answers the student memorises them instead of "
        "generalising. Use {enough} prompts or more, or train on-policy, where every step has new practice answers."
    )
