"""Every message of training."""

from __future__ import annotations

from pathlib import Path

from limbeck.errors import DataError, Diverged, ModelError, Refusal, Stopped, Text, error, note

# ---------------------------------------------------------------------------------------- prompts and models


@note("training.or-skip-rows")
def or_skip_rows() -> str:
    return ", or set bad_rows: skip to leave these rows out"


@note("training.skipped-rows")
def skipped_rows(*, num: int, num_rows: int, listed: str) -> str:
    return "Skipped {num} of {num_rows:row|rows}:{listed}"


@note("training.few-prompts-for-step")
def few_prompts_for_step(*, per_step: int, num: int) -> str:
    return "A step takes {per_step:prompt|prompts}, but there {num:is only #|are only #}: a step uses them repeatedly."


@note("training.reference-answers")
def reference_answers(*, num: int, num_tokens: int) -> str:
    return (
        "Training uses {num:reference answer|reference answers} with {num_tokens:token|tokens}, stop tokens included."
    )


@error(DataError, "data.nothing-left")
def nothing_left(*, num: int, first: str) -> Text:
    return Text(
        given="Answers that belong to held-out prompts: {num} of {num}; the first is {first}.",
        needed="Answers to held-out prompts are neither trained on nor shown to the teacher.",
        fix="Provide answers to other prompts, or hold out others.",
    )


@note("training.teacher-stop-tokens-unknown")
def teacher_stop_tokens_unknown(*, teacher: str, why: str) -> str:
    return "The stop tokens of {teacher}'s own template could not be determined: {why}"


@note("training.other-template-scores")
def other_template_scores(*, teacher: str, source: str, theirs: str, ours: str) -> str:
    return (
        "{teacher} has another chat template: in {source}, it has {theirs} where the student's has {ours}. Both models "
        "use the student's template; with template: teacher both use the teacher's."
    )


@note("training.other-template-generates")
def other_template_generates(*, teacher: str, source: str, theirs: str, ours: str) -> str:
    return (
        "{teacher} has another chat template: in {source}, it has {theirs} where the student's has {ours}. Each model "
        "uses its own template; with template: teacher both use the teacher's."
    )


@error(Refusal, "vocabulary.unshared-token")
def unshared_token(*, num_places: int, first: str, token: int, text: str) -> Text:
    return Text(
        given="{num_places:place uses a token|places use tokens} that the teacher does not have; the first is {first}, "
        "with token {token}, {text!r}.",
        needed="The teacher must have every token of the prompts and the stop tokens to score the answers.",
        fix="Use a template without this token (template: teacher, or a file), or a teacher that has it.",
    )


@error(ModelError, "model.too-short")
def answers_too_long(
    *, model: str, num_positions: int, num_prompt: int, setting: str, num_answer: int, num_total: int, largest: int
) -> Text:
    return Text(
        given="A prompt of {num_prompt:token|tokens} and {setting} ({num_answer}) need {num_total:position|positions}; "
        "{model} has {num_positions} positions.",
        needed="Every token of a prompt and its answer needs a position in the model.",
        fix="Reduce max_prompt_tokens and set long_prompts: skip, or reduce {setting} to at most {largest}.",
    )


@error(ModelError, "model.too-short.prompt")
def prompt_too_long(
    *, model: str, num_positions: int, num_prompt: int, setting: str, num_answer: int, num_total: int
) -> Text:
    return Text(
        given="A prompt of {num_prompt:token|tokens} and {setting} ({num_answer}) need {num_total:position|positions}; "
        "{model} has {num_positions} positions.",
        needed="Every token of a prompt and its answer needs a position in the model.",
        fix="Reduce max_prompt_tokens and set long_prompts: skip.",
    )


@error(ModelError, "model.too-short.answer")
def given_answer_too_long(*, model: str, num_positions: int, num_prompt: int, num_answer: int, source: str) -> Text:
    return Text(
        given="The prompt ({num_prompt:token|tokens}) and answer ({num_answer:token|tokens}) of {source} exceed the "
        "context length; {model} has {num_positions} positions.",
        needed="Every token of a prompt and its answer needs a position in the model.",
        fix="Shorten or remove this row, or reduce max_prompt_tokens and set long_prompts: skip.",
    )


# ---------------------------------------------------------------------------------------- loading models


@note("training.mlp-not-patched")
def mlp_not_patched(*, model: str, why: str) -> str:
    return "{model} uses more memory for the backward pass than necessary: {why}."


@note("training.slower-decoder")
def slower_decoder(*, model: str, decoder: str, why: str) -> str:
    return "{model} generates with the slower decoder {decoder}: {why}."


@note("training.bfloat16-not-compared")
def bfloat16_not_compared() -> str:
    return "The teacher scores in bfloat16. It was not compared with float32, which would take twice the memory."


# ---------------------------------------------------------------------------------------- answers of the teacher


@note("training.generating-answers")
def generating_answers() -> str:
    return "generating the teacher's answers"


@note("training.teacher-answers")
def teacher_answers(*, num: int, num_used: int) -> str:
    return "The teacher generated {num:answer|answers}; training uses all {num_used}."


@note("training.teacher-answers-left-out")
def teacher_answers_left_out(*, num: int, num_used: int, left_out: list[str]) -> str:
    return "The teacher generated {num:answer|answers}; training uses {num_used} and leaves out: {left_out}."


@error(Stopped, "teacher.incomplete")
def answers_missing(*, num: int, num_rows: int, shown: list[str], run: Path) -> Text:
    return Text(
        given="{num:answer is|answers are} missing out of {num_rows}: {shown}.",
        needed="They may arrive at the next attempt, and training should not depend on a temporary failure.",
        fix="`limbeck resume {run}`, or the same command again, requests only the missing ones. Remove a prompt that "
        "never gets an answer.",
    )


@note("training.answers-missing")
def answers_missing_left_out(*, num: int, num_rows: int, shown: list[str]) -> str:
    return "WARNING: of {num_rows:answer|answers}, {num:is missing and left out|are missing and left out}: {shown}."


@note("training.answer-missing")
def answer_missing(*, source: str, why: str) -> str:
    return "{source} ({why})"


@error(Refusal, "teacher.nothing-to-learn")
def no_usable_answer(*, num: int) -> Text:
    return Text(
        given="None of the teacher's {num:answer|answers} is usable for training.",
        needed="Answers that are truncated, empty, refused or duplicates are not trained on.",
        fix="Check their labels in answers/teacher.jsonl; raise max_teacher_tokens if they are truncated.",
    )


# ---------------------------------------------------------------------------------------- steps


@error(Diverged, "training.loss-not-finite")
def loss_not_finite(*, step: int, value: float, sources: list[str]) -> Text:
    return Text(
        given="The loss of step {step} is {value}, from the answers to {sources}.",
        needed="An update with it would destroy the weights, so they are still those of the step before.",
        fix="Check the teacher's weights; then reduce the learning rate and resume from the last checkpoint.",
    )


@error(Diverged, "training.gradient-not-finite")
def gradient_not_finite(*, step: int, value: float, sources: list[str]) -> Text:
    return Text(
        given="The gradient norm of step {step} is {value}, from the answers to {sources}.",
        needed="An update with it would destroy the weights, so they are still those of the step before.",
        fix="Check the teacher's weights; then reduce the learning rate and resume from the last checkpoint.",
    )


# ---------------------------------------------------------------------------------------- checkpoints


@error(Diverged, "checkpoint.not-finite")
def checkpoint_not_finite(*, tensor: str, file: str, step: int, run: Path) -> Text:
    return Text(
        given="{tensor} of {file} contains numbers that are not finite after step {step}.",
        needed="This checkpoint would replace an intact one, so it was not saved.",
        fix="Resume from the last one with a lower learning rate: limbeck resume {run} --set learning_rate=NUMBER.",
    )


@note("checkpoint.damaged")
def checkpoint_damaged(*, name: str, damage: str) -> str:
    return "Checkpoint {name} is damaged and skipped: {damage}."


@note("checkpoint.damage")
def checkpoint_damage(*, name: str, damage: str) -> str:
    return "{name}: {damage}"


@error(Refusal, "checkpoint.kept-step")
def best_checkpoint_unreadable(*, step: int, path: Path, damage: str) -> Text:
    return Text(
        given="Step {step} is the best one, but its checkpoint {path} cannot be read: {damage}.",
        needed="The student of that step is to be saved as the final model.",
        fix="Restore the folder from a copy and resume the run, or resume it with --set keep=last.",
    )


@error(Refusal, "checkpoint.other-model")
def checkpoint_of_other_model(*, path: Path, num: int, first: str) -> Text:
    return Text(
        given="{path} and the student differ in {num:weight|weights}, first {first}.",
        needed="A checkpoint belongs to the model that it was saved from.",
        fix="Use the recipe in the run folder.",
    )


@note("checkpoint.manifest-unreadable")
def manifest_unreadable(*, file: str) -> str:
    return "{file} is missing or cannot be read"


@note("checkpoint.manifest-step")
def manifest_of_other_step(*, file: str, step: int) -> str:
    return "{file} is of step {step}"


@note("checkpoint.file-missing")
def file_missing(*, file: str) -> str:
    return "{file} is missing"


@note("checkpoint.file-size")
def file_size_differs(*, file: str, size: int, expected: int) -> str:
    return "{file} has {size:byte|bytes} instead of {expected}"


@note("checkpoint.file-hash")
def file_hash_differs(*, file: str) -> str:
    return "{file} does not match its hash"


# ---------------------------------------------------------------------------------------- the end of a session


@error(Stopped, "run.out-of-memory")
def out_of_memory(*, why: str) -> Text:
    return Text(
        given="The device ran out of memory: {why}",
        needed="A step needs its answers, activations and logits in memory at the same time.",
        fix="Reduce micro_batch_tokens, slots or chunk_tokens; they do not change results.",
    )


@error(Stopped, "run.stopped")
def run_stopped(*, step: int, steps: int, run: Path) -> Text:
    return Text(
        given="The run was stopped on request after step {step} of {steps}.",
        needed="Nothing is lost: student and optimizer of that step are saved.",
        fix="Continue with limbeck resume {run}.",
    )


@note("run.stopping")
def stopping() -> str:
    return "Stopping after this step. A second interrupt stops immediately and loses the step."


@note("run.interrupted")
def interrupted() -> str:
    return "Interrupted within a step."


# ---------------------------------------------------------------------------------------- resuming


@error(Refusal, "run.changed")
def inputs_changed(*, run: str, names: list[str], changes: list[str]) -> Text:
    return Text(
        given="Since {run} began, its {names} changed: {changes}.",
        needed="A resumed run must have the same prompts, template and models.",
        fix="Restore them, or start a new run.",
    )


@note("run.change")
def change(*, name: str, before: str, now: str) -> str:
    return "{name} was {before}, is {now}"


@error(Refusal, "run.changed.settings")
def settings_changed(*, run: str, changes: list[str], step: int) -> Text:
    return Text(
        given="{run} was started with other settings: {changes}.",
        needed="A resumed run must train on the same data, in the same order, with the same objective.",
        fix="Restore the settings, or start a new run, for example with student: run:{run}@{step}.",
    )


@error(Refusal, "run.changed.steps")
def beyond_last_step(*, run: str, step: int, steps: int) -> Text:
    return Text(
        given="{run} has finished step {step}, and steps is {steps}.",
        needed="A run cannot be resumed beyond its last step.",
        fix="Set steps to {step} or more, or start a new run, for example with student: run:{run}@{step}.",
    )


@note("run.settings-unknown")
def settings_unknown() -> str:
    return "WARNING: this run did not record its settings, so changes of them cannot be detected."


@note("run.setting-changed")
def setting_changed(*, change: str, step: int) -> str:
    return "Changed from step {step} on: {change}."


@note("run.setting-change")
def setting_change(*, name: str, before: str, now: str) -> str:
    return "{name} from {before} to {now}"


# ---------------------------------------------------------------------------------------- notes at the start


@note("training.dropout-not-used")
def dropout_not_used(*, model: str, rates: list[str]) -> str:
    return (
        "The configuration of {model} has {rates}. Training uses no dropout: the student that generates is the student "
        "that trains."
    )


@note("training.generates-slowly")
def generates_slowly(*, model: str, why: str) -> str:
    return "{model} generates with transformers' generate, which is slower: {why}."


@note("training.baseline-check")
def baseline_check(*, evaluation: str, verdict: str) -> str:
    return "Baseline check {evaluation}: {verdict}"


@note("training.no-baseline-check")
def no_baseline_check() -> str:
    return "No baseline check yet: `limbeck worth RECIPE` compares this teacher with this student."
