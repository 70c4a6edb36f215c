"""What `limbeck check` and `limbeck train --dry-run` show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from limbeck.console import Printer

if TYPE_CHECKING:  # reading runs must not wait for torch
    from limbeck.planning.check import CheckReport
    from limbeck.planning.memory import MemoryPlan

__all__ = ["check_as_json", "show_check", "show_machine"]

NUM_ROWS_SHOWN = 3
GIB = 2**30
MIB = 2**20


def show_check(printer: Printer, report: CheckReport, title: str | None = None) -> None:
    """Rendered rows, the pair, the memory, and the certificate where the models were read."""
    if title is not None:
        printer.rule(title)
    _show_prompts(printer, report)
    _show_pair(printer, report)
    _show_memory(printer, report.memory)
    printer.rule("Objective")
    printer.say(report.objective)
    if report.findings:
        printer.table(
            [
                {
                    "check": finding.name,
                    "claim": finding.claim,
                    "measured": f"{finding.value:.2g}",
                    "must be": finding.limit,
                    "": "ok" if finding.passed else "FAILED",
                }
                for finding in report.findings
            ]
        )
    if report.notes:
        printer.rule("Notes")
    for note in report.notes:
        printer.say(f"- {note}")


def check_as_json(report: CheckReport) -> dict[str, object]:
    """What `show_check` shows, for a program: sizes in bytes, the first prompts as the student reads them."""
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
    printer.rule("Prompts, as the student reads them")
    for prompt in prompts[:NUM_ROWS_SHOWN]:
        printer.say(f"{prompt.source}, {len(prompt.ids)} tokens", style="bold")
        printer.say(prompt.text)
    printer.say(
        f"{len(prompts)} prompts train and {len(material.held_out.prompts)} are held out; "
        f"{lengths[0]} to {lengths[-1]} tokens, half of them up to {lengths[len(lengths) // 2]}."
    )
    injected = material.train.injected_system
    printer.say(
        "The template adds no system text."
        if injected is None
        else f"The template adds a system text to rows without one: {injected!r}"
    )


def _show_pair(printer: Printer, report: CheckReport) -> None:
    material, vocabulary, scores = report.material, report.material.vocabulary, report.recipe.scores
    tokens = material.dialogue.tokenizer.convert_ids_to_tokens(list(material.dialogue.stop.ids))
    printer.rule("The pair")
    printer.table(
        [
            {
                "": role,
                "model": ref.text,
                "tokens": defined,
                "rows of the head": rows,
                "writes by": "-" if writing is None else writing.decoder,
            }
            for role, ref, defined, rows, writing in (
                (
                    "student",
                    material.student_ref,
                    vocabulary.student_defined,
                    vocabulary.student_rows,
                    report.writing.get("student"),
                ),
                (
                    "teacher",
                    material.teacher_ref,
                    vocabulary.teacher_defined if scores else "-",
                    vocabulary.teacher_rows if scores else "-",
                    report.writing.get("teacher"),
                ),
            )
            if ref is not None
        ]
    )
    if scores:
        printer.say(f"{vocabulary.num_shared} ids are shared and name the same tokens; both heads are cut to them.")
    printer.say(f"An answer ends with {' or '.join(map(str, tokens))}. Template: {material.dialogue.template.origin}.")


def _show_memory(printer: Printer, plan: MemoryPlan) -> None:
    printer.rule("Memory")
    printer.table(
        [
            {
                "component": name,
                "size": size_text(size),
                "in": ", ".join(phase for phase, names in plan.phases.items() if name in names),
            }
            for name, size in plan.components.items()
        ]
    )
    verdict = "fits" if plan.fits else "DOES NOT FIT"
    printer.say(
        f"The {plan.peak_phase} phase takes most, about {size_text(plan.peak_bytes)}; "
        f"{size_text(plan.free_bytes)} are free: {verdict}. Activations are estimates, the rest is counted."
    )


def size_text(num_bytes: int) -> str:
    """Bytes for people: 6.2 GiB, 58 MiB."""
    return f"{num_bytes / GIB:.1f} GiB" if num_bytes >= GIB else f"{num_bytes / MIB:.3g} MiB"


def show_machine(printer: Printer, machine: Mapping[str, object], seen: Mapping[str, str]) -> None:
    """What the machine gives, and which environment variables have a say."""
    printer.table([{"what": name.replace("_", " "), "here": value} for name, value in machine.items()])
    printer.say("From the environment: " + (", ".join(f"{name}={value}" for name, value in seen.items()) or "nothing"))
