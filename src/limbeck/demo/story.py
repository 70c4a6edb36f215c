"""The demo: a pair that ships in the package, measured, distilled on-policy, measured again. No network."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from limbeck.data.chat import Prompt
from limbeck.demo.task import grade, write_prompts
from limbeck.driver import train_run
from limbeck.evaluation.answers import answer_prompts, text_of
from limbeck.evaluation.statistics import Interval, gap_recovered, share
from limbeck.machine import use_machine
from limbeck.models.load import load_model
from limbeck.models.refs import parse_ref
from limbeck.recipe.files import load_recipe
from limbeck.recipe.schema import Recipe
from limbeck.rollouts.engine import Engine
from limbeck.training.material import Material, prepare_material

__all__ = ["DemoResult", "Model", "measure", "run_demo"]

FOLDER = Path(__file__).parent
NUM_TRAIN = 4000
NUM_HELD_OUT = 300
NUM_SHOWN = 3
MAX_ANSWER_TOKENS = 96

Listener = Callable[[Mapping[str, object]], None]


@dataclass(frozen=True)
class Model:
    """A model's answers to the held-out prompts and the share that is exactly right."""

    answers: tuple[str, ...]
    right: tuple[bool, ...]
    exact: Interval


@dataclass(frozen=True)
class DemoResult:
    """Student, teacher and distilled student on the same prompts, in the same order."""

    prompts: tuple[str, ...]
    expected: tuple[str, ...]
    student: Model
    teacher: Model
    distilled: Model
    gap_recovered: Interval | None
    run: Path
    seconds: float


def run_demo(
    workspace: Path,
    *,
    seed: int = 0,
    listen: Listener = lambda event: None,
    watch: Callable[[str], None] = lambda phase: None,
) -> DemoResult:
    """Measure the pair, distil it on-policy, measure the distilled student on the same held-out prompts.

    Args:
        workspace: the run goes into its `runs` folder, the prompts into its `demo` folder.
        seed: of the run; the models and prompts are always the same.
        listen: called with the run's events and with `demo` events of its own.
        watch: called with the phase within a step whenever it changes.
    """
    started = time.monotonic()
    recipe_path = _write_material(workspace)
    overrides = [f"seed={seed}", f"workspace={workspace.resolve()}"]
    loaded = load_recipe(recipe_path, overrides, os.environ)
    material = prepare_material(loaded.recipe)
    prompts = material.held_out.prompts
    student = measure(loaded.recipe.student, material, loaded.recipe)
    listen({"kind": "demo", "model": "student", **asdict(student.exact)})
    assert loaded.recipe.teacher is not None, "the demo's recipe has one"
    teacher = measure(loaded.recipe.teacher, material, loaded.recipe)
    listen({"kind": "demo", "model": "teacher", **asdict(teacher.exact)})
    run = train_run(loaded, listen, watch)
    distilled = measure(str(run.model_path), material, loaded.recipe)
    listen({"kind": "demo", "model": "distilled", **asdict(distilled.exact)})
    recovered = gap_recovered(student.right, teacher.right, distilled.right)
    result = DemoResult(
        prompts=tuple(prompt.messages[-1].content for prompt in prompts),
        expected=tuple(prompt.reference or "" for prompt in prompts),
        student=student,
        teacher=teacher,
        distilled=distilled,
        gap_recovered=recovered,
        run=run.path,
        seconds=time.monotonic() - started,
    )
    listen(_last_event(result))
    return result


def _last_event(result: DemoResult) -> dict[str, object]:
    return {
        "kind": "result",
        "student": asdict(result.student.exact),
        "teacher": asdict(result.teacher.exact),
        "distilled": asdict(result.distilled.exact),
        "gap_recovered": None if result.gap_recovered is None else asdict(result.gap_recovered),
        "run": str(result.run),
        "seconds": result.seconds,
    }


def examples_to_show(result: DemoResult) -> list[int]:
    """Held-out prompts that tell the story: first those that the distilled student learnt, then any others."""
    order = sorted(
        range(len(result.prompts)),
        key=lambda row: (not (result.distilled.right[row] and not result.student.right[row]), row),
    )
    return order[:NUM_SHOWN]


def _write_material(workspace: Path) -> Path:
    """The demo's prompts and recipe as files that a user can look at, change and run again."""
    folder = workspace / "demo"
    folder.mkdir(parents=True, exist_ok=True)
    write_prompts(folder / "prompts.jsonl", NUM_TRAIN, seed=1)
    write_prompts(folder / "held-out.jsonl", NUM_HELD_OUT, seed=2, side="held-out")
    text = (FOLDER / "recipe.yaml").read_text(encoding="utf-8")
    path = folder / "recipe.yaml"
    path.write_text(text.replace("{demo}", str(FOLDER).replace("'", "''")), encoding="utf-8")
    return path


def measure(name: str, material: Material, recipe: Recipe) -> Model:
    """Greedy answers to all held-out prompts, graded exactly."""
    machine = use_machine(recipe.device)
    ref = parse_ref(name, workspace=Path(recipe.workspace))
    model = load_model(ref, trainable=False, dtype=torch.float32, device=torch.device(machine.device))
    engine = Engine(
        model.with_vocabulary(material.vocabulary.num_shared),
        stop_ids=material.stop.ids,
        pad_id=material.pad_id,
        num_slots=2 * recipe.slots,
    )
    answers = _texts(engine, material.held_out.prompts)
    right = tuple(
        grade(answer, prompt.reference or "") for answer, prompt in zip(answers, material.held_out.prompts, strict=True)
    )
    return Model(answers=tuple(answers), right=right, exact=share(right))


def _texts(engine: Engine, prompts: Sequence[Prompt]) -> list[str]:
    completions = answer_prompts(engine, prompts, max_new_tokens=MAX_ANSWER_TOKENS)
    return [text_of(engine, completion) for completion in completions]
