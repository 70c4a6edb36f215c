"""Evaluations from the models to the verdict: generate answers to the same prompts, grade, compare, decide.

worth     teacher and student on a recipe's held-out prompts, before training (the baseline check)
after     a run's original student, distilled student and teacher on its held-out prompts, or models with these roles
compare   any models on a prompt file
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
from limbeck.evaluation.answering.answers import GenerationSettings, generate_answers_of, labels_of
from limbeck.evaluation.answering.evaluated import EvaluatedModel, ModelEntry, Role, prepare_all_models, unique_prompts
from limbeck.evaluation.answering.hosted import generate_hosted_answers, hosted_settings, settings_of_recipe
from limbeck.evaluation.answering.teacher_divergence import divergences_to_teacher
from limbeck.evaluation.deciding.result import GradedEvaluation, build_result, compared_pairs
from limbeck.evaluation.grading.graders import chrf
from limbeck.evaluation.grading.judge import ALIAS, find_judge, judge_pairs
from limbeck.evaluation.grading.measure import ScoreMeasure, choose_measure, grade_answers
from limbeck.evaluation.messages import models as messages
from limbeck.machine import probe_machine, use_machine
from limbeck.models.memory import holds_rows, is_in_memory
from limbeck.models.resolve import parse_ref
from limbeck.recipe.evaluation import EvaluationOptions
from limbeck.recipe.files import LoadedRecipe, load_recipe
from limbeck.recipe.grader import GraderSettings
from limbeck.recipe.recipe import Recipe
from limbeck.runs.evaluations import Evaluation, open_evaluation
from limbeck.runs.store import Run, WriteEvent

__all__ = ["evaluate_models", "evaluate_run", "worth_of"]

DEFAULT_MAX_TOKENS, DEFAULT_SLOTS = 512, 32
ROLES: tuple[Role, ...] = ("teacher", "student", "distilled")


@dataclass(frozen=True)
class _EvaluationPlan:
    """Models, prompts and settings of an evaluation.

    `commands` are those that a next step may show, `hosted` the recipe's settings for a judge at a hosted API.
    """

    kind: Literal["worth", "after", "compare"]
    entries: tuple[ModelEntry, ...]
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


def worth_of(
    loaded: LoadedRecipe, options: EvaluationOptions, log: WriteEvent, overrides: Sequence[str] = ()
) -> Evaluation:
    """Compare teacher and student on the recipe's held-out prompts; `overrides` are those that it was loaded with."""
    recipe = loaded.recipe
    if recipe.teacher is None:
        raise messages.no_teacher(recipe=loaded.path.name, route=recipe.route)
    arguments = [str(loaded.path), *(text for override in overrides for text in ("--set", override))]
    commands = {
        "recipe": shlex.join(arguments),
        "again": shlex.join(["limbeck", "worth", *arguments, *options.arguments()]),
    }
    if not loaded.path.is_file():  # the settings come from a program, so no command can repeat this
        commands = {}
    return _run_evaluation(_of_recipe(recipe, "worth", {}, options, commands), options, log)


def evaluate_run(run: Run, options: EvaluationOptions, log: WriteEvent, prompts: Path | None = None) -> Evaluation:
    """Compare a run's original student, distilled student and teacher on its held-out prompts or another file."""
    recipe = load_recipe(run.recipe_path, [], {}).recipe
    recipe = recipe.model_copy(update={"workspace": str(run.path.parents[1])})
    again = ["limbeck", "eval", str(run.path), *(() if prompts is None else ("--prompts", str(prompts)))]
    commands = {
        "recipe": shlex.quote(str(run.recipe_path)),
        "run": shlex.quote(str(run.path)),
        "again": shlex.join([*again, *options.arguments()]),
    }
    plan = _of_recipe(recipe, "after", {"distilled": f"run:{run.name}"}, options, commands)
    if prompts is not None:
        plan = replace(plan, rows=read_rows(prompts).rows, files=(str(prompts),))
    return _run_evaluation(plan, options, log)


def evaluate_models(
    models: Sequence[str], prompts: Path, workspace: Path, options: EvaluationOptions, log: WriteEvent
) -> Evaluation:
    """Compare models on the prompts of a file; ROLE=MODEL gives a model the role teacher, student or distilled."""
    entries: list[ModelEntry] = []
    for number, text in enumerate(models):
        word, sign, model = text.partition("=")
        role: Role = next((each for each in ROLES if sign and word == each), "model")
        if role == "model":
            if sign and word.isidentifier() and not Path(text).exists():
                raise messages.role_unknown(text=text, roles=list(ROLES))
            model = text
        alias = f"model-{number + 1}" if role == "model" else role
        ref = parse_ref(model, workspace=workspace)
        entries.append(ModelEntry(alias, role, ref, hosted=hosted_settings(ref, alias, options)))
    if not entries:
        raise messages.no_models()
    if len({each.alias for each in entries}) < len(entries):
        raise messages.role_repeated(models=list(models))
    roles = {each.role for each in entries}
    kind = "after" if roles == set(ROLES) else "worth" if roles == set(ROLES[:2]) else "compare"
    again = ["limbeck", "eval", *models, "--prompts", str(prompts), *options.arguments()]
    again += () if workspace == Path() else ("--workspace", str(workspace))
    plan = _EvaluationPlan(
        kind=kind,
        entries=tuple(sorted(entries, key=lambda each: each.role != "student")),
        rows=read_rows(prompts).rows,
        files=(_file_name(str(prompts)),),
        workspace=workspace,
        max_tokens=options.max_tokens or DEFAULT_MAX_TOKENS,
        slots=options.slots or DEFAULT_SLOTS,
        grader=options.grader_settings(),
        rendering={},
        device="auto",
        commands={}
        if holds_rows(prompts) or any(is_in_memory(each.ref.text) for each in entries)
        else {"again": shlex.join(again)},
    )
    return _run_evaluation(plan, options, log)


def _file_name(path: str) -> str:
    """The name of a prompt file in the result; rows that were given as objects are in another file each time."""
    return Path(path).name if holds_rows(path) else path


def _of_recipe(
    recipe: Recipe,
    kind: Literal["worth", "after"],
    more: Mapping[Role, str],
    options: EvaluationOptions,
    commands: Mapping[str, str],
) -> _EvaluationPlan:
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
    return _EvaluationPlan(
        kind=kind,
        entries=tuple(
            ModelEntry(role, role, ref, dtype, hosted_settings(ref, role, options, settings_of_recipe(recipe, role)))
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


def _run_evaluation(plan: _EvaluationPlan, options: EvaluationOptions, log: WriteEvent) -> Evaluation:
    """Generate, grade, compare and decide; the result is in the evaluation's folder."""
    known = {each.alias for each in plan.entries if each.hosted is not None}
    options.refuse_unused(known | ({ALIAS} if (options.judge or "").startswith("openai:") else set()))
    rows, notes = unique_prompts(plan.rows)
    models = prepare_all_models(plan.entries, rows, max_tokens=plan.max_tokens, **plan.rendering)
    prompts = models[0].prompts
    measure = choose_measure(prompts, plan.grader)
    _refuse_unknown(options, models)
    judge = options.judge and find_judge(options, plan.workspace, plan.hosted, len(models), plan.slots)
    if measure.kind == "text" and not judge:
        chrf("", "a")  # fails now if an extra is missing, and not after hours of generation
    settings = GenerationSettings(plan.max_tokens, options.temperature, options.samples, options.seed, plan.slots)
    about = {"files": list(plan.files), "num": len(prompts), "hash": prompts_hash(prompts), "notes": notes}
    request = {
        "kind": plan.kind,
        "prompts": about,
        "models": [{"alias": model.alias, "role": model.role, "ref": model.ref.text} for model in models],
        "settings": asdict(settings),
    }
    device = use_machine(plan.device).device
    with open_evaluation(plan.workspace, options.name, request) as evaluation:
        evaluation.begin(request)
        for model in models:
            if model.hosted is None:
                generate_answers_of(evaluation, model, settings, device, log)
            else:
                generate_hosted_answers(evaluation, model, settings, log)
        log("phase", phase=messages.grading())
        _grade(evaluation, None if judge and measure.kind == "text" else measure, models)
        pairs = compared_pairs(plan.kind, models)
        judged = judge_pairs(evaluation, judge, pairs, models, device, log) if judge else {}
        log("phase", phase=messages.measuring_divergence())
        divergences = divergences_to_teacher(evaluation, models, device)
        done = GradedEvaluation(evaluation, plan.kind, tuple(models), measure, divergences, plan.commands, judged)
        evaluation.write_result(asdict(build_result(done, options)))
    return evaluation


def _refuse_unknown(options: EvaluationOptions, models: Sequence[EvaluatedModel]) -> None:
    """Raise UsageError for a price or a column that does not exist, before hours of generation."""
    aliases = [model.alias for model in models]
    columns = sorted({name for prompt in models[0].prompts for name in labels_of(prompt)})
    if names := sorted(options.prices().keys() - set(aliases)):
        raise messages.price_of_unknown_model(names=names, models=aliases)
    if names := sorted(set(options.by) - set(columns)):
        raise messages.column_unknown(names=names, columns=columns) if columns else messages.no_columns(names=names)


def _grade(evaluation: Evaluation, measure: ScoreMeasure | None, models: Sequence[EvaluatedModel]) -> None:
    """Grade each answer; without a measure (a judge compares pairs, and there is no grader), no answer gets a grade."""
    teacher = next((model.alias for model in models if model.role == "teacher"), None)
    texts = (
        {}
        if teacher is None
        else {(row["key"], row["sample"]): row["answer"] for row in evaluation.read_answers(teacher)}
    )
    for model in models:
        about = {
            conversation_key(prompt): {
                "source": prompt.source,
                "reference": prompt.reference,
                "labels": labels_of(prompt),
            }
            for prompt in model.prompts
        }
        # an answer that was stored before stays; the other columns of its row may have changed
        rows = [{**row, **about[row["key"]]} for row in evaluation.read_answers(model.alias)]
        known = None if model.alias == teacher else texts
        graded = (
            [{**row, "grade": None, "grade_reason": row["failure"]} for row in rows]
            if measure is None
            else grade_answers(measure, model.prompts, rows, known)
        )
        evaluation.write_answers(model.alias, graded)
