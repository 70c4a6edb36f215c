"""Is it worth it, and did it work: models side by side on the same prompts, from the question to the verdict.

worth     teacher and student on a recipe's held-out prompts, before anything is trained
after     a run's own student, result and teacher on its held-out prompts; or models named for these roles
compare   any models on a file of prompts
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from limbeck.data.chat import conversation_key, prompts_hash
from limbeck.data.prompt import PromptRow
from limbeck.data.row_errors import RowErrors
from limbeck.data.rows import read_rows
from limbeck.data.split import split_held_out
from limbeck.errors import Refusal, UsageError
from limbeck.evaluation.answering.answers import Answering, Log, answer_side, labels_of
from limbeck.evaluation.answering.distance import distances
from limbeck.evaluation.answering.hosted import answer_hosted, hosted_settings, settings_of_recipe
from limbeck.evaluation.answering.sides import Named, Role, Side, all_sides, ask_once
from limbeck.evaluation.deciding.result import Evaluated, compared_pairs, result_of
from limbeck.evaluation.grading.graders import chrf
from limbeck.evaluation.grading.grading import Measure, choose_measure, grade_answers
from limbeck.evaluation.grading.judging import ALIAS, find_judge, judge_pairs
from limbeck.machine import probe_machine, use_machine
from limbeck.models.memory import holds_rows, is_in_memory
from limbeck.models.resolve import parse_ref
from limbeck.recipe.evaluation import EvaluationOptions
from limbeck.recipe.files import LoadedRecipe, load_recipe
from limbeck.recipe.grader import GraderSettings
from limbeck.recipe.recipe import Recipe
from limbeck.runs.evaluations import Evaluation, open_evaluation
from limbeck.runs.store import Run

__all__ = ["evaluate_models", "evaluate_run", "worth_of"]

DEFAULT_MAX_TOKENS, DEFAULT_SLOTS = 512, 32
ROLES: tuple[Role, ...] = ("teacher", "student", "distilled")


@dataclass(frozen=True)
class _Question:
    """What is asked of whom; `commands` are what a verdict points at, `hosted` the recipe's words on a judge's API."""

    kind: Literal["worth", "after", "compare"]
    named: tuple[Named, ...]
    rows: tuple[PromptRow, ...]
    files: tuple[str, ...]
    workspace: Path
    max_tokens: int
    slots: int
    grader: GraderSettings | None
    rendering: Mapping[str, Any]
    device: str
    commands: Mapping[str, str]
    hosted: Mapping[str, Any] = field(default_factory=dict)


def worth_of(loaded: LoadedRecipe, options: EvaluationOptions, log: Log, overrides: Sequence[str] = ()) -> Evaluation:
    """Teacher against student on the recipe's held-out prompts; `overrides` are those that it was loaded with."""
    recipe = loaded.recipe
    if recipe.teacher is None:
        raise Refusal(
            "evaluation.no-teacher",
            given=f"{loaded.path.name} is {recipe.route} and names no teacher.",
            needed="Whether distilling is worth it is a question about a teacher and a student.",
            fix="Name a recipe with a teacher; limbeck eval compares any models.",
        )
    named = [str(loaded.path), *(text for override in overrides for text in ("--set", override))]
    commands = {"recipe": shlex.join(named), "again": shlex.join(["limbeck", "worth", *named, *options.arguments()])}
    if not loaded.path.is_file():  # settings that a program gave: no command has them
        commands = {}
    return _evaluate(_of_recipe(recipe, "worth", {}, options, commands), options, log)


def evaluate_run(run: Run, options: EvaluationOptions, log: Log, prompts: Path | None = None) -> Evaluation:
    """A run's student as it began, its result and its teacher, on its held-out prompts or another file."""
    recipe = load_recipe(run.recipe_path, [], {}).recipe
    recipe = recipe.model_copy(update={"workspace": str(run.path.parents[1])})
    again = ["limbeck", "eval", str(run.path), *(() if prompts is None else ("--prompts", str(prompts)))]
    commands = {
        "recipe": shlex.quote(str(run.recipe_path)),
        "run": shlex.quote(str(run.path)),
        "again": shlex.join([*again, *options.arguments()]),
    }
    question = _of_recipe(recipe, "after", {"distilled": f"run:{run.name}"}, options, commands)
    if prompts is not None:
        question = replace(question, rows=read_rows(prompts).rows, files=(str(prompts),))
    return _evaluate(question, options, log)


def evaluate_models(
    models: Sequence[str], prompts: Path, workspace: Path, options: EvaluationOptions, log: Log
) -> Evaluation:
    """Models on the prompts of a file; ROLE=MODEL says that one is the teacher, the student or the distilled one."""
    named: list[Named] = []
    for number, text in enumerate(models):
        word, sign, model = text.partition("=")
        role: Role = next((each for each in ROLES if sign and word == each), "model")
        if role == "model":
            if sign and word.isidentifier() and not Path(text).exists():
                raise _role_unknown(text)
            model = text
        alias = f"model-{number + 1}" if role == "model" else role
        ref = parse_ref(model, workspace=workspace)
        named.append(Named(alias, role, ref, hosted=hosted_settings(ref, alias, options)))
    if len({each.alias for each in named}) < len(named) or not named:
        raise UsageError(
            "evaluation.models",
            given=f"The models are {', '.join(models) or 'none'}.",
            needed="Models are compared with each other, and each role is one model's.",
            fix="Name a run alone, or models, each once.",
        )
    roles = {each.role for each in named}
    kind = "after" if roles == set(ROLES) else "worth" if roles == set(ROLES[:2]) else "compare"
    again = ["limbeck", "eval", *models, "--prompts", str(prompts), *options.arguments()]
    again += () if workspace == Path() else ("--workspace", str(workspace))
    question = _Question(
        kind=kind,
        named=tuple(sorted(named, key=lambda each: each.role != "student")),
        rows=read_rows(prompts).rows,
        files=(_file_name(str(prompts)),),
        workspace=workspace,
        max_tokens=options.max_tokens or DEFAULT_MAX_TOKENS,
        slots=options.slots or DEFAULT_SLOTS,
        grader=options.grader_settings(),
        rendering={},
        device="auto",
        commands={}
        if holds_rows(prompts) or any(is_in_memory(each.ref.text) for each in named)
        else {"again": shlex.join(again)},
    )
    return _evaluate(question, options, log)


def _file_name(path: str) -> str:
    """How a file is told of; the file of rows that were given as objects lies elsewhere each time."""
    return Path(path).name if holds_rows(path) else path


def _role_unknown(text: str) -> UsageError:
    return UsageError(
        "evaluation.role",
        given=f"{text!r} names a role that there is none of.",
        needed=f"A role is {', '.join(ROLES)}: the verdict is about these.",
        fix="Write one of them before the =, or the model alone.",
    )


def _of_recipe(
    recipe: Recipe,
    kind: Literal["worth", "after"],
    more: Mapping[Role, str],
    options: EvaluationOptions,
    commands: Mapping[str, str],
) -> _Question:
    if "auto" in (recipe.precision, recipe.teacher_dtype):
        recipe = recipe.for_machine(bf16=probe_machine(recipe.device).bf16)
    unread = RowErrors(Path(recipe.prompts).name) if recipe.bad_rows == "skip" else None
    rows = read_rows(Path(recipe.prompts), unread).rows
    held_out = Path(recipe.held_out) if isinstance(recipe.held_out, str) else recipe.held_out
    limits = {"on-policy": recipe.max_practice_tokens, "off-policy": recipe.max_teacher_tokens}
    workspace = Path(recipe.workspace)
    texts: dict[Role, str | None] = {"student": recipe.student, "teacher": recipe.teacher, **more}
    models = [
        (role, parse_ref(text, workspace=workspace), recipe.teacher_dtype if role == "teacher" else "float32")
        for role, text in texts.items()
        if text is not None
    ]
    return _Question(
        kind=kind,
        named=tuple(
            Named(role, role, ref, dtype, hosted_settings(ref, role, options, settings_of_recipe(recipe, role)))
            for role, ref, dtype in models
        ),
        rows=split_held_out(rows, held_out).held_out,
        files=(_file_name(recipe.held_out if isinstance(recipe.held_out, str) else recipe.prompts),),
        workspace=workspace,
        max_tokens=options.max_tokens or limits.get(recipe.route, DEFAULT_MAX_TOKENS),
        slots=options.slots or recipe.slots,
        grader=options.grader_settings() or recipe.grader,
        rendering={
            "template": recipe.template,
            "options": recipe.template_options,
            "max_prompt_tokens": recipe.max_prompt_tokens,
            "on_long": recipe.long_prompts,
        },
        device=recipe.device,
        commands=commands,
        hosted=settings_of_recipe(recipe, ALIAS),
    )


def _evaluate(question: _Question, options: EvaluationOptions, log: Log) -> Evaluation:
    """Ask, grade, compare, decide; all of it is in the evaluation's folder at the end."""
    known = {each.alias for each in question.named if each.hosted is not None}
    options.refuse_unused(known | ({ALIAS} if (options.judge or "").startswith("openai:") else set()))
    rows, notes = ask_once(question.rows)
    sides = all_sides(question.named, rows, max_tokens=question.max_tokens, **question.rendering)
    prompts = sides[0].prompts
    measure = choose_measure(prompts, question.grader)
    _refuse_unknown(options, sides)
    judge = options.judge and find_judge(options, question.workspace, question.hosted, len(sides), question.slots)
    if measure.kind == "text" and not judge:
        chrf("", "a")  # an extra that is missing is told now, and not after hours of answers
    answering = Answering(question.max_tokens, options.temperature, options.samples, options.seed, question.slots)
    about = {"files": list(question.files), "num": len(prompts), "hash": prompts_hash(prompts), "notes": notes}
    asked = {
        "kind": question.kind,
        "prompts": about,
        "models": [{"alias": side.alias, "role": side.role, "ref": side.ref.text} for side in sides],
        "settings": asdict(answering),
    }
    device = use_machine(question.device).device
    with open_evaluation(question.workspace, options.name, asked) as evaluation:
        evaluation.begin(asked)
        for side in sides:
            if side.hosted is None:
                answer_side(evaluation, side, answering, device, log)
            else:
                answer_hosted(evaluation, side, answering, log)
        log("phase", phase="grading")
        _grade(evaluation, None if judge and measure.kind == "text" else measure, sides)
        pairs = compared_pairs(question.kind, sides)
        judged = judge_pairs(evaluation, judge, pairs, sides, device, log) if judge else {}
        log("phase", phase="comparing with the teacher, token by token")
        measures = distances(evaluation, sides, device)
        done = Evaluated(evaluation, question.kind, tuple(sides), measure, measures, question.commands, judged)
        evaluation.write_result(result_of(done, options))
    return evaluation


def _refuse_unknown(options: EvaluationOptions, sides: Sequence[Side]) -> None:
    """A price or a column that nothing here has is a slip, and answers take long."""
    columns = {name for prompt in sides[0].prompts for name in labels_of(prompt)}
    unknown = {"price": options.prices().keys() - {side.alias for side in sides}, "by": set(options.by) - columns}
    known = {"price": [side.alias for side in sides], "by": sorted(columns)}
    for option, names in unknown.items():
        if names:
            raise UsageError(
                "evaluation.unknown-name",
                given=f"--{option} names {', '.join(map(repr, sorted(names)))}.",
                needed=f"It is one of {', '.join(known[option])}."
                if known[option]
                else "The rows have no such columns.",
                fix="Correct the name.",
            )


def _grade(evaluation: Evaluation, measure: Measure | None, sides: Sequence[Side]) -> None:
    """Each answer by itself. Without a measure (a judge sees pairs, and no grader fits) no answer has a grade."""
    teacher = next((side.alias for side in sides if side.role == "teacher"), None)
    texts = (
        {}
        if teacher is None
        else {(row["key"], row["sample"]): row["answer"] for row in evaluation.read_answers(teacher)}
    )
    for side in sides:
        about = {
            conversation_key(prompt): {
                "source": prompt.source,
                "reference": prompt.reference,
                "labels": labels_of(prompt),
            }
            for prompt in side.prompts
        }
        # an answer of before stands, what its row says beside it may have changed
        rows = [{**row, **about[row["key"]]} for row in evaluation.read_answers(side.alias)]
        known = None if side.alias == teacher else texts
        graded = (
            [{**row, "grade": None, "grade_reason": row["failure"]} for row in rows]
            if measure is None
            else grade_answers(measure, side.prompts, rows, known)
        )
        evaluation.write_answers(side.alias, graded)
