"""Run the commands that the pages show and write their output below them: `make transcripts`.

A page's `console` blocks are one session, in the order of the page: a line that begins with `$ ` is a command (`\\` at
its end continues it), the rest of the block is what it printed. A fenced block whose first line is a comment with a
file's name is that file; of several with one name, the last. Commands run in a fresh folder that holds the files and
what `limbeck demo` puts into its folder `demo`. PATH/ stands for the folder of the pair that ships with Limbeck.

    python scripts/transcripts.py [PAGE ...]
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from demo_prompts import PAIR, write_demo_folder

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = (
    "tutorial/own-data.md",
    "how-to/use-lora.md",
    "how-to/read-marks.md",
)
BLOCK = re.compile(r"^```(?P<language>\S+)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"# ([\w.-]+\.(?:yaml|jsonl|txt|py))\b")
HEAD = " | head -n "
TIMEOUT_S = 900


@dataclass(frozen=True)
class Command:
    """A command as the page shows it, and the output that the page shows below it."""

    text: str
    output: str


def commands_of(page: str) -> list[Command]:
    """Every command of a page's console blocks, in order."""
    return [
        command for block in BLOCK.finditer(page) if block["language"] == "console" for command in split(block["body"])
    ]


def split(body: str) -> Iterator[Command]:
    """The commands of one console block."""
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        lines = part.splitlines(keepends=True)
        end = next(number for number, line in enumerate(lines, start=1) if not line.endswith("\\\n"))
        yield Command("".join(lines[:end]).rstrip("\n"), "".join(lines[end:]))


def files_of(page: str) -> dict[str, str]:
    """The files that a page shows, by name."""
    blocks = (block["body"] for block in BLOCK.finditer(page) if block["language"] != "console")
    named = ((FILE_NAME.match(body), body) for body in blocks)
    return {name[1]: body.replace("PATH/", f"{PAIR}/") for name, body in named if name}


def run(page: str, folder: Path) -> list[Command]:
    """Runs a page's commands in `folder`; returns them with what they print now. A command that fails is an error."""
    write_demo_folder(folder / "demo")
    for name, text in files_of(page).items():
        (folder / name).write_text(text, encoding="utf-8")
    beside = Path(sys.executable).parent  # where the command `limbeck` is
    kept = {key: value for key, value in os.environ.items() if not key.startswith("LIMBECK_")}
    environment = {**kept, "PATH": f"{beside}{os.pathsep}{os.environ['PATH']}", "HF_HUB_OFFLINE": "1"}
    return [Command(each.text, _output(each.text, folder, environment)) for each in commands_of(page)]


def _output(command: str, folder: Path, environment: dict[str, str]) -> str:
    print(f"$ {command}", file=sys.stderr, flush=True)
    program, _, limit = command.replace("PATH/", f"{PAIR}/").partition(
        HEAD
    )  # cut here: a closed pipe would count as a failure
    done = subprocess.run(
        ["bash", "-c", program],
        cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT_S,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{command}\nended with {done.returncode}:\n{done.stdout}{done.stderr}")
    shown = done.stdout.replace(f"{folder.resolve()}/", "")
    shown = re.sub(rf"{re.escape(str(PAIR))}/(\w+)( {{2,}})?", _as_wide, shown)
    return "".join(f"{line.rstrip()}\n" for line in shown.splitlines()[: int(limit) if limit else None])


def _as_wide(path: re.Match[str]) -> str:
    """The path of one of the pair's folders without what is before it, as wide as it was where it stands in a table."""
    short = f"PATH/{path[1]}"
    return short.ljust(len(path[0])) if path[2] else short


def filled(page: str, commands: list[Command]) -> str:
    """The page with the output of each command replaced."""
    left = iter(commands)

    def block_with_output(block: re.Match[str]) -> str:
        if block["language"] != "console":
            return block[0]
        return "```console\n" + "".join(f"$ {each.text}\n{next(left).output}" for each in split(block["body"])) + "```"

    return BLOCK.sub(block_with_output, page)


def skeleton(output: str) -> list[str]:
    """The titles and column heads of an output: what does not depend on the machine that ran the command.

    Titles that are the place of a prompt are left out, since which prompt is the worst may differ.
    """
    plain = (line for line in output.splitlines() if ".jsonl:" not in line)
    lines = [" ".join(re.sub(r"\d+", "0", line).split()) for line in plain]
    heads = [above for above, line in pairwise(lines) if line and not line.strip("─")]
    titles = [line.rstrip("─ ") for line in lines if line.endswith("───") and line.strip("─")]
    return heads + titles


def main(names: list[str]) -> None:
    for name in names or PAGES:
        path = DOCS / name
        page = path.read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder:
            path.write_text(filled(page, run(page, Path(folder))), encoding="utf-8")
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main(sys.argv[1:])
