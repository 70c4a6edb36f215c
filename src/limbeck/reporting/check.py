"""The terminal views of `limbeck check`, `limbeck train --dry-run` and `limbeck doctor`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from limbeck.console import Printer
from limbeck.reporting.figures import GIB, size_text
from limbeck.reporting.messages import terminal
from limbeck.reporting.messages.labels import CHECK, MACHINE, PHASES

if TYPE_CHECKING:  # views of stored runs do not import torch
    from limbeck.planning.check import CheckReport
    from limbeck.planning.memory import MemoryPlan

__all__ = ["check_as_json", "machine_rows", "show_check", "show_machine", "size_text"]

NUM_ROWS_SHOWN = 3


def show_check(printer: Printer, report: CheckReport, title: str | None = None) -> None:
    """Rendered prompts, both models, the memory plan, and the objective check if the models were loaded."""
    if title is not None:
        printer.rule(title)
    _show_prompts(printer, report)
    _show_pair(printer, report)
    _show_memory(printer, report.memory)
    printer.rule(CHECK["objective"])
    printer.say(report.objective)
    if report.findings:
        printer.table(
            [
                {
                    CHECK["check"]: finding.name,
                    CHECK["claim"]: finding.claim,
                    CHECK["measured"]: f"{finding.value:.2g}",
                    CHECK["limit"]: finding.limit,
                    CHECK["result"]: CHECK["passed" if finding.passed else "failed"],
                }
                for finding in report.findings
            ]
        )
    if report.notes:
        printer.rule(CHECK["notes"])
    for note in report.notes:
        printer.say(f"- {note}")


def check_as_json(report: CheckReport) -> dict[str, object]:
    """The content of `show_check` for a program: sizes in bytes, the first prompts as the student receives them."""
    material, plan = report.material, report.memory
    return {
        "kind": "check",
        "recipe": report.recipe.settings(),
        "objective": report.objective,
        "prompts": {
            "train": len(material.train.prompts),
            "held_out": len(material.held_out.prompts),
            "longest": material.longest_prompt,
            "first": [
                {"source": prompt.source, "tokens": len(prompt.ids), "text": prompt.text}
                for prompt in material.train.prompts[:NUM_ROWS_SHOWN]
            ],
        },
        "models": {"student": material.student_ref.text, "teacher": material.teacher_ref and material.teacher_ref.text},
        "stop_ids": list(material.dialogue.stop.ids),
        "memory": {
            "components": plan.components,
            "phases": plan.phases,
            "peak_phase": plan.peak_phase,
            "peak_bytes": plan.peak_bytes,
            "free_bytes": plan.free_bytes,
            "fits": plan.fits,
        },
        "notes": list(report.notes),
    }


def _show_prompts(printer: Printer, report: CheckReport) -> None:
    material = report.material
    prompts = material.train.prompts
    lengths = sorted(len(prompt.ids) for prompt in prompts)
    printer.rule(CHECK["prompts"])
    for prompt in prompts[:NUM_ROWS_SHOWN]:
        printer.say(terminal.check_prompt(source=prompt.source, num=len(prompt.ids)), style="bold")
        printer.say(prompt.text)
    shortest, median, longest = lengths[0], lengths[len(lengths) // 2], lengths[-1]
    held_out = len(material.held_out.prompts)
    printer.say(
        terminal.check_prompts(train=len(prompts), held_out=held_out, shortest=shortest, longest=longest, median=median)
    )
    injected = material.train.injected_system
    if injected is None:
        printer.say(terminal.check_system_none())
    else:
        printer.say(terminal.check_system_added(text=repr(injected)))


def _show_pair(printer: Printer, report: CheckReport) -> None:
    material, vocabulary, scores = report.material, report.material.vocabulary, report.recipe.scores
    tokens = material.dialogue.tokenizer.convert_ids_to_tokens(list(material.dialogue.stop.ids))
    student, teacher = (vocabulary.student_defined, vocabulary.student_rows), (None, None)
    if scores:
        teacher = vocabulary.teacher_defined, vocabulary.teacher_rows
    models = {"student": (material.student_ref, *student), "teacher": (material.teacher_ref, *teacher)}
    printer.rule(CHECK["pair"])
    printer.table(
        [
            {
                "": CHECK[role],
                CHECK["tokens"]: defined,
                CHECK["head_rows"]: rows,
                CHECK["generation"]: writing and writing.decoder,
            }
            for role, (ref, defined, rows) in models.items()
            if ref is not None
            for writing in (report.writing.get(role),)
        ]
    )
    for role, (ref, *_) in models.items():
        if ref is not None:
            printer.say(f"{CHECK[role]}: {ref.text}")
    if scores:
        printer.say(terminal.check_shared(num=vocabulary.num_shared))
    template = material.dialogue.template.origin
    printer.say(terminal.check_answer_ends(tokens=list(tokens), template=template))


def _show_memory(printer: Printer, plan: MemoryPlan) -> None:
    printer.rule(CHECK["memory"])
    printer.table(
        [
            {
                CHECK["component"]: name,
                CHECK["size"]: size_text(size),
                CHECK["phases"]: ", ".join(_phase(phase) for phase, names in plan.phases.items() if name in names),
            }
            for name, size in plan.components.items()
        ]
    )
    message = terminal.check_memory_fits if plan.fits else terminal.check_memory_too_small
    peak, free = size_text(plan.peak_bytes), size_text(plan.free_bytes)
    printer.say(message(phase=_phase(plan.peak_phase), peak=peak, free=free))


def _phase(name: str) -> str:
    return PHASES.get(name, name)


def show_machine(printer: Printer, machine: Mapping[str, object], environment: Mapping[str, str]) -> None:
    """The machine's properties, and the environment variables that have an effect."""
    printer.table(machine_rows(machine))
    if environment:
        settings = [f"{name}={value}" for name, value in environment.items()]
        printer.say(terminal.machine_environment(settings=settings))
    else:
        printer.say(terminal.machine_environment_none())


def machine_rows(machine: Mapping[str, object]) -> list[dict[str, object]]:
    """The machine's properties as rows of a table, sizes in GiB."""
    return [{CHECK["property"]: name, CHECK["value"]: value} for name, value in map(_property, machine.items())]


def _property(item: tuple[str, object]) -> tuple[str, object]:
    name, value = item
    if name.endswith("_bytes") and isinstance(value, int):
        value = f"{value / GIB:,.1f} GiB"
    elif isinstance(value, bool):
        value = CHECK["true" if value else "false"]
    return MACHINE.get(name, name), value
