"""Messages of the modules without a folder: machine, http, driver, printer, progress, chat, the public functions."""

from __future__ import annotations

from pathlib import Path

from limbeck.errors import DataError, LimbeckError, Refusal, Text, UsageError, error, note

# ---------------------------------------------------------------------------------------- machine


@error(UsageError, "machine.no-device")
def no_device(*, device: str, known: list[str]) -> Text:
    return Text(
        given="The device is {device!r}; this machine has {known}.",
        needed="A run needs a device of this machine.",
        fix="Set device: auto, or device: cpu.",
    )


# ---------------------------------------------------------------------------------------- http


@error(Refusal, "http.not-approved")
def endpoint_not_approved(*, url: str, origin: str, file: Path) -> Text:
    return Text(
        given="The endpoint {url} is not approved.",
        needed="Prompts and API keys are sent only to endpoints that the user of this machine has approved, whatever a "
        "recipe says.",
        fix="If you trust it, add a line to {file}: {origin}, a space, and the environment variable that holds its "
        "key.",
    )


@error(UsageError, "http.address")
def invalid_address(*, url: str) -> Text:
    return Text(
        given="{url} is not a valid address of an endpoint.",
        needed="An address has http or https, a host and a path. A user, password or query would be saved with the "
        "run.",
        fix="Use an address like https://api.example.com/v1, and put the API key in an environment variable.",
    )


@error(UsageError, "http.endpoints-file")
def invalid_endpoints_line(*, file: Path, line: int) -> Text:
    return Text(
        given="Line {line} of {file} is not an address and the name of an environment variable.",
        needed="Each line is an address and, after a space, the environment variable that holds its key.",
        fix="Write a line like https://api.example.com EXAMPLE_API_KEY, without the key itself.",
    )


@error(UsageError, "http.key")
def key_not_set(*, variable: str, url: str) -> Text:
    return Text(
        given="The environment variable {variable} is not set.",
        needed="It must contain the API key for {url}; keys are read from the environment and never saved.",
        fix="Set it in the shell that starts Limbeck: export {variable}=...",
    )


@error(UsageError, "http.key.invalid")
def key_invalid(*, variable: str, url: str) -> Text:
    return Text(
        given="The environment variable {variable} contains spaces or characters that no API key has.",
        needed="It must contain the API key for {url}; keys are read from the environment and never saved.",
        fix="Set it again in the shell that starts Limbeck: export {variable}=...",
    )


@note("http.oversize")
def reply_too_long(*, max_bytes: int) -> str:
    return "the reply is longer than {max_bytes:byte|bytes}"


@note("http.deadline")
def no_reply_in_time(*, within_s: float) -> str:
    return "no complete reply within {within_s:.3g} s"


# ---------------------------------------------------------------------------------------- driver


@error(Refusal, "answers.not-needed")
def answers_not_needed(*, recipe: str, route: str) -> Text:
    return Text(
        given="{recipe} has route: {route}, and neither a warmup nor an on_policy_share below 1.",
        needed="The teacher generates answers only for a student that is trained on them.",
        fix="Set route: off-policy, or add a warmup to the recipe.",
    )


@error(Refusal, "run.nothing-to-resume")
def run_is_done(*, name: str, recipe: Path) -> Text:
    return Text(
        given="{name} is done.",
        needed="Only a run that has not reached its last step can be resumed.",
        fix="Train again under another name: limbeck train {recipe} --set name=NAME.",
    )


@error(Refusal, "run.nothing-to-resume.no-checkpoint")
def no_checkpoint(*, name: str, recipe: Path) -> Text:
    return Text(
        given="{name} has no checkpoint.",
        needed="A run is resumed from its last checkpoint.",
        fix="Train again under another name: limbeck train {recipe} --set name=NAME.",
    )


@error(Refusal, "run.nothing-to-resume.damaged")
def checkpoints_damaged(*, name: str, recipe: Path, damages: list[str]) -> Text:
    return Text(
        given="{name} has no checkpoint that can be read: {damages}.",
        needed="A run is resumed from its last checkpoint.",
        fix="Restore the checkpoint from a copy, or train again under another name: limbeck train {recipe} --set "
        "name=NAME.",
    )


@note("run.best-step-kept")
def best_step_kept(*, step: int) -> str:
    return "The student of step {step} has the highest grade and is saved as the final model."


@note("run.answers-only")
def answers_only() -> str:
    return "answers of the teacher, no training"


# ---------------------------------------------------------------------------------------- the public functions

CONSOLE_LABELS = {"warning": "Warning", "error": "Error", "given": "given", "needed": "needed", "fix": "fix"}

PROGRESS_LABELS = {
    "step": "step",
    "now": "now",
    "loss": "loss",
    "generation": "generation",
    "scoring": "scoring",
    "update": "update",
    "tokens_per_s": "tokens/s",
    "truncated": "truncated",
    "memory": "memory",
    "held_out": "held out",
    "time_left": "time left",
    "finished": "finished",
    "measuring": "measuring",
}


@error(UsageError, "api.recipe-form")
def recipe_form(*, kind: str) -> Text:
    return Text(
        given="A recipe was given as an object of type {kind}.",
        needed="A recipe is the path of a YAML file, a dict of settings, or a limbeck.Recipe.",
        fix='Write limbeck.train("recipe.yaml"), or limbeck.train({{"student": ..., "teacher": ..., "prompts": ...}}).',
    )


@error(UsageError, "api.settings-twice")
def settings_twice() -> Text:
    return Text(
        given="overrides were passed with a recipe that is not a file.",
        needed="Overrides change the settings of a recipe file. A dict or a Recipe contains its settings.",
        fix="Put the settings in the dict, or use recipe.model_copy(update=...).",
    )


@error(UsageError, "evaluation.no-prompts")
def no_prompts(*, models: str, workspace: str) -> Text:
    return Text(
        given="{models} cannot be evaluated without prompts.",
        needed="Only a single run has held-out prompts of its own, and {workspace} has no run of this name.",
        fix="Pass prompts (--prompts FILE), or the name of one run (limbeck runs lists them).",
    )


@error(UsageError, "marks.number")
def marks_max_tokens(*, max_tokens: int) -> Text:
    return Text(
        given="--max-tokens is {max_tokens}.",
        needed="The answer to mark has at least one token.",
        fix="Choose --max-tokens of 1 or more.",
    )


@error(UsageError, "marks.number.worst")
def marks_worst(*, worst: int) -> Text:
    return Text(
        given="--worst is {worst}.",
        needed="It is the number of marked answers to show, 1 or more.",
        fix="Choose --worst of 1 or more.",
    )


@error(UsageError, "marks.asked")
def marks_without_prompt() -> Text:
    return Text(
        given="A teacher, an answer or a position was given without a prompt.",
        needed="These apply only to a prompt that is answered and marked now, not to the marks saved in a run.",
        fix='Add --prompt "...", or show the marks of a run: limbeck mark RUN --worst 3.',
    )


@error(UsageError, "marks.asked.both")
def marks_and_prompt(*, worst: int) -> Text:
    return Text(
        given="Both --prompt and --worst {worst} were given.",
        needed="--prompt marks a new answer; --worst shows the worst marks saved in a run.",
        fix="Leave out one of them.",
    )


@error(DataError, "api.rows-form")
def no_rows_of(*, what: str, kind: str) -> Text:
    return Text(
        given="{what} is an object of type {kind}.",
        needed="Rows are the path of a file, a list of dicts or strings, a datasets.Dataset, or a pandas frame.",
        fix='Give a list such as [{{"prompt": "..."}}]; if the data has several splits, choose one: dataset["train"].',
    )


@error(DataError, "api.row-form")
def row_form(*, what: str, place: int, kind: str) -> Text:
    return Text(
        given="Row {place} of {what} is an object of type {kind}.",
        needed="Each row is a dict with a prompt or messages, or a string, which is one user message.",
        fix='Write rows such as {{"prompt": "..."}}.',
    )


@error(DataError, "api.row-value")
def row_value(*, what: str, place: int, reason: str) -> Text:
    return Text(
        given="Row {place} of {what} cannot be written as JSON: {reason}.",
        needed="Rows are saved with the run, so that any process can resume it.",
        fix="Leave that column out, or convert its values to strings, numbers or lists.",
    )


@error(UsageError, "api.grader-form")
def grader_unusable(*, kind: str) -> Text:
    return Text(
        given="The grader is an object of type {kind}.",
        needed="A grader is a function of (answer, row) that returns a number from 0 to 1, or the name of a grader.",
        fix="Write grader=my_function, or for example grader='number'.",
    )


@error(UsageError, "api.teacher-not-needed")
def teacher_not_needed(*, run: str, teacher: str) -> Text:
    return Text(
        given="A teacher was passed for {run}, whose teacher is {teacher}.",
        needed="Only a teacher that the run started with as an object is passed again. Any other teacher is loaded "
        "by name.",
        fix="Leave teacher out.",
    )


@error(Refusal, "api.teacher-other")
def teacher_other(*, run: str, expected: str, found: str) -> Text:
    return Text(
        given="The weights of this teacher have the fingerprint {found}; {run} started with {expected}.",
        needed="A resumed run must use the same teacher.",
        fix="Pass the teacher that the run started with, with the same weights, or start a new run.",
    )


@error(Refusal, "steps.hosted")
def steps_hosted(*, teacher: str) -> Text:
    return Text(
        given="The teacher is {teacher}.",
        needed="Answers from a hosted API cost money, so Limbeck saves them in a run folder before it uses them.",
        fix="Use limbeck.distil or limbeck.train.",
    )


@error(LimbeckError, "api.module-missing")
def module_missing(*, module: str) -> Text:
    return Text(
        given="{module} is not installed.",
        needed="to_pandas() returns a pandas frame.",
        fix="Install it: pip install {module}.",
    )


@error(UsageError, "chat.max-tokens")
def chat_max_tokens(*, max_tokens: int, num_positions: int) -> Text:
    return Text(
        given="--max-tokens is {max_tokens:,}.",
        needed="The conversation and the answer share the {num_positions:,} positions of the model, and each needs at "
        "least one.",
        fix="Choose a number from 1 to less than {num_positions:,}.",
    )


@note("chat.truncated")
def chat_truncated() -> str:
    return " [truncated]"


@note("progress.units")
def progress_units() -> str:
    return "Loss in nats per token; generation, scoring and update in tokens per second."


@note("progress.step")
def progress_step(*, step: int, steps: int, time_left: str) -> str:
    return "{step:,} of {steps:,}, time left: {time_left}"


@note("progress.loss")
def progress_loss(*, loss: str, first: str) -> str:
    return "{loss} nats per token, {first} at first"


@note("progress.truncated")
def progress_truncated(*, share: str, memory: str) -> str:
    return "{share} of practice answers   memory {memory}"


@note("progress.losses")
def progress_losses(*, teacher: str, student: str, step: str) -> str:
    return "teacher's text {teacher}, student's text {student} at step {step}"


@note("progress.held-out")
def progress_held_out(*, losses: str) -> str:
    return "held-out loss: {losses}"


@note("progress.alert")
def progress_alert(*, text: str) -> str:
    return "alert: {text}"
