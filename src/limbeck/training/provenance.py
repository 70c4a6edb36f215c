"""What identifies a run besides its recipe, by content and not by name; and whether a resumed run is still the same."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

import limbeck.training.messages as messages
from limbeck.data.chat import prompts_hash
from limbeck.data.prompt import Message, content_hash
from limbeck.machine import Machine
from limbeck.models.adapters import adapter_facts
from limbeck.models.save import weights_hash
from limbeck.recipe.recipe import Recipe
from limbeck.runs.evaluations import worth_record
from limbeck.runs.lineage import content_of
from limbeck.runs.store import Run
from limbeck.training.inputs import own_file
from limbeck.training.material import Material
from limbeck.training.setup import Models

__all__ = [
    "changed_settings",
    "first_start",
    "provenance_of",
    "refuse_changed_inputs",
    "startup_notes",
    "store_prompts",
]

# Settings that a resumed run may change: they affect how long, how fast and on what hardware it runs. Files are
# compared by content.
CHANGEABLE = {
    *("workspace", "device", "slots", "micro_batch_tokens", "chunk_tokens", "activation_checkpointing"),
    *("steps", "learning_rate", "warmup_steps", "decay_share", "weight_decay", "max_grad_norm"),
    *("evaluate_every", "keep", "hosted", "prompts", "template", "own_answers.file"),
}
# What must not change.
IDENTITY = (
    *("student", "lora", "teacher", "prompts", "own_answers", "teacher_examples", "template", "vocabulary"),
    *("stop_ids", "pad_id"),
)


def provenance_of(recipe: Recipe, material: Material, models: Models, machine: Machine) -> dict[str, object]:
    """What identifies the run besides its recipe, by content."""
    facts, teacher = adapter_facts(models.student), _teacher_of(recipe, material, models)
    teacher_dtype = None if models.teacher is None else str(models.teacher.dtype).removeprefix("torch.")
    student = {"name": models.student.name, "weights": models.student_content}
    held_out = prompts_hash(material.held_out.prompts)
    shown = [turn for row in material.examples for turn in (*row.messages, Message("assistant", row.reference or ""))]
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
            "skipped": material.num_skipped,
        },
        "teacher_examples": content_hash(shown) if shown else None,
        "template": {
            "origin": material.dialogue.template.origin,
            "sha256": material.dialogue.template.sha256,
            "read_at": material.dialogue.template.read_at,
        },
        "vocabulary": material.vocabulary.num_shared,
        "stop_ids": list(material.dialogue.stop.ids),
        "pad_id": material.dialogue.pad_id,
        "writing": {
            "student": models.student_generation.record(),
            "teacher": models.teacher_generation and models.teacher_generation.record(),
        },
        "teacher_dtype": teacher_dtype,
        "machine": asdict(machine),
    }


def _ids_hash(material: Material) -> str:
    """A hash of all prompts as token ids: it changes with the rows, and with a tokenizer of the same name."""
    prompts = (*material.train.prompts, *material.held_out.prompts)
    return sha256("\n".join(prompt.content_hash for prompt in prompts).encode("ascii")).hexdigest()


def startup_notes(provenance: Mapping[str, Any], models: Models) -> Iterator[str]:
    """Notes on adapters, dropout, slow generation and the baseline check."""
    if (facts := adapter_facts(models.student)) is not None:
        yield facts.describe()
    if rates := _dropout_rates(models):
        yield messages.dropout_not_used(model=models.student.name, rates=rates)
    for model, method in ((models.student, models.student_generation), (models.teacher, models.teacher_generation)):
        if model is not None and method is not None and method.decoder == "generate":
            yield messages.generates_slowly(model=model.name, why=method.reason)
    if provenance["worth"] is not None:
        worth = provenance["worth"]
        yield messages.baseline_check(evaluation=worth["evaluation"], verdict=worth["text"])
    elif provenance["teacher"] is not None:
        yield messages.no_baseline_check()


def _teacher_of(recipe: Recipe, material: Material, models: Models) -> dict[str, str | None] | None:
    ref = material.teacher_ref
    if ref is None:
        return None
    name = f"{ref.text} at {recipe.hosted.alias or recipe.hosted.base_url}" if ref.kind == "hosted" else ref.text
    return {"name": name, "weights": None if models.teacher is None else weights_hash(models.teacher.module)}


def _parents(recipe: Recipe, material: Material) -> list[dict[str, object]]:
    """The runs whose models are this run's student or teacher, by content."""
    found: list[dict[str, object]] = []
    for role, ref in (("student", material.student_ref), ("teacher", material.teacher_ref)):
        if ref is not None and ref.kind == "run":
            name = ref.text.removeprefix("run:").strip().partition("@")[0]
            weights = content_of(Run.named(Path(recipe.workspace), name), ref.step)
            found.append({"role": role, "run": name, "step": ref.step, "weights": weights})
    return found


def _dropout_rates(models: Models) -> list[str]:
    """The student's dropout rates above 0, without those of heads that it does not have."""
    settings = models.student.module.config.get_text_config().to_dict()
    names = [name for name in sorted(settings) if name.endswith(("dropout", "pdrop"))]
    names = [name for name in names if not name.startswith(("summary", "classifier")) and settings[name]]
    return [f"{name} {settings[name]}" for name in names]


def store_prompts(run: Run, material: Material) -> None:
    """Store every prompt as token ids, so that it is never rendered or tokenised again."""
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


def first_start(run: Run) -> Mapping[str, Any]:
    """The `start` event of the run's first session: its settings, and what it found out about models and machine."""
    return next(event for event in run.read_events() if event["kind"] == "start")


def refuse_changed_inputs(run: Run, provenance: Mapping[str, object]) -> None:
    """Raise Refusal if prompts, template, vocabulary, stop tokens or models have changed since the run began."""
    first = first_start(run)
    now = json.loads(json.dumps({name: provenance[name] for name in IDENTITY}))
    changed = [name for name in IDENTITY if name in first and not _agree(first[name], now[name], run)]
    if changed:
        changes: list[str] = [
            messages.change(name=name, before=str(first[name]), now=str(now[name])) for name in changed
        ]
        raise messages.inputs_changed(run=run.name, names=changed, changes=changes)


def _agree(recorded: object, now: object, run: Run) -> bool:
    """Whether everything recorded still holds; an older version may have recorded less."""
    if isinstance(recorded, dict) and isinstance(now, dict):
        return all(own_file(now.get(name), run) == own_file(value, run) for name, value in recorded.items())
    return recorded == now


def changed_settings(run: Run, recipe: Recipe, step: int) -> list[str]:
    """Notes on settings that have changed since the run's last session, and are applied from now on.

    Raises:
        Refusal: one of them defines what is trained, or the run is beyond its new last step.
    """
    events: list[dict[str, Any]] = run.read_events()
    starts = [event for event in events if event["kind"] == "start" and "settings" in event]
    if not starts:
        return [messages.settings_unknown()]
    both = (starts[-1]["settings"], json.loads(json.dumps(recipe.settings())))
    before, now = ({name: own_file(value, run) for name, value in _flat(each).items()} for each in both)
    changed: dict[str, str] = {}
    for name in (*now, *(before.keys() - now.keys())):
        if before.get(name) != now.get(name):
            values = {"before": json.dumps(before.get(name)), "now": json.dumps(now.get(name))}
            changed[name] = messages.setting_change(name=name, **values)
    fixed = [change for name, change in changed.items() if not {name, name.partition(".")[0]} & CHANGEABLE]
    if fixed:
        raise messages.settings_changed(run=run.name, changes=fixed, step=step)
    if recipe.steps < step:
        raise messages.beyond_last_step(run=run.name, step=step, steps=recipe.steps)
    return [messages.setting_changed(change=change, step=step + 1) for change in changed.values()]


def _flat(settings: Mapping[str, Any]) -> dict[str, object]:
    """Settings by their dotted names."""
    found: dict[str, object] = {}
    for name, value in settings.items():
        parts = value if isinstance(value, dict) else {"": value}
        found |= {f"{name}.{part}".rstrip("."): each for part, each in parts.items()}
    return found
