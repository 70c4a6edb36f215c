"""Names of runs and files, and paths that stay inside the workspace."""

from __future__ import annotations

import os
import random
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limbeck import names as names_module
from limbeck.errors import UsageError
from limbeck.names import check_name, inside, is_name, new_run_name

GOOD = ["a", "run-1", "calm-otter-17", "Support_2.jsonl", "0", "x" * 100, "a..b", "console", "com10", "nulls", "_x"]

TRAVERSALS = [
    "..", "../x", "../../etc/passwd", "a/../..", "a/../../x", "./../x", "..//x", "runs/../../x", "/", "/etc/passwd",
    "//server/share", "/proc/self/root/etc/passwd", "../" * 30 + "etc/passwd", "x/" * 5 + "../" * 6 + "y",
    "..\\x", "..\\..\\windows", "a\\..\\..\\x", "\\\\server\\share", "C:\\x", "\\x", "\\??\\C:\\x",
    "a\0b", "../\0", "a\nb", "..\r", "a\x7fb", "\x1b]0;x\x07",
]  # fmt: skip
# Strange, but on this system they are plain file names below the workspace; as *names* they are refused.
ONLY_BAD_AS_NAMES = [
    "", ".", "./", ".hidden", "-rf", "--help", "a.", "a..", "...", "a b", " a", "a ", "a\t", "~", "~root", "$HOME",
    "${x}", "`id`", "a;b", "a|b", "a&b", "a>b", "a*b", "a?b", "a:b", "C:", "C:x", "file:///etc/passwd", "http://x",
    "%2e%2e", "%2e%2e%2f", "%252e%252e%252f", "..%2fx", "..%5cx", "%00", "%c0%ae%c0%ae/", "a/b", "a/", "/a"[1:] + "/b",
    "\u2025", "\u2026", "\u2044etc", "..\u2215x", "..\u2044x", "\uff0e\uff0e", "\uff0e\uff0e\uff0fx", "a\u202eb",
    "a\u200bb", "\u0430dmin", "caf\u00e9", "\ufeffa", "\U0001f600", "\u0661", "\u2160", "a" * 101, "x" * 5000,
    "con", "CON", "Con.txt", "nul", "NUL.tar.gz", "aux", "prn", "com1", "COM9.jsonl", "lpt0", "lpt1.x", "com0",
]  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_ordinary_names_are_allowed(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.report("TU-03")
@pytest.mark.parametrize("name", TRAVERSALS + ONLY_BAD_AS_NAMES)
def test_hostile_names_are_refused(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_name(name, what="data set")
    assert caught.value.code == "names.not-allowed"
    assert "data set" in caught.value.given
    with pytest.raises(UsageError, match="The evaluation name"):
        check_name(name, what="evaluation")
    assert str(caught.value).isprintable(), "the message must not carry the control characters of the name"


@settings(deadline=None)
@given(st.text(max_size=120))
def test_an_allowed_name_is_one_plain_component(name: str) -> None:
    if is_name(name):
        assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", name)
        assert Path(name).parts == (name,)
        assert os.path.normpath(name) == name


@settings(deadline=None)
@given(st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,20}[A-Za-z0-9_-]", fullmatch=True))
def test_plain_names_pass_unless_they_are_devices(name: str) -> None:
    device = re.fullmatch(r"(?i)(con|prn|aux|nul|com\d|lpt\d)(\..*)?", name) is not None
    assert is_name(name) is not device


@pytest.mark.report("TU-03")
@pytest.mark.parametrize("path", TRAVERSALS)
def test_a_path_that_leads_out_is_refused(tmp_path: Path, path: str) -> None:
    workspace = tmp_path / "work"
    workspace.mkdir()
    with pytest.raises(UsageError) as caught:
        inside(workspace, path)
    assert caught.value.code == "names.outside"
    assert str(caught.value).isprintable()


@settings(deadline=None)
@given(st.lists(st.sampled_from(["..", ".", "a", "b c", "%2e%2e", "\u2044", "~", "link-out", "link-in"]), max_size=8))
def test_what_inside_gives_is_always_below_the_workspace(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str]
) -> None:
    workspace = tmp_path_factory.getbasetemp() / "inside-property"
    if not workspace.exists():
        (workspace / "a").mkdir(parents=True)
        (workspace / "link-out").symlink_to("/")
        (workspace / "link-in").symlink_to("a")
    try:
        real = inside(workspace, "/".join(parts))
    except UsageError:
        assert ".." in parts or "link-out" in parts or parts[:1] == []
    else:
        assert real.resolve().is_relative_to(workspace.resolve())


@pytest.mark.report("TU-03")
def test_links_are_followed_before_the_question(tmp_path: Path) -> None:
    workspace = tmp_path / "work"
    outside = tmp_path / "work-2"  # shares a prefix with the workspace, yet is another folder
    (workspace / "runs").mkdir(parents=True)
    outside.mkdir()
    (workspace / "runs" / "out").symlink_to(outside)
    (workspace / "runs" / "file").symlink_to("/etc/passwd")
    (workspace / "runs" / "loop").symlink_to("loop")
    (workspace / "alias").symlink_to("runs")
    for leading_out in ("runs/out", "runs/out/x", "runs/file", str(outside), str(tmp_path), "../work-2"):
        with pytest.raises(UsageError):
            inside(workspace, leading_out)
    assert inside(workspace, "alias/new") == (workspace / "runs" / "new").resolve()
    assert inside(workspace, "runs/loop").is_relative_to(workspace.resolve())
    assert inside(workspace, workspace / "runs") == (workspace / "runs").resolve()
    assert inside(workspace, ".") == workspace.resolve()
    through_link = tmp_path / "through"
    through_link.symlink_to(workspace)
    assert inside(through_link, "runs") == (workspace / "runs").resolve()


def test_new_run_names_are_allowed_short_and_new() -> None:
    names: set[str] = set()
    for _ in range(500):
        name = new_run_name(names)
        assert re.fullmatch(r"[a-z]+-[a-z]+-[1-9][0-9]", name)
        assert is_name(name)
        assert len(name) <= 20
        assert name not in names
        names.add(name)


def test_a_taken_name_is_not_drawn_again_whatever_its_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names_module, "_ADJECTIVES", ["calm"])
    monkeypatch.setattr(names_module, "_ANIMALS", ["otter"])
    taken = [f"Calm-Otter-{number}" for number in range(10, 100) if number != 42]
    assert new_run_name(taken) == "calm-otter-42"


def test_names_do_not_depend_on_the_seed_of_the_run() -> None:
    random.seed(0)
    first = {new_run_name([]) for _ in range(5)}
    random.seed(0)
    assert {new_run_name([]) for _ in range(5)} != first
