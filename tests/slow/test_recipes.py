"""The recipes for the demo's pair, run as they stand; what each file expects of itself is read from its comments."""

from __future__ import annotations

import operator
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from limbeck import api
from limbeck.embedded.task import follows_style, grade
from limbeck.evaluation.answering.answers import answer_prompts, text_of
from limbeck.evaluation.deciding.statistics import Interval, gap_recovered, share_interval
from limbeck.models.load import load_model
from limbeck.models.resolve import parse_ref
from limbeck.recipe.files import load_recipe
from limbeck.runs.store import list_runs
from limbeck.training.generation import engine_for
from limbeck.training.material import prepare_material

ROOT = Path(__file__).parent.parent.parent
RECIPES = ROOT / "recipes" / "demo"
sys.path.insert(0, str(ROOT / "scripts"))

import demo_prompts  # noqa: E402

pytestmark = pytest.mark.slow
HOLDS = {">=": operator.ge, "<=": operator.le}


@dataclass(frozen=True)
class Measured:
    """A model's answers to the held-out prompts and which are right, the team's own style aside."""

    answers: tuple[str, ...]
    right: tuple[bool, ...]
    exact: Interval


def measure(name, material, recipe):
    model = load_model(
        parse_ref(name, workspace=Path()), trainable=False, dtype=torch.float32, device=torch.device("cpu")
    )
    model = model.with_vocabulary(material.vocabulary.num_shared)
    engine = engine_for(model, material.dialogue, "slots", num_slots=2 * recipe.slots)
    prompts = material.held_out.prompts
    answers = [text_of(engine, done) for done in answer_prompts(engine, prompts, max_new_tokens=96)]
    right = tuple(grade(answer, prompt.reference or "") for answer, prompt in zip(answers, prompts, strict=True))
    return Measured(tuple(answers), right, share_interval(right))


@pytest.fixture(scope="module")
def pair():
    """The plain student, the teacher, and the prompts that all are judged by."""
    demo_prompts.write_all()
    recipe = load_recipe(RECIPES / "on_policy.yaml", [], {}).recipe
    material = prepare_material(recipe)
    models = {
        name: measure(str(ROOT / "src/limbeck/embedded" / name), material, recipe) for name in ("student", "teacher")
    }
    return material, recipe, models


def hold(name, measured):
    """What a recipe expects of itself; everything that it names has to be measured."""
    expected = re.findall(r"^# expect: (\w+) (>=|<=) ([\d.]+)$", (RECIPES / name).read_text(), re.MULTILINE)
    assert expected
    for figure, sign, bound in expected:
        print(f"{name}: {figure} {measured[figure]:.3f}, expected {sign} {bound}")
        assert HOLDS[sign](measured[figure], float(bound))


def judged(run, pair):
    material, recipe, models = pair
    after = measure(str(run.model_path), material, recipe)
    recovered = gap_recovered(models["student"].right, models["teacher"].right, after.right)
    assert recovered is not None
    print(f"{run.name}: {after.exact}, of the gap {recovered}")
    return {
        "gap_recovered": recovered.estimate,
        "exact": 100 * after.exact.estimate,
        "style": share_interval([follows_style(answer) for answer in after.answers]).estimate,
    }


@pytest.mark.parametrize("name", ["off_policy.yaml", "on_policy.yaml", "supervised.yaml"])
def test_each_route_keeps_its_promise(name, pair, tmp_path):
    run = api.train(RECIPES / name, overrides=[f"workspace={tmp_path}"])
    hold(name, judged(run, pair))


def test_what_fine_tuning_cost_is_brought_back_by_the_run_before_it(pair, tmp_path):
    material, recipe, _ = pair
    overrides = [f"workspace={tmp_path}"]
    api.train(RECIPES / "on_policy.yaml", overrides=[*overrides, "name=able"])
    last = api.train(RECIPES / "narrow.yaml", RECIPES / "recover.yaml", overrides=overrides)
    runs = {run.name: run for run in list_runs(tmp_path)}
    (narrow,) = runs.keys() - {"able", last.name}
    able, lost, back = (measure(str(runs[name].model_path), material, recipe) for name in ("able", narrow, last.name))
    print(able.exact, lost.exact, back.exact)
    hold("narrow.yaml", {"points_lost": 100 * (able.exact.estimate - lost.exact.estimate)})
    recovered = gap_recovered(lost.right, able.right, back.right)
    assert recovered is not None
    hold("recover.yaml", {"recovered": recovered.estimate})
    notes = [str(event["text"]) for event in last.read_events() if event["kind"] == "note"]
    assert not any("different teachers" in text for text in notes)


def test_three_stages_in_one_command(pair, tmp_path):
    names = ["chain_1_warm_up.yaml", "chain_2_on_policy.yaml", "chain_3_style.yaml"]
    last = api.train(*(RECIPES / name for name in names), overrides=[f"workspace={tmp_path}"])
    warm, practised = (run for run in reversed(list_runs(tmp_path)) if run.name != last.name)
    before, after = judged(practised, pair), judged(last, pair)
    hold(names[1], before)
    hold(names[2], {**after, "points_lost": before["exact"] - after["exact"]})
    assert warm.status().state == "done"
