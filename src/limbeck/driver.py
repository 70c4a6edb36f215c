"""Runs a recipe in a run folder: log, evaluate, save checkpoints and the final model, stop, resume.

The route computes and yields one record per step; everything else in a run happens here, between two records. The last
event of a run says how it ended: done, failed or stopped.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from limbeck import messages
from limbeck.evaluation.held_out import HeldOutSet, best_step, evaluate_held_out, prepare_held_out, refuse_ungraded
from limbeck.evaluation.marking import mark_step, nearest_beta
from limbeck.models.adapters import merge_adapters, save_adapters
from limbeck.models.save import save_model, save_tokenizer_and_generation_config, weights_hash
from limbeck.planning.check import CheckReport, plan_recipe
from limbeck.planning.guards import alerts_of, few_prompts_note
from limbeck.planning.memory import refuse_if_too_large
from limbeck.recipe.files import LoadedRecipe, load_recipe, recipe_text
from limbeck.recipe.recipe import Recipe
from limbeck.rollouts.request import Completion
from limbeck.routes.loop import TrainingData, training_steps
from limbeck.routes.on_policy import objective_of, sampling_of
from limbeck.runs.lineage import lineage_of, other_teachers
from limbeck.runs.lines import write_text
from limbeck.runs.marks import MarkSheet, marks_name, write_marks
from limbeck.runs.messages import run_exists
from limbeck.runs.store import Run, current_events
from limbeck.teachers.local import LocalTeacher
from limbeck.training.answers import TARGETS, TEACHER_ANSWERS, store_teacher_answers, targets_from_answers
from limbeck.training.checkpoint import (
    Checkpoint,
    damaged_checkpoints,
    latest_checkpoint,
    load_checkpoint,
    load_weights,
    save_checkpoint,
)
from limbeck.training.inputs import keep_inputs, with_own_files
from limbeck.training.provenance import (
    changed_settings,
    first_start,
    provenance_of,
    refuse_changed_inputs,
    startup_notes,
    store_prompts,
)
from limbeck.training.record import step_fields
from limbeck.training.session import EventListener, EventLog, log_ending, stop_signals, stopped_error
from limbeck.training.setup import Models, load_models, make_state
from limbeck.training.state import StepRecord, TrainState

__all__ = ["generate_answers_run", "plan_stages", "resume_run", "train_run", "train_stages"]


def train_run(
    loaded: LoadedRecipe, listen: EventListener = lambda event: None, watch: Callable[[str], None] = lambda phase: None
) -> Run:
    """Train as the recipe says, in a new run folder under its workspace.

    Args:
        loaded: the recipe and the origin of its values.
        listen: called with every event after it is logged.
        watch: called with the name of each phase of a step as it begins; phases are not logged.

    Raises:
        LimbeckError: whatever follows from recipe, prompts and configurations is raised before the run folder is
            created; a later error is logged as the run's end first.
    """
    recipe = loaded.recipe
    plan = _prepare(recipe)
    with Run.create(Path(recipe.workspace), recipe.name) as run, log_ending(EventLog(run, listen)) as log:
        recipe, material = keep_inputs(run, plan.recipe, plan.material)
        _run_steps(log, replace(plan, recipe=recipe, material=material), watch, None)
    return run


def train_stages(
    stages: Sequence[LoadedRecipe],
    listen: EventListener = lambda event: None,
    watch: Callable[[str], None] = lambda phase: None,
) -> Run:
    """Train several recipes in order; `student: previous` is the run of the recipe before. Returns the last run.

    Raises:
        LimbeckError: as `train_run`; with several stages, all are checked before the first one begins.
    """
    if len(stages) > 1:
        for plan in plan_stages(stages):
            refuse_if_too_large(plan.memory)
    run: Run | None = None
    for stage in stages:
        if stage.recipe.student == "previous" and run is not None:
            stage = replace(stage, recipe=stage.recipe.model_copy(update={"student": f"run:{run.name}"}))
        run = train_run(stage, listen, watch)
    assert run is not None, "at least one recipe"
    return run


def plan_stages(stages: Sequence[LoadedRecipe]) -> list[CheckReport]:
    """The plan of each of several stages, before any of them has a run.

    A stage whose student or teacher is the result of an earlier stage is planned with the student that the earlier one
    starts from, and with its template: training changes nothing but the weights.

    Raises:
        LimbeckError: the first problem of a stage. Memory is left to the caller.
    """
    plans: list[CheckReport] = []
    for stage in stages:
        recipe, runs = stage.recipe, Run.home(Path(stage.recipe.workspace))
        named = {f"run:{plan.recipe.name}": plan for plan in plans}
        if plans:
            named["previous"] = plans[-1]
        earlier = {text: plan for text, plan in named.items() if Run.home(Path(plan.recipe.workspace)) == runs}
        if recipe.name is not None and (f"run:{recipe.name}" in earlier or (runs / recipe.name).exists()):
            raise run_exists(name=recipe.name, folder=runs)
        models = {"student": recipe.student, "teacher": recipe.teacher or ""}
        begun = {role: earlier[text] for role, model in models.items() if (text := model.partition("@")[0]) in earlier}
        recipe = recipe.model_copy(update={role: plan.recipe.student for role, plan in begun.items()})
        asked = begun.get(recipe.template)
        plans.append(plan_recipe(recipe, template=None if asked is None else asked.material.dialogue.template))
        refuse_ungraded(recipe, plans[-1].material.held_out.prompts)
    return plans


def generate_answers_run(loaded: LoadedRecipe, listen: EventListener = lambda event: None) -> Run:
    """Generate the teacher's answers of a recipe into a run folder of their own, without training.

    For a named recipe, a generation that was stopped is continued in the same folder.

    Raises:
        Refusal: the recipe does not train on answers of the teacher.
    """
    recipe = loaded.recipe
    if not recipe.answers_written:
        raise messages.answers_not_needed(recipe=loaded.path.name, route=recipe.route)
    plan = _prepare(recipe)
    name = None if recipe.name is None else f"{recipe.name}-answers"
    workspace = Path(recipe.workspace)
    begun = Run(Run.home(workspace) / (name or "-"))
    continued = begun.path.exists() and begun.status().state != "done"
    with begun if continued else Run.create(workspace, name) as run, log_ending(EventLog(run, listen)) as log:
        recipe, material = keep_inputs(run, plan.recipe, plan.material)
        models = load_models(material, recipe, plan.machine)
        write_text(run.recipe_path, with_own_files(recipe_text(recipe), run))
        log.write("start", run=run.name, step=0, steps=0, objective=messages.answers_only())
        store_teacher_answers(run, log.write, recipe, material, models)
        log.write("done", step=0, answers=str(run.answers(TARGETS)))
    return run


def resume_run(
    run: Run,
    listen: EventListener = lambda event: None,
    watch: Callable[[str], None] = lambda phase: None,
    overrides: Sequence[str] = (),
) -> Run:
    """Resume a run from its newest intact checkpoint, with the recipe in its folder.

    `overrides` (`key=value`) change that recipe; environment variables have no effect. A changed setting is refused if
    it defines what is trained; any other is logged and applied.

    Raises:
        Refusal: the run is done, has no checkpoint, is in use by another process, or no longer matches its record.
    """
    is_done = run.status().state == "done"
    with run:  # no other process writes or removes a checkpoint from here on
        checkpoint = latest_checkpoint(run.checkpoints_path)
        if is_done:
            raise messages.run_is_done(name=run.name, recipe=run.recipe_path)
        if checkpoint is None:
            if damaged := damaged_checkpoints(run.checkpoints_path):
                raise messages.checkpoints_damaged(name=run.name, recipe=run.recipe_path, damages=damaged)
            raise messages.no_checkpoint(name=run.name, recipe=run.recipe_path)
        recipe = load_recipe(run.recipe_path, overrides, {}).recipe
        changes = changed_settings(run, recipe, checkpoint.step)
        plan = _prepare(recipe, first_start(run))
        with log_ending(EventLog(run, listen)) as log:
            _run_steps(log, plan, watch, checkpoint, changes)
    return run


def _prepare(recipe: Recipe, recorded: Mapping[str, Any] | None = None) -> CheckReport:
    """The plan of a run; raises everything that can be refused before the run folder exists or weights are loaded."""
    plan = plan_recipe(recipe, recorded)
    refuse_if_too_large(plan.memory)
    refuse_ungraded(recipe, plan.material.held_out.prompts)
    return plan


def _run_steps(
    log: EventLog,
    plan: CheckReport,
    watch: Callable[[str], None],
    checkpoint: Checkpoint | None,
    changes: Sequence[str] = (),
) -> None:
    """Train from the start or from a checkpoint to the last step, and save the final model."""
    run, recipe, material = log.run, plan.recipe, plan.material
    log.write("phase", phase="loading models")
    models = load_models(material, recipe, plan.machine, None if checkpoint is None else first_start(run))
    provenance = provenance_of(recipe, material, models, plan.machine)
    state = make_state(models, material, recipe, watch)
    if checkpoint is None:
        store_prompts(run, material)
    else:
        refuse_changed_inputs(run, provenance)
        load_checkpoint(checkpoint, state)
    if checkpoint is None or changes:
        text = recipe_text(recipe, header=json.dumps(provenance, indent=1))
        write_text(run.recipe_path, with_own_files(text, run))
    about = {"run": run.name, "step": state.step, "steps": recipe.steps, "objective": plan.objective}
    log.write("start", **about, **provenance, settings=recipe.settings())
    for note in (*changes, *_notes(log, plan, models, provenance, checkpoint)):
        log.write("note", text=note)
    if checkpoint is None and recipe.answers_written:
        save_checkpoint(run.checkpoints_path, state)  # resumable while the teacher generates
    data = _training_data(log, plan, models)
    held_out = prepare_held_out(run, log.write, recipe, material, models)
    if not recipe.scores:
        models = replace(models, teacher=None)  # its answers are stored; free its memory
    history: list[StepRecord] = []
    with stop_signals(log) as stop_asked:
        if _is_due(state.step, recipe) and state.step not in {event["step"] for event in _evaluations(run)}:
            _evaluate(log, plan, state, data, held_out)  # otherwise this was done before the run stopped
        for record in training_steps(state, data, recipe):
            history.append(record)
            log.write("step", **step_fields(record))
            for alert in alerts_of(history):
                log.write("alert", step=record.step, code=alert.code, text=alert.text)
            last, due = record.step == recipe.steps, _is_due(record.step, recipe)
            if due or stop_asked():
                save_checkpoint(run.checkpoints_path, state, kept_step=_kept_step(run, recipe))
            if stop_asked() and not last:
                raise stopped_error(run, record.step, recipe.steps)
            if due:
                _evaluate(log, plan, state, data, held_out)
        _save_final_model(log, plan, state)


def _notes(
    log: EventLog, plan: CheckReport, models: Models, provenance: Mapping[str, object], checkpoint: Checkpoint | None
) -> Iterator[str]:
    """Notes for the user before the first step, warnings first."""
    recipe, material = plan.recipe, plan.material
    warnings = [other_teachers(lineage_of(log.run, Path(recipe.workspace)))]
    warnings.append(few_prompts_note(recipe, len(material.train.prompts)))
    yield from filter(None, warnings)
    yield from (*plan.notes, *models.notes, *startup_notes(provenance, models))
    yield from () if checkpoint is None else checkpoint.passed_over


def _training_data(log: EventLog, plan: CheckReport, models: Models) -> TrainingData:
    """The data of the training loop; generates the teacher's answers if the recipe needs them."""
    recipe, material = plan.recipe, plan.material
    targets = material.targets
    if recipe.answers_written:
        store_teacher_answers(log.run, log.write, recipe, material, models)
        targets = targets_from_answers(log.run.read_answers(TEACHER_ANSWERS), material, recipe)
    teacher = None if models.teacher is None or not recipe.scores else LocalTeacher(models.teacher)
    return TrainingData(material.train.prompts, teacher, targets, material.own)


def _evaluate(log: EventLog, plan: CheckReport, state: TrainState, data: TrainingData, held_out: HeldOutSet) -> None:
    """Evaluate the student on fixed texts and on new answers; mark a few answers if the teacher scores."""
    log.write("phase", phase="evaluating")
    recipe = plan.recipe
    objective = objective_of(recipe) if recipe.scores else None
    limit, sampling = plan.material.answer_limit, sampling_of(recipe)
    rows, fields = evaluate_held_out(
        state, data.teacher, held_out, objective, recipe, answer_limit=limit, sampling=sampling
    )
    log.run.write_answers(f"held-out-step-{state.step:06d}", rows)
    log.write("evaluation", **fields)
    if data.teacher is None or objective is None:
        return
    log.write("phase", phase="marking")
    started = time.perf_counter()
    answers = [Completion(tuple(row["ids"]), (), row["cut_off"]) for row in rows]
    marked = mark_step(state, data.teacher, (held_out.prompts, answers), objective, recipe.micro_batch_tokens)
    name, beta = f"run:{log.run.name}@{state.step}", nearest_beta(objective)
    sheet = MarkSheet(name, str(recipe.teacher), state.step, beta, marked)
    write_marks(log.run.path / "marks" / marks_name(state.step), sheet)
    num_tokens, seconds = sum(len(answer) for answer in marked), time.perf_counter() - started
    log.write("marks", step=state.step, answers=len(marked), num_tokens=num_tokens, seconds=seconds)


def _save_final_model(log: EventLog, plan: CheckReport, state: TrainState) -> None:
    """Save the student of the last step as the final model, or that of the best one if the recipe says so."""
    run, recipe, material = log.run, plan.recipe, plan.material
    log.write("phase", phase="saving the model")
    kept_step = _kept_step(run, recipe) or state.step
    if kept_step != state.step:
        load_weights(run.checkpoints_path, kept_step, state)
        log.write("note", text=messages.best_step_kept(step=kept_step))
    state.weights.widen()
    conversation: dict[str, Any] = {
        "chat_template": material.dialogue.template.source,
        "stop_ids": material.dialogue.stop.ids,
        "pad_id": material.dialogue.pad_id,
    }
    if recipe.lora is not None:
        save_adapters(state.student, run.adapter_path)
        save_tokenizer_and_generation_config(state.student, run.adapter_path, **conversation)
        merge_adapters(state.student)
    save_model(state.student, run.model_path, **conversation)
    weights = weights_hash(state.student.module)
    log.write("done", step=state.step, kept_step=kept_step, model=str(run.model_path), weights=weights)


def _is_due(step: int, recipe: Recipe) -> bool:
    """Whether the student is evaluated and a checkpoint saved after a step."""
    return step == recipe.steps or step % recipe.evaluate_every == 0


def _evaluations(run: Run) -> list[dict[str, Any]]:
    return [event for event in current_events(run.read_events()) if event["kind"] == "evaluation"]


def _kept_step(run: Run, recipe: Recipe) -> int | None:
    """The best step so far, whose student would be the final model; None for the last step."""
    return best_step(_evaluations(run)) if recipe.keep == "best" else None
