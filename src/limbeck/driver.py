"""Runs a route into a run folder: log, evaluate, checkpoint, save, stop.

The route computes and yields one record per step; everything else that happens during a run happens here, between two
records. A run that ends for any reason says so in its last event: done, failed or stopped.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from limbeck.errors import Refusal, UsageError
from limbeck.evaluation.during_training import (
    HeldOutSet,
    best_step,
    evaluate_held_out,
    prepare_held_out,
    refuse_ungraded,
)
from limbeck.evaluation.marking import mark_step, nearest_beta
from limbeck.models.adapters import merge_adapters, save_adapters
from limbeck.models.save import save_model, weights_hash, write_manner
from limbeck.planning.check import CheckReport, plan_recipe
from limbeck.planning.guards import alerts_of, few_prompts_note
from limbeck.planning.memory import refuse_if_too_large
from limbeck.recipe.files import LoadedRecipe, load_recipe, recipe_text
from limbeck.recipe.recipe import Recipe
from limbeck.rollouts.request import Completion
from limbeck.routes.loop import Lesson, train
from limbeck.routes.on_policy import objective_of, sampling_of
from limbeck.runs.lineage import other_teachers, trace
from limbeck.runs.lines import write_text
from limbeck.runs.marks import MarkSheet, marks_name, write_marks
from limbeck.runs.store import Run, current_events
from limbeck.teachers.local import LocalTeacher
from limbeck.training.answers import TARGETS, TEACHER_ANSWERS, write_answers, written_targets
from limbeck.training.checkpoint import (
    Checkpoint,
    damages,
    latest_checkpoint,
    load_checkpoint,
    load_weights,
    save_checkpoint,
)
from limbeck.training.inputs import keep_inputs
from limbeck.training.provenance import (
    changed_settings,
    first_start,
    provenance_of,
    refuse_changed,
    run_notes,
    store_prompts,
)
from limbeck.training.session import Listener, Log, ending, stop_signals, stopped
from limbeck.training.setup import Models, load_models, make_state
from limbeck.training.state import StepRecord, TrainState

__all__ = ["answer_run", "plan_stages", "resume_run", "train_run", "train_stages"]


def train_run(
    loaded: LoadedRecipe, listen: Listener = lambda event: None, watch: Callable[[str], None] = lambda phase: None
) -> Run:
    """Train as the recipe says, in a new run folder under its workspace.

    Args:
        loaded: the recipe and where its values came from.
        listen: called with every event after it is in the log.
        watch: called with the phase within a step whenever it changes; these are not in the log.

    Raises:
        LimbeckError: before the run folder exists for whatever can be known from recipe, prompts and configurations;
            later the run is marked as failed or stopped first.
    """
    recipe = loaded.recipe
    plan = _prepare(recipe)
    with Run.create(Path(recipe.workspace), recipe.name) as run, ending(Log(run, listen)) as log:
        recipe, material = keep_inputs(run, recipe, plan.material)
        _drive(log, replace(plan, recipe=recipe, material=material), watch, None)
    return run


def train_stages(
    stages: Sequence[LoadedRecipe],
    listen: Listener = lambda event: None,
    watch: Callable[[str], None] = lambda phase: None,
) -> Run:
    """Train recipes one after the other; in each, `student: previous` is the run before it. Returns the last run.

    Raises:
        LimbeckError: as `train_run`; what can be known of any of several stages, before the first begins.
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
    """What each of some recipes would do, one after the other, before there is a run of any of them.

    A stage that goes on from an earlier one, or learns from it, is planned with the model that that one starts from and
    the template that it is asked in: training changes nothing but the numbers.

    Raises:
        LimbeckError: the first thing that stands in the way of a stage. Memory is for the caller to judge.
    """
    plans: list[CheckReport] = []
    for stage in stages:
        recipe, runs = stage.recipe, Run.home(Path(stage.recipe.workspace))
        named = {f"run:{plan.recipe.name}": plan for plan in plans}
        if plans:
            named["previous"] = plans[-1]
        earlier = {text: plan for text, plan in named.items() if Run.home(Path(plan.recipe.workspace)) == runs}
        if recipe.name is not None and (f"run:{recipe.name}" in earlier or (runs / recipe.name).exists()):
            raise UsageError(
                "run.exists",
                given=f"{stage.path.name} names its run {recipe.name}, as another stage does or a run in {runs}.",
                needed="A new one gets a folder of its own, so that it cannot mix with an older one.",
                fix="Choose another name, or leave the name out and get a new one.",
            )
        models = {"student": recipe.student, "teacher": recipe.teacher or ""}
        begun = {role: earlier[text] for role, model in models.items() if (text := model.partition("@")[0]) in earlier}
        recipe = recipe.model_copy(update={role: plan.recipe.student for role, plan in begun.items()})
        asked = begun.get(recipe.template)
        plans.append(plan_recipe(recipe, template=None if asked is None else asked.material.dialogue.template))
        refuse_ungraded(recipe, plans[-1].material.held_out.prompts)
    return plans


def answer_run(loaded: LoadedRecipe, listen: Listener = lambda event: None) -> Run:
    """Let the teacher of a recipe write its answers into a run folder of their own, and train nothing.

    Answers of a named recipe that were cut short go on in the folder that they have.

    Raises:
        Refusal: nothing of the recipe is learnt from answers that a teacher writes.
    """
    recipe = loaded.recipe
    if not recipe.answers_written:
        raise Refusal(
            "answers.not-needed",
            given=f"{loaded.path.name} is {recipe.route}, without a warm-up or a share of the teacher's text.",
            needed="Only answers that a student will learn are worth writing.",
            fix="Write route: off-policy, or give the recipe a warmup.",
        )
    plan = _prepare(recipe)
    name = None if recipe.name is None else f"{recipe.name}-answers"
    workspace = Path(recipe.workspace)
    begun = Run(Run.home(workspace) / (name or "-"))
    goes_on = begun.path.exists() and begun.status().state != "done"
    with begun if goes_on else Run.create(workspace, name) as run, ending(Log(run, listen)) as log:
        recipe, material = keep_inputs(run, plan.recipe, plan.material)
        models = load_models(material, recipe, plan.machine)
        write_text(run.recipe_path, recipe_text(recipe))
        log.write("start", run=run.name, step=0, steps=0, objective="answers of the teacher, nothing is trained")
        write_answers(run, log.write, recipe, material, models)
        log.write("done", step=0, answers=str(run.answers(TARGETS)))
    return run


def resume_run(
    run: Run,
    listen: Listener = lambda event: None,
    watch: Callable[[str], None] = lambda phase: None,
    overrides: Sequence[str] = (),
) -> Run:
    """Go on with a run from its newest checkpoint that verifies, with the recipe in its folder.

    `overrides` (`key=value`) lie over that recipe; the environment has no say. What they, or an edit of the file,
    change is refused where it defines what is learnt, and told and applied elsewhere.

    Raises:
        Refusal: the run is done, has no checkpoint, is being written, or is no longer what it was.
    """
    is_done = run.status().state == "done"
    with run:  # from here on nobody else writes or removes a checkpoint
        checkpoint = latest_checkpoint(run.checkpoints_path)
        if is_done or checkpoint is None:
            damaged = "".join(f"\n  {each}" for each in damages(run.checkpoints_path))
            raise Refusal(
                "run.nothing-to-resume",
                given=f"{run.name} is done." if is_done else f"{run.name} has no checkpoint that can be read.{damaged}",
                needed="A run goes on from its last checkpoint to its last step.",
                fix="Train again under another name: limbeck train " + str(run.recipe_path) + " --set name=NAME.",
            )
        recipe = load_recipe(run.recipe_path, overrides, {}).recipe
        changes = changed_settings(run, recipe, checkpoint.step)
        plan = _prepare(recipe, first_start(run))
        with ending(Log(run, listen)) as log:
            _drive(log, plan, watch, checkpoint, changes)
    return run


def _prepare(recipe: Recipe, recorded: Mapping[str, Any] | None = None) -> CheckReport:
    """Whatever can be refused before a run folder exists or a weight is read."""
    plan = plan_recipe(recipe, recorded)
    refuse_if_too_large(plan.memory)
    refuse_ungraded(recipe, plan.material.held_out.prompts)
    return plan


def _drive(
    log: Log,
    plan: CheckReport,
    watch: Callable[[str], None],
    checkpoint: Checkpoint | None,
    changes: Sequence[str] = (),
) -> None:
    """The run from its first event, or from a checkpoint, to its last."""
    run, recipe, material = log.run, plan.recipe, plan.material
    log.write("phase", phase="loading models")
    models = load_models(material, recipe, plan.machine, None if checkpoint is None else first_start(run))
    provenance = provenance_of(recipe, material, models, plan.machine)
    state = make_state(models, material, recipe, watch)
    if checkpoint is None:
        store_prompts(run, material)
    else:
        refuse_changed(run, provenance)
        load_checkpoint(checkpoint, state)
    if checkpoint is None or changes:
        write_text(run.recipe_path, recipe_text(recipe, header=json.dumps(provenance, indent=1)))
    about = {"run": run.name, "step": state.step, "steps": recipe.steps, "objective": plan.objective}
    log.write("start", **about, **provenance, settings=recipe.settings())
    for note in (*changes, *_notes(log, plan, models, provenance, checkpoint)):
        log.write("note", text=note)
    if checkpoint is None and recipe.answers_written:
        save_checkpoint(run.checkpoints_path, state)  # a run whose teacher was cut short goes on from here
    lesson = _lesson(log, plan, models)
    held_out = prepare_held_out(run, log.write, recipe, material, models)
    if not recipe.scores:
        models = replace(models, teacher=None)  # it has written, and its memory is free
    history: list[StepRecord] = []
    with stop_signals(log) as stop_asked:
        if _is_due(state.step, recipe) and state.step not in {event["step"] for event in _evaluations(run)}:
            _evaluate(log, plan, state, lesson, held_out)  # else it was done before the run stopped
        for record in train(state, lesson, recipe):
            history.append(record)
            log.write("step", **_step_fields(record))
            for alert in alerts_of(history):
                log.write("alert", step=record.step, code=alert.code, text=alert.text)
            last, due = record.step == recipe.steps, _is_due(record.step, recipe)
            if due or stop_asked():
                save_checkpoint(run.checkpoints_path, state, kept_step=_kept_step(run, recipe))
            if stop_asked() and not last:
                raise stopped(run, record.step, recipe.steps)
            if due:
                _evaluate(log, plan, state, lesson, held_out)
        _hand_over(log, plan, state)


def _notes(
    log: Log, plan: CheckReport, models: Models, provenance: Mapping[str, object], checkpoint: Checkpoint | None
) -> Iterator[str]:
    """What the user should know before the first step, warnings first."""
    recipe, material = plan.recipe, plan.material
    warnings = [other_teachers(trace(log.run, Path(recipe.workspace)))]
    warnings.append(few_prompts_note(recipe, len(material.train.prompts)))
    yield from filter(None, warnings)
    yield from (*plan.notes, *models.notes, *run_notes(provenance, models))
    yield from () if checkpoint is None else checkpoint.passed_over


def _lesson(log: Log, plan: CheckReport, models: Models) -> Lesson:
    """What the route learns from."""
    recipe, material = plan.recipe, plan.material
    targets = material.targets
    if recipe.answers_written:
        write_answers(log.run, log.write, recipe, material, models)
        targets = written_targets(log.run.read_answers(TEACHER_ANSWERS), material, recipe)
    teacher = None if models.teacher is None or not recipe.scores else LocalTeacher(models.teacher)
    return Lesson(material.train.prompts, teacher, targets, material.own)


def _evaluate(log: Log, plan: CheckReport, state: TrainState, lesson: Lesson, held_out: HeldOutSet) -> None:
    """Measure the student on the fixed text and on text that it writes now; mark a few answers if a teacher scores."""
    log.write("phase", phase="evaluating")
    recipe = plan.recipe
    objective = objective_of(recipe) if recipe.scores else None
    limit, sampling = plan.material.answer_limit, sampling_of(recipe)
    rows, fields = evaluate_held_out(
        state, lesson.teacher, held_out, objective, recipe, answer_limit=limit, sampling=sampling
    )
    log.run.write_answers(f"held-out-step-{state.step:06d}", rows)
    log.write("evaluation", **fields)
    if lesson.teacher is None or objective is None:
        return
    log.write("phase", phase="marking")
    started = time.perf_counter()
    answers = [Completion(tuple(row["ids"]), (), row["cut_off"]) for row in rows]
    marked = mark_step(state, lesson.teacher, (held_out.prompts, answers), objective, recipe.micro_batch_tokens)
    name, beta = f"run:{log.run.name}@{state.step}", nearest_beta(objective)
    sheet = MarkSheet(name, str(recipe.teacher), state.step, beta, marked)
    write_marks(log.run.path / "marks" / marks_name(state.step), sheet)
    num_tokens, seconds = sum(len(answer) for answer in marked), time.perf_counter() - started
    log.write("marks", step=state.step, answers=len(marked), num_tokens=num_tokens, seconds=seconds)


def _hand_over(log: Log, plan: CheckReport, state: TrainState) -> None:
    """Save the student of the last step, or of the one that the recipe says to keep."""
    run, recipe, material = log.run, plan.recipe, plan.material
    log.write("phase", phase="saving the model")
    kept_step = _kept_step(run, recipe) or state.step
    if kept_step != state.step:
        load_weights(run.checkpoints_path, kept_step, state)
        log.write("note", text=f"The student of step {kept_step} has the highest grade and is kept.")
    state.weights.widen()
    manner: dict[str, Any] = {
        "chat_template": material.dialogue.template.source,
        "stop_ids": material.dialogue.stop.ids,
        "pad_id": material.dialogue.pad_id,
    }
    if recipe.lora is not None:
        save_adapters(state.student, run.adapter_path)
        write_manner(state.student, run.adapter_path, **manner)
        merge_adapters(state.student)
    save_model(state.student, run.model_path, **manner)
    weights = weights_hash(state.student.module)
    log.write("done", step=state.step, kept_step=kept_step, model=str(run.model_path), weights=weights)


def _is_due(step: int, recipe: Recipe) -> bool:
    """Whether the student is saved and evaluated after a step."""
    return step == recipe.steps or step % recipe.evaluate_every == 0


def _evaluations(run: Run) -> list[dict[str, Any]]:
    return [event for event in current_events(run.read_events()) if event["kind"] == "evaluation"]


def _kept_step(run: Run, recipe: Recipe) -> int | None:
    """The step whose student the run hands over as it stands now; None for the last."""
    return best_step(_evaluations(run)) if recipe.keep == "best" else None


def _step_fields(record: StepRecord) -> dict[str, object]:
    """The record, and the throughput of each phase."""
    num_read = record.num_prompt_tokens + record.num_completion_tokens
    return {
        **asdict(record),
        "step_s": (record.write_s or 0.0) + (record.score_s or 0.0) + record.update_s,
        "writing_tokens_per_s": None if record.write_us_per_token is None else 1e6 / record.write_us_per_token,
        "reading_tokens_per_s": None if record.score_s is None else num_read / record.score_s,
        "updating_tokens_per_s": num_read / record.update_s,
        "memory_bytes": max(record.peak_bytes.values()),
    }
