"""What identifies a run besides its recipe: contents, not names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

from limbeck.data.chat import prompts_hash
from limbeck.machine import Machine
from limbeck.models.adapters import adapter_facts
from limbeck.models.save import weights_hash
from limbeck.recipe.schema import Recipe
from limbeck.runs.evaluations import worth_record
from limbeck.runs.lineage import content_of
from limbeck.runs.store import Run
from limbeck.training.material import Material
from limbeck.training.setup import Models

__all__ = ["provenance_of", "run_notes", "store_prompts"]


def provenance_of(recipe: Recipe, material: Material, models: Models, machine: Machine) -> dict[str, object]:
    """What identifies the run besides its recipe: contents, not names."""
    facts, teacher = adapter_facts(models.student), _teacher_of(recipe, material, models)
    teacher_dtype = None if models.teacher is None else str(models.teacher.dtype).removeprefix("torch.")
    student = {"name": models.student.name, "weights": models.student_content}
    held_out = prompts_hash(material.held_out.prompts)
    worth = teacher and worth_record(
        Path(recipe.workspace), held_out, {**student, "dtype": "float32"}, {**teacher, "dtype": teacher_dtype}
    )
    return {
        "route": recipe.route,
        "parents": _parents(recipe, material),
        "student": student,
        "lora": None if facts is None else asdict(facts),
        "teacher": teacher,
        "worth": worth,
        "own_answers": material.own_sha256,
        "prompts": {
            "sha256": material.rows.sha256,
            "ids": _ids_hash(material),
            "train": len(material.train.prompts),
            "held_out": len(material.held_out.prompts),
        },
        "template": {"origin": material.template.origin, "sha256": material.template.sha256},
        "vocabulary": material.vocabulary.num_shared,
        "stop_ids": list(material.stop.ids),
        "pad_id": material.pad_id,
        "writing": {
            "student": asdict(models.student_writing),
            "teacher": models.teacher_writing and asdict(models.teacher_writing),
        },
        "teacher_dtype": teacher_dtype,
        "machine": asdict(machine),
    }


def _ids_hash(material: Material) -> str:
    """Of every prompt as the models see it: another tokenizer under the same name shows here, as other rows do."""
    prompts = (*material.train.prompts, *material.held_out.prompts)
    return sha256("\n".join(prompt.content_hash for prompt in prompts).encode("ascii")).hexdigest()


def run_notes(provenance: Mapping[str, Any], models: Models) -> Iterator[str]:
    """What trains, who writes slowly, and what is known of whether the run is worth it."""
    if (facts := adapter_facts(models.student)) is not None:
        yield facts.describe()
    if rates := _dropout_rates(models):
        name = models.student.name
        yield f"{name} is configured with {rates}. None is used: the student that trains is the one that wrote."
    for model, writing in ((models.student, models.student_writing), (models.teacher, models.teacher_writing)):
        if model is not None and writing is not None and writing.way == "generate":
            yield f"{model.name} is written by transformers' generate, which is slower: {writing.reason}."
    if provenance["worth"] is not None:
        yield f"{provenance['worth']['evaluation']} said: {provenance['worth']['text']}"
    elif provenance["teacher"] is not None:
        yield "Nobody has asked whether this is worth it: limbeck worth RECIPE compares this teacher and this student."


def _teacher_of(recipe: Recipe, material: Material, models: Models) -> dict[str, str | None] | None:
    ref = material.teacher_ref
    if ref is None:
        return None
    name = f"{ref.text} at {recipe.hosted.alias or recipe.hosted.base_url}" if ref.kind == "hosted" else ref.text
    return {"name": name, "weights": None if models.teacher is None else weights_hash(models.teacher.module)}


def _parents(recipe: Recipe, material: Material) -> list[dict[str, object]]:
    """The runs that this one starts or learns from, by content."""
    found: list[dict[str, object]] = []
    for role, ref in (("student", material.student_ref), ("teacher", material.teacher_ref)):
        if ref is not None and ref.kind == "run":
            name = ref.text.removeprefix("run:").strip().partition("@")[0]
            weights = content_of(Run.named(Path(recipe.workspace), name), ref.step)
            found.append({"role": role, "run": name, "step": ref.step, "weights": weights})
    return found


def _dropout_rates(models: Models) -> str:
    """The student's rates of dropout above 0, those of heads that it does not have left out."""
    settings = models.student.module.config.get_text_config().to_dict()
    names = [name for name in sorted(settings) if name.endswith(("dropout", "pdrop"))]
    names = [name for name in names if not name.startswith(("summary", "classifier")) and settings[name]]
    return ", ".join(f"{name} {settings[name]}" for name in names)


def store_prompts(run: Run, material: Material) -> None:
    """Store every prompt as the ids that the models see, so that nothing ever renders or tokenises it again."""
    for name, rendered in (("prompts-train", material.train), ("prompts-held-out", material.held_out)):
        rows = [
            {
                "source": prompt.source,
                "prompt_hash": prompt.content_hash,
                "occurrence": prompt.occurrence,
                "prompt": prompt.text,
                "ids": list(prompt.ids),
            }
            for prompt in rendered.prompts
        ]
        run.write_answers(name, rows)
