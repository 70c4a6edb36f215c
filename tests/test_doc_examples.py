"""The Python examples of README and docs run as they stand, with tiny models in place of the large ones they name."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from pairs import write_pair

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

from transcripts import BLOCK  # noqa: E402

# What an example names, and what is run instead: the same calls, smaller.
SMALLER = {
    "Qwen/Qwen2.5-0.5B-Instruct": "student",
    "Qwen/Qwen2.5-3B-Instruct": "teacher",
    "steps=200": "steps=2, prompts_per_step=4",
    "max_practice_tokens=64": "max_practice_tokens=6",
    "held_out=20": "held_out=12",
}
GENERATED = ("cli.md", "recipe.md", "python.md", "performance.md")
PAGES = [ROOT / "README.md", *(path for path in sorted((ROOT / "docs").rglob("*.md")) if path.name not in GENERATED)]


def blocks_of(path):
    """The page's Python blocks: one story, in one namespace."""
    return [
        block["body"] for block in BLOCK.finditer(path.read_text(encoding="utf-8")) if block["language"] == "python"
    ]


def smaller(code):
    for large, small in SMALLER.items():
        code = code.replace(large, small)
    return code


WITH_EXAMPLES = [path for path in PAGES if blocks_of(path)]


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_python_examples_of_a_page_run(path, tmp_path, monkeypatch):
    write_pair(tmp_path)
    shutil.copy(tmp_path / "rows.jsonl", tmp_path / "tickets.jsonl")
    monkeypatch.chdir(tmp_path)
    space = {"__name__": "example"}
    for number, block in enumerate(blocks_of(path), start=1):
        exec(compile(smaller(block), f"{path.name}, Python block {number}", "exec"), space)  # noqa: S102


def test_some_pages_have_examples():
    assert {"README.md", "own-loop.md", "objectives.md", "use-python.md"} <= {path.name for path in WITH_EXAMPLES}
