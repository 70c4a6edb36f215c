"""What the benchmarks share: shapes of a step, tables for people, one JSON line last, baselines with versions."""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
BASELINES = HERE / "baselines"
# In the name of a baseline from a CPU on which computing in bf16 saves no time.
WITHOUT_BF16 = "without-bf16"
CACHE_VARIABLE = "REAL_MODELS_CACHE"
DEFAULT_CACHE = "~/.cache/limbeck-tests"


@dataclass(frozen=True)
class Shape:
    """What a step works on: how many prompts, how long the answers, and by which student.

    exact: every answer has `new_tokens` tokens; otherwise stop tokens end it and `new_tokens` is the limit.
    student: the folder of the student in the cache; the teacher is always the 135M model.
    """

    name: str
    num_prompts: int
    new_tokens: int
    exact: bool
    student: str = "student"


NAMED_SHAPES = (
    # the 135M model as its own student: answers as long as a healthy model makes them
    Shape("natural", 32, 128, exact=False, student="teacher"),
    # answers of unequal length from the usual student, for comparing losses and gradients
    Shape("ragged", 8, 64, exact=False),
)


@dataclass(frozen=True)
class Table:
    """A table as it is printed, saved and shown in the docs."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def shape_of(text: str) -> Shape:
    """`8x64` is 8 prompts with exactly 64 new tokens each; or the name of a named shape."""
    for shape in NAMED_SHAPES:
        if shape.name == text:
            return shape
    match = re.fullmatch(r"(\d+)x(\d+)", text)
    if match is None:
        known = ", ".join(shape.name for shape in NAMED_SHAPES)
        raise ValueError(f"{text!r} is no shape: write PROMPTSxTOKENS (8x64) or one of {known}")
    return Shape(text, int(match[1]), int(match[2]), exact=True)


def models_cache() -> Path:
    """Where `make models` puts the real pair and its prompts."""
    folder = Path(os.environ.get(CACHE_VARIABLE) or DEFAULT_CACHE).expanduser()
    if not (folder / "student").is_dir():
        raise SystemExit(f"{folder} holds no models: run `make models` first")
    return folder


def figure(value: float) -> str:
    """Three significant digits, without an exponent above a thousandth."""
    if not abs(value) >= 1e-3:
        return f"{value:.1e}" if value else "0"
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    return f"{value:,.{digits}f}"


def render(table: Table) -> str:
    """A table as Markdown with aligned columns, which reads well on a terminal too. The first column is text."""
    lines = [table.columns, *table.rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(table.columns))]

    def row(cells: Sequence[str]) -> str:
        padded = [
            cells[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)),
        ]
        return "| " + " | ".join(padded) + " |"

    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join([row(table.columns), row(rule), *map(row, table.rows)])


def about_here(**more: object) -> dict[str, object]:
    """The machine, the date and the versions that a figure is worth nothing without."""
    from limbeck.machine import probe_machine

    machine = probe_machine("cpu")
    return {
        "date": datetime.date.today().isoformat(),
        "machine": machine.device_name,
        "threads": machine.num_threads,
        "bf16": machine.bf16,
        "python": platform.python_version(),
        "libraries": machine.libraries,
        **more,
    }


def baseline_path(benchmark: str, about: Mapping[str, object]) -> Path:
    """Where a benchmark's figures are kept: one file for CPUs that are faster in bf16, one for those that are not."""
    return BASELINES / (f"{benchmark}.json" if about.get("bf16", True) else f"{benchmark}.{WITHOUT_BF16}.json")


def command_line(arguments: Sequence[str]) -> str:
    """How to run this again: without the folder of the peers, which is this machine's own, and without --save."""
    kept, skip = [], False
    for argument in arguments[1:]:
        if not skip and argument not in ("--peers", "--save") and not argument.startswith("--peers="):
            kept.append(argument)
        skip = argument == "--peers"
    return " ".join(["python", f"benchmarks/{Path(arguments[0]).name}", *kept])


def finish(
    benchmark: str, tables: Sequence[Table], results: object, about: Mapping[str, object], *, save: bool
) -> None:
    """Print the tables and, as the last line, everything as JSON; `save` keeps it as the benchmark's baseline.

    What an earlier call saved under other titles stays: the cases of a benchmark may be measured one at a time.
    """
    for table in tables:
        print(f"\n{table.title}\n\n{render(table)}")
    record = {
        "benchmark": benchmark,
        "command": command_line(sys.argv),
        "about": dict(about),
        "tables": [{"title": table.title, "columns": table.columns, "rows": table.rows} for table in tables],
        "results": results,
    }
    if save:
        BASELINES.mkdir(exist_ok=True)
        path = baseline_path(benchmark, about)
        earlier = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"tables": [], "results": {}}
        new = {table.title for table in tables}
        kept = [table for table in earlier["tables"] if table["title"] not in new]
        both = {**earlier["results"], **results} if isinstance(results, dict) else results
        text = json.dumps({**record, "tables": [*kept, *record["tables"]], "results": both}, indent=1)
        path.write_text(text + "\n", encoding="utf-8")
        print(f"\nsaved as {path}")
    print()
    print(json.dumps(record), flush=True)
