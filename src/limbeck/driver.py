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

import torch

from limbeck.data.chat import Prompt
from limbeck.errors import LimbeckError, Stopped
from limbeck.evaluation.answers import answer_prompts, text_of
from limbeck.evaluation.held_out import TextMeasure, measure_text
from limbeck.machine import Machine, peak_memory_bytes, use_machine
from limbeck.models.save import save_model, weights_hash
from limbeck.planning.guards import alerts_of
from limbeck.planning.memory import plan_for, refuse_if_too_large
from limbeck.recipe.files import LoadedRecipe, write_recipe
from limbeck.recipe.schema import Recipe
from limbeck.rollouts.engine import Engine
from limbeck.rollouts.request import Completion
from limbeck.rollouts.sampling import Purpose, Sampling
from limbeck.routes.on_policy import objective_of, sampling_of, train
from limbeck.runs.lines import write_failed
from limbeck.runs.store import Run
from limbeck.teachers.local import LocalTeacher
from limbeck.training.checkpoint import save_checkpoint
from limbeck.training.setup import Material, Models, load_models, make_engine, make_state, prepare_material
from limbeck.training.state import StepRecord, TrainState

__all__ = ["train_run"]

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
    objective_of(recipe)  # refuses what it cannot be
    machine = use_machine(recipe.device)
    material = prepare_material(recipe)
    pair = (material.student_ref, material.teacher_ref)
    refuse_if_too_large(plan_for(*pair, recipe, machine, longest_prompt=material.longest_prompt))
    with Run.create(Path(recipe.workspace), recipe.name) as run:
        log = _Log(run, listen)
        try:
            _drive(run, log, recipe, material, machine, watch)
        except Stopped as stopped:
            log.write("stopped", text=str(stopped), code=stopped.code)
            raise
        except KeyboardInterrupt:
            log.write("stopped", text="Interrupted at once, within a step.", code="run.interrupted")
            raise
        except torch.OutOfMemoryError as error:
            stopped = _out_of_memory(error)
            log.write("stopped", text=str(stopped), code=stopped.code)
            raise stopped from error
        except OSError as error:
            stopped = write_failed(run.path, error)
            log.write("stopped", text=str(stopped), code=stopped.code)
            raise stopped from error
        except LimbeckError as error:
            log.write("failed", text=str(error), code=error.code)
            raise
        except BaseException as error:
            log.write("failed", text=f"{type(error).__name__}: {error}", code="unexpected")
            raise
    return run


@dataclass(frozen=True)
class _Log:
    run: Run
    listen: Listener

    def write(self, kind: str, **fields: object) -> None:
        event = {"kind": kind, **fields}
        self.run.append_event(event)
        self.listen(event)


def _drive(
    run: Run, log: _Log, recipe: Recipe, material: Material, machine: Machine, watch: Callable[[str], None]
) -> None:
    """The run from its first event to its last."""
    log.write("phase", phase="loading models")
    models = load_models(material, recipe, machine)
    provenance = _provenance(material, models, machine)
    write_recipe(run.recipe_path, recipe, header=json.dumps(provenance, indent=1))
    _store_prompts(run, material)
    objective = objective_of(recipe)
    log.write("start", run=run.name, steps=recipe.steps, objective=objective.describe(), **provenance)
    for note in (*material.notes, *_writing_notes(models)):
        log.write("note", text=note)
    state = make_state(models, material, recipe, watch)
    teacher = LocalTeacher(models.teacher)
    held_out = _held_out(run, log, recipe, material, models)
    history: list[StepRecord] = []
    with _stop_signals(log) as stop_asked:
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


def _stopped(run: Run, step: int, steps: int) -> Stopped:
    return Stopped(
        "run.stopped",
        given=f"The run was asked to stop and did after step {step} of {steps}.",
        needed="Nothing is lost: the student and the optimizer of that step are saved.",
        fix=f"They lie in {run.checkpoints_path}.",
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
    run.write_answers("held-out-teacher", _answer_rows(engine, prompts, answers))
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
    return {
        "student": {"name": models.student.name, "weights": weights_hash(models.student.module)},
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


def _writing_notes(models: Models) -> Iterator[str]:
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
