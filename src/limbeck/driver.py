"""Runs a route into a run folder: log, evaluate, checkpoint, save, stop.

The route computes and yields one record per step; everything else that happens during a run happens here, between two
records. A run that ends for any reason says so in its last event: done, failed or stopped.
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from limbeck.data.chat import Prompt
from limbeck.errors import LimbeckError, Refusal, Stopped
from limbeck.evaluation.answers import answer_prompts, text_of
from limbeck.evaluation.held_out import TextMeasure, measure_text
from limbeck.machine import Machine, peak_memory_bytes
from limbeck.models.adapters import adapter_facts, base_hash, merge_adapters, save_adapters
from limbeck.models.save import save_model, weights_hash
from limbeck.planning.check import plan_recipe
from limbeck.planning.guards import alerts_of
from limbeck.planning.memory import refuse_if_too_large
from limbeck.recipe.files import LoadedRecipe, load_recipe, write_recipe
from limbeck.recipe.schema import Recipe
from limbeck.rollouts.engine import Engine
from limbeck.rollouts.request import Completion
from limbeck.rollouts.sampling import Purpose, Sampling
from limbeck.routes.on_policy import objective_of, sampling_of, train
from limbeck.runs.lines import write_failed
from limbeck.runs.store import Run
from limbeck.teachers.local import LocalTeacher
from limbeck.training.checkpoint import Checkpoint, latest_checkpoint, load_checkpoint, save_checkpoint
from limbeck.training.setup import Material, Models, load_models, make_engine, make_state
from limbeck.training.state import StepRecord, TrainState

__all__ = ["resume_run", "train_run"]

HELD_OUT_TEACHER = "held-out-teacher"

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
    machine, material = _prepare(recipe)
    with run, _ending(_Log(run, listen)) as log:
        _drive(run, log, recipe, material, machine, watch, checkpoint)
    return run


def _prepare(recipe: Recipe) -> tuple[Machine, Material]:
    """Whatever can be refused before a run folder exists or a weight is read."""
    plan = plan_recipe(recipe)
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
    models = load_models(material, recipe, machine)
    provenance = _provenance(material, models, machine)
    state = make_state(models, material, recipe, watch)
    if checkpoint is None:
        write_recipe(run.recipe_path, recipe, header=json.dumps(provenance, indent=1))
        _store_prompts(run, material)
    else:
        _refuse_changed(run, provenance)
        load_checkpoint(checkpoint, state)
    about = {"run": run.name, "step": state.step, "steps": recipe.steps, "objective": objective_of(recipe).describe()}
    log.write("start", **about, **provenance)
    passed_over = () if checkpoint is None else checkpoint.passed_over
    for note in (*material.notes, *_model_notes(models), *passed_over):
        log.write("note", text=note)
    teacher = LocalTeacher(models.teacher)
    held_out = _held_out(run, log, recipe, material, models)
    history: list[StepRecord] = []
    with _stop_signals(log) as stop_asked:
        if checkpoint is None:
            _evaluate(run, log, recipe, state, teacher, held_out)
        for record in train(state, teacher, material.train.prompts, recipe):
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
                _evaluate(run, log, recipe, state, teacher, held_out)
        log.write("phase", phase="saving the model")
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
    first = next(event for event in run.read_events() if event["kind"] == "start")
    names = ("student", "lora", "teacher", "prompts", "template", "vocabulary", "stop_ids", "pad_id")
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


def _stopped(run: Run, step: int, steps: int) -> Stopped:
    return Stopped(
        "run.stopped",
        given=f"The run was asked to stop and did after step {step} of {steps}.",
        needed="Nothing is lost: the student and the optimizer of that step are saved.",
        fix=f"limbeck resume {run.path} goes on from there.",
    )


# ---------------------------------------------------------------------------------------------------- held-out prompts


@dataclass(frozen=True)
class _HeldOut:
    """The prompts of every evaluation and what the teacher wrote to them before training."""

    prompts: tuple[Prompt, ...]
    teacher_answers: tuple[Completion, ...]


def _held_out(run: Run, log: _Log, recipe: Recipe, material: Material, models: Models) -> _HeldOut:
    """Choose the evaluation's prompts, the same for every run on this file, and let the teacher answer them once."""
    by_content = sorted(material.held_out.prompts, key=lambda prompt: (prompt.content_hash, prompt.occurrence))
    prompts = tuple(by_content[: recipe.held_out_sample])
    if HELD_OUT_TEACHER in run.answer_sets():  # a continued run keeps the text that it measured so far
        rows: dict[object, dict[str, Any]] = {row["prompt_hash"]: row for row in run.read_answers(HELD_OUT_TEACHER)}
        stored = [rows[prompt.content_hash] for prompt in prompts]
        return _HeldOut(prompts, tuple(Completion(tuple(row["ids"]), (), bool(row["cut_off"])) for row in stored))
    log.write("phase", phase="teacher answers held-out prompts")
    engine = make_engine(models.teacher, models.teacher_writing, material, recipe)
    answers = answer_prompts(
        engine,
        prompts,
        max_new_tokens=recipe.max_practice_tokens,
        sampling=Sampling(),
        purpose=Purpose.TEACHER,
        seed=recipe.seed,
    )
    run.write_answers(HELD_OUT_TEACHER, _answer_rows(engine, prompts, answers))
    return _HeldOut(prompts, tuple(answers))


def _evaluate(
    run: Run, log: _Log, recipe: Recipe, state: TrainState, teacher: LocalTeacher, held_out: _HeldOut
) -> None:
    """Measure the divergence on the teacher's fixed text and on text that the student writes now."""
    log.write("phase", phase="evaluating")
    fresh = answer_prompts(
        state.engine,
        held_out.prompts,
        max_new_tokens=recipe.max_practice_tokens,
        sampling=sampling_of(recipe),
        seed=recipe.seed,
    )

    def measure(answers: Sequence[Completion]) -> TextMeasure:
        return measure_text(
            state.student,
            teacher,
            held_out.prompts,
            answers,
            objective_of(recipe),
            max_tokens=recipe.micro_batch_tokens,
            pad_id=state.engine.pad_id,
            chunk_tokens=recipe.chunk_tokens,
        )

    run.write_answers(f"held-out-step-{state.step:06d}", _answer_rows(state.engine, held_out.prompts, fresh))
    on_teacher_text, on_student_text = measure(held_out.teacher_answers), measure(fresh)
    log.write(
        "evaluation",
        step=state.step,
        teacher_text_loss=on_teacher_text.divergence.estimate,
        student_text_loss=on_student_text.divergence.estimate,
        fixed_teacher_text=asdict(on_teacher_text),
        fresh_student_text=asdict(on_student_text),
    )


def _answer_rows(engine: Engine, prompts: Sequence[Prompt], answers: Sequence[Completion]) -> list[dict[str, object]]:
    return [
        {
            "source": prompt.source,
            "prompt_hash": prompt.content_hash,
            "prompt": prompt.text,
            "answer": text_of(engine, answer),
            "ids": list(answer.ids),
            "cut_off": answer.cut_off,
        }
        for prompt, answer in zip(prompts, answers, strict=True)
    ]


# ------------------------------------------------------------------------------------------------------ what is logged


def _step_fields(record: StepRecord, models: Models, machine: Machine) -> dict[str, object]:
    """The record, with its worst tokens readable, and the throughput of each phase."""
    num_read = record.num_prompt_tokens + record.num_completion_tokens
    return {
        **asdict(record),
        "worst_tokens": [
            {**asdict(worst), "text": models.student.text([worst.token])} for worst in record.worst_tokens
        ],
        "step_s": record.write_s + record.score_s + record.update_s,
        "writing_tokens_per_s": record.num_completion_tokens / record.write_s,
        "reading_tokens_per_s": num_read / record.score_s,
        "updating_tokens_per_s": num_read / record.update_s,
        "memory_bytes": peak_memory_bytes(machine.device),
    }


def _provenance(material: Material, models: Models, machine: Machine) -> dict[str, object]:
    """What identifies the run besides its recipe: contents, not names."""
    facts = adapter_facts(models.student)
    return {
        "student": {"name": models.student.name, "weights": base_hash(models.student)},
        "lora": None if facts is None else asdict(facts),
        "teacher": {"name": models.teacher.name, "weights": weights_hash(models.teacher.module)},
        "prompts": {
            "sha256": material.rows.sha256,
            "train": len(material.train.prompts),
            "held_out": len(material.held_out.prompts),
        },
        "template": {"origin": material.template.origin, "sha256": material.template.sha256},
        "vocabulary": material.vocabulary.num_shared,
        "stop_ids": list(material.stop.ids),
        "pad_id": material.pad_id,
        "writing": {"student": asdict(models.student_writing), "teacher": asdict(models.teacher_writing)},
        "machine": asdict(machine),
    }


def _model_notes(models: Models) -> Iterator[str]:
    if (facts := adapter_facts(models.student)) is not None:
        yield facts.describe()
    for model, writing in ((models.student, models.student_writing), (models.teacher, models.teacher_writing)):
        if writing.plain:
            yield f"{model.name} is written by transformers' generate, which is slower: {writing.reason}."


def _store_prompts(run: Run, material: Material) -> None:
    """Store every prompt as the ids that the models see, so that nothing ever renders or tokenises it again."""
    for name, rendered in (("prompts-train", material.train), ("prompts-held-out", material.held_out)):
        run.write_answers(
            name,
            [
                {
                    "source": prompt.source,
                    "prompt_hash": prompt.content_hash,
                    "occurrence": prompt.occurrence,
                    "prompt": prompt.text,
                    "ids": list(prompt.ids),
                }
                for prompt in rendered.prompts
            ],
        )


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
