"""Models and their answers: what may be evaluated, how prompts reach a model, progress, and marks."""

from __future__ import annotations

from limbeck.errors import ModelError, Refusal, Text, UsageError, error, note


@error(Refusal, "evaluation.no-teacher")
def no_teacher(*, recipe: str, route: str) -> Text:
    return Text(
        given="{recipe} has the route {route} and no teacher.",
        needed="A baseline check compares a teacher with a student.",
        fix="Use a recipe with a teacher, or compare any models with limbeck eval.",
    )


@error(UsageError, "evaluation.models.none")
def no_models() -> Text:
    return Text(
        given="There is no model to evaluate.",
        needed="An evaluation needs a run, or at least one model.",
        fix="Specify a run, or models and --prompts FILE.",
    )


@error(UsageError, "evaluation.models.repeated")
def role_repeated(*, models: list[str]) -> Text:
    return Text(
        given="Two of the models have the same role: {models}.",
        needed="Each role belongs to one model.",
        fix="Give every role once, or leave out the role.",
    )


@error(UsageError, "evaluation.role")
def role_unknown(*, text: str, roles: list[str]) -> Text:
    return Text(
        given="{text!r} has an unknown role.",
        needed="The roles are {roles}: the verdict compares these.",
        fix="Use one of them before the =, or write the model alone.",
    )


@error(UsageError, "evaluation.unknown-name.price")
def price_of_unknown_model(*, names: list[str], models: list[str]) -> Text:
    return Text(
        given="--price has unknown models: {names}.",
        needed="The models of this evaluation are {models}.",
        fix="Fix the name.",
    )


@error(UsageError, "evaluation.unknown-name.column")
def column_unknown(*, names: list[str], columns: list[str]) -> Text:
    return Text(
        given="--by has unknown columns: {names}.", needed="The rows have the columns {columns}.", fix="Fix the name."
    )


@error(UsageError, "evaluation.unknown-name.no-columns")
def no_columns(*, names: list[str]) -> Text:
    return Text(
        given="--by has unknown columns: {names}.",
        needed="The rows have no columns with short values to group by.",
        fix="Leave out --by, or add the column to the prompt file.",
    )


@error(UsageError, "evaluation.option.hosted")
def hosted_setting_invalid(*, name: str, model: str, value: str, problem: str) -> Text:
    return Text(
        given="--hosted {model}.{name} is {value}: {problem}.",
        needed="Requests to a hosted API follow these settings exactly.",
        fix="Fix it; limbeck recipe explain hosted describes all of them.",
    )


@error(Refusal, "evaluation.not-offered")
def scoring_server(*, alias: str, model: str) -> Text:
    return Text(
        given="{alias} is {model}, a scoring server.",
        needed="Limbeck evaluates local models and hosted APIs that generate text.",
        fix="Use a hub id, a folder, a .gguf file, run:NAME or openai:MODEL.",
    )


@error(ModelError, "model.too-short.evaluated-answer")
def answer_too_long(*, model: str, num_positions: int, prompt_tokens: int, max_tokens: int, fitting: int) -> Text:
    return Text(
        given="The longest prompt has {prompt_tokens} tokens and an answer has up to {max_tokens}; {model} has "
        "{num_positions} positions.",
        needed="Prompt and answer together must fit into the positions of each model.",
        fix="Set --max-tokens to {fitting} or less, or leave out the longest prompts.",
    )


@error(ModelError, "model.too-short.evaluated-prompt")
def prompt_too_long(*, model: str, num_positions: int, prompt_tokens: int) -> Text:
    return Text(
        given="The longest prompt has {prompt_tokens} tokens; {model} has {num_positions} positions.",
        needed="Prompt and answer together must fit into the positions of each model.",
        fix="Leave out the prompts of {num_positions} tokens and more, or use a model with more positions.",
    )


@note("evaluation.prompts-repeated")
def prompts_repeated(*, num: int, total: int) -> str:
    return "Rows that repeat the prompt of another row: {num} of {total}. Each prompt is evaluated once."


@note("evaluation.references-differ")
def references_differ(*, num: int) -> str:
    return "Prompts whose rows have different reference answers: {num}. Each of these answers counts as right."


@note("evaluation.template-of-server")
def template_of_server() -> str:
    return "a hosted API. It gets messages, and its server applies the chat template."


@note("evaluation.template-own")
def template_own(*, other: str) -> str:
    return "it tokenises differently from {other} and gets prompts in its own chat template."


@note("evaluation.template-shared")
def template_shared() -> str:
    return "its own chat template is not used, because all models get the same text."


@note("evaluation.phase-generating")
def generating(*, model: str, num_done: int, total: int) -> str:
    return "{model} generates answers, {num_done} of {total} so far"


@note("evaluation.phase-reused")
def reused(*, model: str, evaluation: str) -> str:
    return "{model}: all answers are reused from the evaluation {evaluation}"


@note("evaluation.phase-hosted")
def hosted_progress(*, model: str, progress: str) -> str:
    return "{model} generates answers: {progress}"


@note("evaluation.phase-received")
def hosted_received(*, model: str, num: int) -> str:
    return "{model}: {num:answer|answers} received from its hosted API"


@note("evaluation.phase-grading")
def grading() -> str:
    return "grading answers"


@note("evaluation.phase-judging")
def judging(*, first: str, second: str) -> str:
    return "the judge compares {first} and {second}"


@note("evaluation.phase-divergence")
def measuring_divergence() -> str:
    return "measuring the divergence from the teacher"


@note("evaluation.phase-held-out")
def answering_held_out() -> str:
    return "teacher answers held-out prompts"


@error(Refusal, "evaluation.keep-ungraded")
def best_needs_grades() -> Text:
    return Text(
        given="keep is best, but the held-out rows have neither reference answers nor a grader.",
        needed="The best step is the one whose answers get the highest grade.",
        fix="Add reference answers to the held-out rows, set grader: module:function, or set keep: last.",
    )


@note("evaluation.held-out-skipped")
def held_out_skipped(*, num: int, total: int) -> str:
    return "Held-out prompts left out because the teacher's answer cannot be used: {num} of {total}."


@error(Refusal, "teacher.no-held-out-text")
def no_held_out_text(*, num: int) -> Text:
    return Text(
        given="The teacher gave no usable answer to any of {num:held-out prompt|held-out prompts}.",
        needed="The student's progress is measured on teacher answers that it was never trained on.",
        fix="Look at the labels of these answers in the run's log, and at the prompts.",
    )


@error(UsageError, "marks.pair")
def pair_invalid(*, student: str, teacher: str, problem: str) -> Text:
    return Text(
        given="{student} and {teacher}: {problem}",
        needed="Marks need the log-probabilities of both models.",
        fix="Use local models: a hub id, a folder, a .gguf file or run:NAME.",
    )


@error(Refusal, "marks.no-teacher")
def run_without_teacher(*, run: str) -> Text:
    return Text(
        given="The run {run} was trained without a teacher.",
        needed="Marks show what a teacher would have generated instead.",
        fix="Add one: limbeck mark run:{run} TEACHER --prompt TEXT.",
    )


@error(UsageError, "marks.position")
def position_outside(*, position: int, last: int) -> Text:
    return Text(
        given="The answer has no position {position}.",
        needed="The teacher can continue from the positions 0 to {last} of the answer.",
        fix="Use the position of a mark.",
    )
