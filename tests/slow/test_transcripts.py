"""The commands that the documentation shows still run, and print what it shows but for figures and generated text."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import transcripts  # noqa: E402

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", transcripts.PAGES)
def test_a_page_shows_what_its_commands_print(name, tmp_path):
    page = (transcripts.DOCS / name).read_text(encoding="utf-8")
    shown, printed = transcripts.commands_of(page), transcripts.run(page, tmp_path)
    assert shown
    for before, now in zip(shown, printed, strict=True):
        assert transcripts.skeleton(now.output) == transcripts.skeleton(before.output), f"{now.text}: make transcripts"
        assert bool(now.output) == bool(before.output), f"{now.text}: make transcripts"
