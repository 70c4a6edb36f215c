"""Measures, grades and why an answer has none, graders, judges and rubrics."""

from __future__ import annotations

from pathlib import Path

from limbeck.errors import DataError, Text, UsageError, error, note


@note("measure.overlap-with-teacher")
def overlap_with_teacher() -> str:
    return (
        "Character overlap (chrF) of each answer with the teacher's answer: how similar they are, not which is better."
    )


@note("measure.overlap-with-reference")
def overlap_with_reference() -> str:
    return (
        "Character overlap (chrF) of each answer with the reference answer: how similar they are, not whether the "
        "answer is right."
    )


@note("measure.grader")
def graded_by(*, kinds: list[str]) -> str:
    return "Each answer is graded from 0 to 1 against its reference answer. Grader: {kinds}."


@note("measure.judge")
def judged_by(*, judge: str, rubric: str) -> str:
    return (
        "{judge} compares each pair of answers in both orders and does not see which model gave which answer. "
        "Rubric: {rubric}. If the preference changes with the order, the pair is a tie."
    )


@note("grade.no-answer")
def no_answer() -> str:
    return "there is no answer"


@note("grade.no-text")
def no_text_to_compare() -> str:
    return "there is no text to compare with"


@note("grade.no-reference")
def no_reference() -> str:
    return "the row has no reference answer"


@note("grade.no-usable-reference")
def no_usable_reference() -> str:
    return "the grader cannot use the reference answer"


@note("grade.reference-empty")
def reference_empty() -> str:
    return "the reference answer is empty after normalisation"


@note("grade.pattern-timeout")
def pattern_timeout(*, limit_s: float) -> str:
    return "the pattern took more than {limit_s:g} seconds"


@note("grade.pattern-invalid")
def pattern_invalid(*, problem: str) -> str:
    return "{problem}"


@note("grade.reference-numbers")
def reference_numbers(*, num: int) -> str:
    return "the reference answer has {num:number|numbers} and must have exactly one"


@note("grade.reference-not-json")
def reference_not_json(*, problem: str) -> str:
    return "the reference answer is not valid JSON: {problem}"


@note("grade.reference-not-a-choice")
def reference_not_a_choice() -> str:
    return "the reference answer is neither a letter nor one of the choices"


@note("grade.no-task")
def no_task() -> str:
    return "the row has no metadata with source_dataset"


@note("grade.grader-raised")
def grader_raised(*, kind: str, problem: str) -> str:
    return "the grader raised {kind}: {problem}"


@note("grade.grader-value")
def grader_value(*, value: str) -> str:
    return "the grader returned {value!r}, which is not a number from 0 to 1"


@note("grade.not-judged")
def not_judged() -> str:
    return "the judge did not compare this answer"


@note("grade.reply-unreadable")
def reply_unreadable() -> str:
    return "the judge's reply could not be parsed"


@error(DataError, "data.grader-invalid")
def grader_invalid(*, source: str, problem: str) -> Text:
    return Text(
        given="{source}, grader: {problem}.",
        needed="It must be one of exact, normalised, contains, regex, number, json, json-valid, choice and "
        'reasoning-gym, or an object such as {{"kind": "number", "tolerance": 0.01}}.',
        fix="Fix this row.",
    )


@error(DataError, "data.grader-invalid.function")
def grader_function_in_row(*, source: str) -> Text:
    return Text(
        given="{source}, grader: a row cannot set a function.",
        needed="Limbeck never runs code that a data file selects.",
        fix="Remove it from the row and set grader: module:function in the recipe, or use --grader, for all rows.",
    )


@error(UsageError, "grader.function-missing")
def function_missing(*, name: str, kind: str, problem: str) -> Text:
    return Text(
        given="The grader {name} cannot be loaded: {kind} {problem}.",
        needed="A grader of your own is given as module:function, and the function takes (answer, row).",
        fix="Fix the name, or start Limbeck in the folder that contains the module's file.",
    )


@error(UsageError, "grader.function-elsewhere")
def function_elsewhere(*, name: str) -> Text:
    return Text(
        given="The grader {name} was given as a function and is not available in this process.",
        needed="Limbeck stores the name of a function, not its code, and this function is not in a module.",
        fix="Pass it again: limbeck.resume(run, grader={name}) or limbeck.evaluate(run, grader={name}). A grader in a "
        "module is found by its name: grader='module:function'.",
    )


@error(UsageError, "grader.extra-missing")
def extra_missing(*, package: str) -> Text:
    return Text(
        given="This grader or measure needs the package {package}, which is not installed.",
        needed="Graded tasks and text measures need the extra tasks of Limbeck.",
        fix='Install it: pip install "limbeck[tasks]".',
    )


@error(UsageError, "judge.rubric.unreadable")
def rubric_unreadable(*, path: Path, problem: str) -> Text:
    return Text(
        given="The rubric {path} cannot be read: {problem}.",
        needed="A rubric is a Jinja template in UTF-8.",
        fix="Check the path and the permissions of the file.",
    )


@error(UsageError, "judge.rubric.invalid")
def rubric_invalid(*, path: Path, problem: str) -> Text:
    return Text(
        given="The rubric {path} cannot be rendered: {problem}.",
        needed="A rubric is a Jinja template in UTF-8.",
        fix="Fix the template.",
    )


@error(UsageError, "judge.rubric.unknown")
def rubric_unknown_names(*, path: Path, names: list[str]) -> Text:
    return Text(
        given="The rubric {path} uses unknown variables: {names}.",
        needed="The variables are {{{{ prompt }}}}, {{{{ answer_a }}}}, {{{{ answer_b }}}}, {{{{ reference }}}} (empty "
        "if there is no reference answer) and {{{{ fence }}}} (a word that no answer can contain).",
        fix="Fix the names. End the rubric with a request for one word: A, B or TIE.",
    )


@error(UsageError, "judge.rubric.missing")
def rubric_missing_names(*, path: Path, names: list[str]) -> Text:
    return Text(
        given="The rubric {path} does not use these variables: {names}.",
        needed="A judge must see the prompt and both answers: {{{{ prompt }}}}, {{{{ answer_a }}}} and "
        "{{{{ answer_b }}}}.",
        fix="Add them. End the rubric with a request for one word: A, B or TIE.",
    )


@error(UsageError, "evaluation.option.one-model")
def one_model_judged() -> Text:
    return Text(
        given="--judge is set, but only one model is evaluated.",
        needed="A judge compares the answers of two models.",
        fix="Add a second model, or use --grader instead.",
    )


@error(UsageError, "evaluation.option.judge-prompt")
def judge_prompt_too_long(*, problem: str) -> Text:
    return Text(
        given="A prompt of the judge cannot be rendered for it. {problem}",
        needed="The judge must see the rubric, the prompt and both answers as a whole.",
        fix="Use a judge with more positions or another chat template, or a shorter rubric. The answers are stored.",
    )


@note("judge.summary")
def judge_summary(*, first: str, second: str, judge: str, num: int, num_unreadable: int, num_changed: int) -> str:
    return (
        "{first} and {second}: {judge} compared {num:pair|pairs} of answers, each in both orders. Replies that could "
        "not be parsed and were ignored: {num_unreadable}. Preferences that changed with the order of the answers, "
        "counted as ties: {num_changed}."
    )


@note("judge.prefers-first")
def prefers_first_place(*, first: str, second: str, share: float, low: float, high: float, num: int) -> str:
    return (
        "{first} and {second}: the judge prefers the answer that it sees first: it chose it in {share:.0%} of its "
        "decisions (95% CI {low:.0%} to {high:.0%}, {num:prompt|prompts})."
    )


@note("judge.prefers-second")
def prefers_second_place(*, first: str, second: str, share: float, low: float, high: float, num: int) -> str:
    return (
        "{first} and {second}: the judge prefers the answer that it sees second: it chose the first in {share:.0%} of "
        "its decisions (95% CI {low:.0%} to {high:.0%}, {num:prompt|prompts})."
    )


@note("judge.no-preferred-place")
def prefers_no_place(*, first: str, second: str, share: float, low: float, high: float, num: int) -> str:
    return (
        "{first} and {second}: the judge does not clearly prefer the answer that it sees first or second: it chose the "
        "first in {share:.0%} of its decisions (95% CI {low:.0%} to {high:.0%}, {num:prompt|prompts})."
    )


@note("judge.agreement")
def judge_agreement(*, first: str, second: str, grader: str, kappa: float, low: float, high: float, num: int) -> str:
    return (
        "{first} and {second}: agreement of the judge with the grader {grader} beyond chance (Cohen's kappa): "
        "{kappa:.2f} (95% CI {low:.2f} to {high:.2f}, {num:prompt|prompts})."
    )


@note("judge.agreement-undefined")
def judge_agreement_undefined(*, first: str, second: str, grader: str) -> str:
    return (
        "{first} and {second}: agreement of the judge with the grader {grader} (Cohen's kappa): undefined, because "
        "the results do not differ between prompts."
    )
