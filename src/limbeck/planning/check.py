"""Everything about a recipe that can be known before its first step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from limbeck.data.templates import Template
from limbeck.errors import Refusal
from limbeck.machine import Machine, use_machine
from limbeck.planning.certificate import Finding, certify
from limbeck.planning.memory import MemoryPlan, plan_for, refuse_if_too_large
from limbeck.recipe.recipe import Recipe
from limbeck.rollouts.probe import GenerationMethod
from limbeck.routes.off_policy import describe_objective, objective_of
from limbeck.training.material import Material, prepare_material
from limbeck.training.setup import load_models, make_engine

__all__ = ["CheckReport", "check_recipe", "plan_recipe", "refuse_failed_certificate"]

# Below this speed of bfloat16, as a share of float32's, a recipe that asks for it is told so.
PLAINLY_SLOWER = 0.8


@dataclass(frozen=True)
class CheckReport:
    """What `limbeck check` shows. `writing` is empty where no weight was read, `findings` where no teacher scores."""

    recipe: Recipe
    objective: str
    machine: Machine
    material: Material
    memory: MemoryPlan
    writing: dict[str, GenerationMethod | None]
    findings: tuple[Finding, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know of machine and material before the first step."""
        return (*_slower_formats(self.recipe, self.machine), *self.material.notes)


def _slower_formats(recipe: Recipe, machine: Machine) -> list[str]:
    """That a recipe asks for bfloat16 where this machine is slower in it than in float32."""
    if machine.bf16_speed is None or machine.bf16_speed > PLAINLY_SLOWER:
        return []
    settings = {"precision": "bf16-mixed", "teacher_dtype": "bfloat16"}
    asked = [f"{name}: {value}" for name, value in settings.items() if getattr(recipe, name) == value]
    if not asked:
        return []
    return [
        f"WARNING: on this machine a product in bfloat16 takes {1 / machine.bf16_speed:.2g} times as long as in "
        f"float32, and the recipe says {' and '.join(asked)}. It saves memory, not time; float32 or auto is faster."
    ]


def plan_recipe(
    recipe: Recipe, recorded: Mapping[str, Any] | None = None, template: Template | None = None
) -> CheckReport:
    """Prompts, pair and memory, without reading a weight.

    Args:
        recorded: what a run that goes on wrote at its first start, and keeps.
        template: in place of the one that the recipe names, which may not be there yet.

    Raises:
        LimbeckError: the first thing that stands in the way.
    """
    objective = describe_objective(recipe)
    kept = recorded or {"machine": {}, "template": {}}
    machine = use_machine(recipe.device, kept["machine"].get("matmul_precision"))
    recipe = recipe.for_machine(bf16=machine.bf16)
    material = prepare_material(recipe, template, kept["template"].get("read_at"))
    memory = plan_for(material, recipe, machine)
    return CheckReport(recipe, objective, machine, material, memory, {}, ())


def check_recipe(recipe: Recipe) -> CheckReport:
    """`plan_recipe`, then the weights and the objective certificate on them.

    Raises:
        LimbeckError: as `plan_recipe`; or the pair does not fit into memory.
    """
    plan = plan_recipe(recipe)
    recipe = plan.recipe
    refuse_if_too_large(plan.memory)
    models = load_models(plan.material, recipe, plan.machine)
    writing = {"student": models.student_generation, "teacher": models.teacher_generation}
    if models.teacher is None or not recipe.scores:
        return replace(plan, writing=writing)
    findings = certify(
        models.student,
        models.teacher,
        make_engine(models.student, models.student_generation, plan.material.dialogue, recipe),
        plan.material.train.prompts,
        objective_of(recipe),
        chunk_tokens=recipe.chunk_tokens,
    )
    return replace(plan, writing=writing, findings=tuple(findings))


def refuse_failed_certificate(report: CheckReport) -> None:
    """Raise if a line of the certificate failed.

    Raises:
        Refusal: with every line that failed.
    """
    failed = [finding for finding in report.findings if not finding.passed]
    if failed:
        lines = "; ".join(f"{finding.name} is {finding.value:.3g}, must be {finding.limit}" for finding in failed)
        raise Refusal(
            "check.certificate",
            given=f"The objective certificate failed on this pair: {lines}.",
            needed="A run would minimise something else than the objective it names.",
            fix="Report it with the names of both models.",
        )
