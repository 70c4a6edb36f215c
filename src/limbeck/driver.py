"""Runs a route into a run folder: log, evaluate, checkpoint, save, stop.

The route computes and yields one record per step; everything else that happens during a run happens here, between two
records. A run that ends for any reason says so in its last event: done, failed or stopped.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from limbeck.data.chat import Prompt
from limbeck.errors import LimbeckError, Refusal, Stopped
from limbeck.evaluation.during import HeldOut, evaluate, held_out_texts
from limbeck.evaluation.marking import mark_step, nearest_beta
from limbeck.machine import Machine, peak_memory_bytes
from limbeck.models.adapters import merge_adapters, save_adapters
from limbeck.models.save import save_model, weights_hash
from limbeck.planning.check import plan_recipe
from limbeck.planning.guards import alerts_of
from limbeck.planning.memory import refuse_if_too_large
from limbeck.recipe.files import LoadedRecipe, load_recipe, write_recipe
from limbeck.recipe.schema import Recipe
from limbeck.rollouts.request import Completion
from limbeck.routes import Lesson, train
from limbeck.routes.off_policy import describe_objective, few_prompts_note
from limbeck.routes.on_policy import objective_of, sampling_of
from limbeck.runs.lineage import other_teachers, trace
from limbeck.runs.lines import write_failed
from limbeck.runs.marks import MarkSheet, marks_name, write_marks
from limbeck.runs.store import Run
from limbeck.teachers.local import LocalTeacher
from limbeck.teachers.signal import Teacher
from limbeck.training.answers import TARGETS, TEACHER_ANSWERS, write_answers, written_targets
from limbeck.training.checkpoint import Checkpoint, latest_checkpoint, load_checkpoint, save_checkpoint
from limbeck.training.material import Material
from limbeck.training.provenance import provenance_of, store_prompts, writing_notes
from limbeck.training.setup import Models, load_models, make_state
from limbeck.training.state import StepRecord, TrainState

__all__ = ["answer_run", "resume_run", "train_run", "train_stages"]

FIRST_ANSWERS = "held-out-step-000000"

Listener = Callable[[Mapping[str, object]], None]


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
    machine, material = _prepare(recipe)
    with Run.create(Path(recipe.workspace), recipe.name) as run, _ending(_Log(run, listen)) as log:
        _drive(run, log, recipe, material, machine, watch, None)
    return run


def train_stages(
    stages: Sequence[LoadedRecipe],
    listen: Listener = lambda event: None,
    watch: Callable[[str], None] = lambda phase: None,
) -> Run:
    """Train recipes one after the other; in each, `student: previous` is the run before it. Returns the last run."""
    run: Run | None = None
    for stage in stages:
        if stage.recipe.student == "previous" and run is not None:
            stage = replace(stage, recipe=stage.recipe.model_copy(update={"student": f"run:{run.name}"}))
        run = train_run(stage, listen, watch)
    assert run is not None, "at least one recipe"
    return run


def answer_run(loaded: LoadedRecipe, listen: Listener = lambda event: None) -> Run:
    """Let the teacher of a recipe write its answers into a run folder of their own, and train nothing.

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
    machine, material = _prepare(recipe)
    name = None if recipe.name is None else f"{recipe.name}-answers"
    with Run.create(Path(recipe.workspace), name) as run, _ending(_Log(run, listen)) as log:
        models = load_models(material, recipe, machine)
        write_recipe(run.recipe_path, recipe)
        log.write("start", run=run.name, step=0, steps=0, objective="answers of the teacher, nothing is trained")
        write_answers(run, log.write, recipe, material, models)
        log.write("done", step=0, answers=str(run.answers(TARGETS)))
    return run


def resume_run(
    run: Run, listen: Listener = lambda event: None, watch: Callable[[str], None] = lambda phase: None
) -> Run:
    """Go on with a run from its newest checkpoint that verifies, with the recipe in its folder.

    Raises:
        Refusal: the run is done, has no checkpoint, or its prompts or models are no longer what they were.
    """
    checkpoint = latest_checkpoint(run.checkpoints_path)
    if run.status().state == "done" or checkpoint is None:
        raise Refusal(
            "run.nothing-to-resume",
            given=f"{run.name} is done." if checkpoint else f"{run.name} has no checkpoint that can be read.",
            needed="A run goes on from its last checkpoint to its last step.",
            fix="Train again under another name: limbeck train " + str(run.recipe_path) + " --set name=NAME.",
        )
    recipe = load_recipe(run.recipe_path, [], {}).recipe
    machine, material = _prepare(recipe, _first_start(run)["machine"]["matmul_precision"])
    with run, _ending(_Log(run, listen)) as log:
        _drive(run, log, recipe, material, machine, watch, checkpoint)
    return run


def _prepare(recipe: Recipe, matmul_precision: str | None = None) -> tuple[Machine, Material]:
    """Whatever can be refused before a run folder exists or a weight is read."""
    plan = plan_recipe(recipe, matmul_precision)
    refuse_if_too_large(plan.memory)
    return plan.machine, plan.material


@contextmanager
def _ending(log: _Log) -> Generator[_Log]:
    """Whatever ends a run before its last step is the last event of its log."""
    try:
        yield log
    except Stopped as stopped:
        log.write("stopped", text=str(stopped), code=stopped.code)
        raise
    except KeyboardInterrupt:
        log.write("stopped", text="Interrupted at once, within a step.", code="run.interrupted")
        raise
    except (torch.OutOfMemoryError, OSError) as error:
        stopped = write_failed(log.run.path, error) if isinstance(error, OSError) else _out_of_memory(error)
        log.write("stopped", text=str(stopped), code=stopped.code)
        raise stopped from error
    except LimbeckError as error:
        log.write("failed", text=str(error), code=error.code)
        raise
    except BaseException as error:
        log.write("failed", text=f"{type(error).__name__}: {error}", code="unexpected")
        raise


@dataclass(frozen=True)
class _Log:
    run: Run
    listen: Listener

    def write(self, kind: str, **fields: object) -> None:
        event = {"kind": kind, **fields}
        self.run.append_event(event)
        self.listen(event)


def _drive(
    run: Run,
    log: _Log,
    recipe: Recipe,
    material: Material,
    machine: Machine,
    watch: Callable[[str], None],
    checkpoint: Checkpoint | None,
) -> None:
    """The run from its first event, or from a checkpoint, to its last."""
    log.write("phase", phase="loading models")
    models = load_models(material, recipe, machine, None if checkpoint is None else _first_start(run))
    provenance = provenance_of(recipe, material, models, machine)
    state = make_state(models, material, recipe, watch)
    if checkpoint is None:
        write_recipe(run.recipe_path, recipe, header=json.dumps(provenance, indent=1))
        store_prompts(run, material)
    else:
        _refuse_changed(run, provenance)
        load_checkpoint(checkpoint, state)
    about = {"run": run.name, "step": state.step, "steps": recipe.steps, "objective": describe_objective(recipe)}
    log.write("start", **about, **provenance)
    for note in _notes(run, recipe, material, models, checkpoint):
        log.write("note", text=note)
    lesson = _lesson(run, log, recipe, material, models)
    held_out = held_out_texts(run, log.write, recipe, material, models)
    if not recipe.scores:
        models = replace(models, teacher=None)  # it has written, and its memory is free
    history: list[StepRecord] = []
    with _stop_signals(log) as stop_asked:
        if checkpoint is None and recipe.answers_written:
            save_checkpoint(run.checkpoints_path, state)  # what the teacher wrote is not written again
        if state.step == 0 and FIRST_ANSWERS not in run.answer_sets():
            _evaluate(run, log, recipe, material, state, lesson, held_out)
        for record in train(state, lesson, recipe):
            history.append(record)
            log.write("step", **_step_fields(record, models, machine))
            for alert in alerts_of(history):
                log.write("alert", code=alert.code, text=alert.text)
            last = record.step == recipe.steps
            due = last or record.step % recipe.evaluate_every == 0
            if due or stop_asked():
                save_checkpoint(run.checkpoints_path, state)
            if stop_asked() and not last:
                raise _stopped(run, record.step, recipe.steps)
            if due:
                _evaluate(run, log, recipe, material, state, lesson, held_out)
        log.write("phase", phase="saving the model")
        state.weights.widen()
        if recipe.lora is not None:
            save_adapters(state.student, run.adapter_path)
            merge_adapters(state.student)
        save_model(
            state.student,
            run.model_path,
            chat_template=material.template.source,
            stop_ids=material.stop.ids,
            pad_id=material.pad_id,
        )
        log.write("done", step=state.step, model=str(run.model_path), weights=weights_hash(state.student.module))


def _out_of_memory(error: torch.OutOfMemoryError) -> Stopped:
    return Stopped(
        "run.out-of-memory",
        given=f"The device ran out of memory: {str(error).splitlines()[0]}",
        needed="A step needs its answers, activations and logits in memory at once.",
        fix="Set micro_batch_tokens, slots or chunk_tokens lower; results do not change with them.",
    )


def _refuse_changed(run: Run, provenance: Mapping[str, object]) -> None:
    """What a continued run must find as it was: prompts, template, vocabulary, stop tokens and both models."""
    first = _first_start(run)
    names = ("student", "lora", "teacher", "prompts", "own_answers", "template", "vocabulary", "stop_ids", "pad_id")
    now = json.loads(json.dumps({name: provenance[name] for name in names}))
    changed = [name for name in names if now[name] != first.get(name)]
    if changed:
        raise Refusal(
            "run.changed",
            given=f"Since {run.name} began, its {' and its '.join(changed)} changed, for example from "
            f"{first.get(changed[0])} to {now[changed[0]]}.",
            needed="A continued run is the same run: the same prompts, template and models.",
            fix="Put them back, or start a new run.",
        )


def _first_start(run: Run) -> Mapping[str, Any]:
    """What the run's first session was given and found out about models and machine."""
    return next(event for event in run.read_events() if event["kind"] == "start")


def _stopped(run: Run, step: int, steps: int) -> Stopped:
    return Stopped(
        "run.stopped",
        given=f"The run was asked to stop and did after step {step} of {steps}.",
        needed="Nothing is lost: the student and the optimizer of that step are saved.",
        fix=f"limbeck resume {run.path} goes on from there.",
    )


# ------------------------------------------------------------------------------------------------ lesson and evaluation


def _notes(
    run: Run, recipe: Recipe, material: Material, models: Models, checkpoint: Checkpoint | None
) -> Iterator[str]:
    """What the user should know before the first step, warnings first."""
    warnings = [other_teachers(trace(run, Path(recipe.workspace)))]
    warnings.append(few_prompts_note(recipe, len(material.train.prompts)))
    yield from filter(None, warnings)
    yield from (*material.notes, *models.notes, *writing_notes(models))
    yield from () if checkpoint is None else checkpoint.passed_over


def _lesson(run: Run, log: _Log, recipe: Recipe, material: Material, models: Models) -> Lesson:
    """What the route learns from."""
    targets = material.targets
    if recipe.answers_written:
        write_answers(run, log.write, recipe, material, models)
        targets = written_targets(run.read_answers(TEACHER_ANSWERS), material, recipe)
    teacher = None if models.teacher is None or not recipe.scores else LocalTeacher(models.teacher)
    return Lesson(material.train.prompts, teacher, targets, material.own)


def _evaluate(
    run: Run, log: _Log, recipe: Recipe, material: Material, state: TrainState, lesson: Lesson, held_out: HeldOut
) -> None:
    """Measure the objective on the fixed text and on text that the student writes now."""
    log.write("phase", phase="evaluating")
    rows, fields = evaluate(
        state,
        lesson.teacher,
        held_out,
        objective_of(recipe) if recipe.scores else None,
        recipe,
        answer_limit=material.answer_limit,
        sampling=sampling_of(recipe),
    )
    run.write_answers(f"held-out-step-{state.step:06d}", rows)
    log.write("evaluation", **fields)
    if lesson.teacher is not None:
        answers = [Completion(tuple(row["ids"]), (), bool(row["cut_off"])) for row in rows]
        _mark(run, log, recipe, state, lesson.teacher, (held_out.prompts, answers))


def _mark(
    run: Run,
    log: _Log,
    recipe: Recipe,
    state: TrainState,
    teacher: Teacher,
    held_out: tuple[Sequence[Prompt], Sequence[Completion]],
) -> None:
    """Keep what both models say at every token of a few answers."""
    log.write("phase", phase="marking")
    started, objective = time.perf_counter(), objective_of(recipe)
    marked = mark_step(state, teacher, held_out, objective, recipe.micro_batch_tokens)
    sheet = MarkSheet(f"run:{run.name}@{state.step}", str(recipe.teacher), state.step, nearest_beta(objective), marked)
    write_marks(run.path / "marks" / marks_name(state.step), sheet)
    num_tokens, seconds = sum(len(answer) for answer in marked), time.perf_counter() - started
    log.write("marks", step=state.step, answers=len(marked), num_tokens=num_tokens, seconds=seconds)


# ------------------------------------------------------------------------------------------------------ what is logged


def _step_fields(record: StepRecord, models: Models, machine: Machine) -> dict[str, object]:
    """The record, with its worst tokens readable, and the throughput of each phase."""
    num_read = record.num_prompt_tokens + record.num_completion_tokens
    return {
        **asdict(record),
        "worst_tokens": [
            {**asdict(worst), "text": models.student.text([worst.token])} for worst in record.worst_tokens
        ],
        "step_s": (record.write_s or 0.0) + (record.score_s or 0.0) + record.update_s,
        "writing_tokens_per_s": None if record.write_us_per_token is None else 1e6 / record.write_us_per_token,
        "reading_tokens_per_s": None if record.score_s is None else num_read / record.score_s,
        "updating_tokens_per_s": num_read / record.update_s,
        "memory_bytes": peak_memory_bytes(machine.device),
    }


# -------------------------------------------------------------------------------------------------------------- signals


@contextmanager
def _stop_signals(log: _Log) -> Generator[Callable[[], bool]]:
    """The first Ctrl-C or SIGTERM asks for a stop after the step; the second one interrupts at once."""
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # only the main thread may take signals
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        log.listen({"kind": "note", "text": "Stopping after this step; once more interrupts at once and loses it."})

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
