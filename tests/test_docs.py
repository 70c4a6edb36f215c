"""Prose that could drift from the code: generated pages, and the reports that this version answers for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import generate_docs  # noqa: E402

REPORTS = (
    *("EP-01", "EP-03", "EP-04", "EP-06", "VT-01", "VT-05", "LM-01", "LM-03", "LM-04", "LM-06", "LM-07", "CT-02"),
    *("CT-03", "LT-01", "LT-02", "TH-01", "TH-03", "DC-05", "CF-01"),
    *("CF-04", "CR-01", "CR-04", "CR-05", "CR-06", "CR-07", "CR-08", "CR-09"),
    *("CT-01", "CT-05", "CT-06", "CT-07", "CT-08", "CT-10", "CT-11"),
    *("DC-01", "DC-02", "DC-03", "DC-04", "DC-07", "DC-08", "DC-09"),
    *("EV-01", "EV-03", "EV-04"),
    *("HA-01", "HA-02", "HA-03", "HA-04", "HA-05", "HA-07", "HA-08", "HA-10", "HA-11", "HA-12", "HA-13"),
)


@pytest.mark.parametrize("path", generate_docs.pages(), ids=lambda path: path.name)
def test_generated_pages_are_up_to_date(path):
    assert path.read_text(encoding="utf-8") == generate_docs.pages()[path], "run `make docs`"


def test_each_of_these_public_reports_has_a_test():
    page = generate_docs.reports_page()
    assert [report for report in REPORTS if f"## {report}\n" not in page] == []


def test_the_readme_names_commands_that_exist():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = {line.split()[1] for line in readme.splitlines() if line.startswith("    limbeck ")}
    assert commands
    assert commands <= {command.split()[0] for command in generate_docs.COMMANDS}
