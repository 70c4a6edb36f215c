"""Everything about a recipe that can be checked before its first step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from limbeck.data.templates import Template
from limbeck.machine import Machine, use_machine
from limbeck.planning import messages
from limbeck.planning.memory import MemoryPlan, plan_for, refuse_if_too_large
from limbeck.planning.objective_check import Finding, certify
from limbeck.recipe.recipe import Recipe
from limbeck.rollouts.probe import GenerationMethod
from limbeck.routes.off_policy import describe_objective, objective_of
from limbeck.training.material import Material, prepare_material
from limbeck.training.setup import load_models, make_engine

__all__ = ["CheckReport", "check_recipe", "plan_recipe", "refuse_failed_objective_check"]

# Below this speed of bfloat16, as a share of float32's, a note warns about a recipe that uses it.
PLAINLY_SLOWER = 0.8


@dataclass(frozen=True)
class CheckReport:
    """What `limbeck check` shows. `writing` is empty if no weights were read, `findings` if no teacher scores."""

    recipe: Recipe
    objective: str
    machine: Machine
    material: Material
    memory: MemoryPlan
    writing: dict[str, GenerationMethod | None]
    findings: tuple[Finding, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on machine and data before the first step."""
        return (*_slower_formats(self.recipe, self.machine), *self.material.notes)


def _slower_formats(recipe: Recipe, machine: Machine) -> list[str]:
    """A warning if a recipe uses bfloat16 and this machine is slower in it than in float32."""
    if machine.bf16_speed is None or machine.bf16_speed > PLAINLY_SLOWER:
        return []
    settings = {"precision": "bf16-mixed", "teacher_dtype": "bfloat16"}
    chosen = [f"{name}: {value}" for name, value in settings.items() if getattr(recipe, name) == value]
    return [messages.bfloat16_slower(factor=1 / machine.bf16_speed, settings=chosen)] if chosen else []


def plan_recipe(
    recipe: Recipe, recorded: Mapping[str, Any] | None = None, template: Template | None = None
) -> CheckReport:
    """Prompts, models and memory, without reading any weights.

    Args:
        recorded: what a resumed run recorded at its first start, and keeps.
        template: used in place of the recipe's template, which may not exist yet.

    Raises:
        LimbeckError: the first problem found.
    """
    objective = describe_objective(recipe)
    kept = recorded or {"machine": {}, "template": {}}
    machine = use_machine(recipe.device, kept["machine"].get("matmul_precision"))
    recipe = recipe.for_machine(bf16=machine.bf16)
    material = prepare_material(recipe, template, kept["template"].get("read_at"))
    memory = plan_for(material, recipe, machine)
    return CheckReport(recipe, objective, machine, material, memory, {}, ())


def check_recipe(recipe: Recipe) -> CheckReport:
    """`plan_recipe`, then the weights and the objective check on them.

    Raises:
        LimbeckError: as `plan_recipe`; or the models do not fit into memory.
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


def refuse_failed_objective_check(report: CheckReport) -> None:
    """Raise if a line of the objective check failed.

    Raises:
        Refusal: with all lines that failed.
    """
    failed = [finding for finding in report.findings if not finding.passed]
    if failed:
        lines = [str(messages.failed_line(name=each.name, value=each.value, limit=each.limit)) for each in failed]
        raise messages.objective_check_failed(lines=lines)
