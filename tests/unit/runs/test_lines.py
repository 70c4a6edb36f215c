"""Files of JSON lines: strict, torn ends, readers beside a writer, and a writer that is killed."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limbeck.errors import DataError, Stopped
from limbeck.runs.lines import append_line, event_line, iterate_lines, write_text


def strict(line: str) -> dict[str, object]:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    value = json.loads(line, parse_constant=refuse)
    assert isinstance(value, dict)
    return value


def write(path: Path, *events: Mapping[str, object]) -> None:
    for event in events:
        append_line(path, event_line(event))


def read(path: Path) -> list[dict[str, object]]:
    return list(iterate_lines(path))


@pytest.mark.report("TU-05")
def test_a_number_that_is_not_finite_is_a_text_that_reads_as_that_number() -> None:
    event = {"kind": "step", "loss": math.nan, "norms": [1.0, math.inf], "part": {"low": -math.inf}}
    read_back = strict(event_line(event))
    assert read_back == {"kind": "step", "loss": "NaN", "norms": [1.0, "Infinity"], "part": {"low": "-Infinity"}}
    assert [float(text) for text in ("Infinity", "-Infinity")] == [math.inf, -math.inf]
    assert math.isnan(float("NaN"))


def test_numbers_of_arrays_paths_and_tuples_are_plain_json() -> None:
    event = MappingProxyType(
        {
            "a": np.float32(0.5),
            "b": np.int64(3),
            "c": Path("/x/y"),
            "d": (1, "z"),
            "e": True,
            "f": [np.float64("nan"), np.float32("-inf")],
        }
    )
    assert strict(event_line(event)) == {
        "a": 0.5, "b": 3, "c": "/x/y", "d": [1, "z"], "e": True, "f": ["NaN", "-Infinity"]
    }  # fmt: skip


def test_what_json_has_no_word_for_is_an_error() -> None:
    with pytest.raises(TypeError, match=r"set: \{1\}"):
        event_line({"a": {"b": {1}}})


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=8), st.text(max_size=20), max_size=5))
def test_any_text_is_one_line_of_utf8_and_comes_back(event: dict[str, str]) -> None:
    line = event_line(event)
    data = line.encode("utf-8")
    assert data.count(b"\n") == 1
    assert strict(data.decode("utf-8")) == event


@pytest.mark.report("DL-09")
def test_characters_that_others_take_for_line_ends_do_not_split_a_line(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    text = "a\u2028b\u2029c\x85d\x0be\x0cf\rg\nh\x1ci\ud83d"
    write(path, {"text": text}, {"text": "next"})
    assert [event["text"] for event in read(path)] == [text, "next"]


@pytest.mark.report("DL-12", "TU-07")
def test_a_torn_end_is_not_there_for_readers_and_goes_when_a_writer_comes(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write(path, {"n": 1}, {"n": 2})
    whole = path.read_bytes()
    for torn in (b"{", b'{"n": 3', b'{"n": 3}', b"\0\0\0", b"\xff\xfe", b'{"n": "' + b"x" * 200_000):
        path.write_bytes(whole + torn)
        assert read(path) == [{"n": 1}, {"n": 2}]
        write(path, {"n": 9})
        assert [event["n"] for event in read(path)] == [1, 2, 9]


def test_a_file_that_is_one_torn_line_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"n": 1')
    assert read(path) == []
    write(path, {"n": 2})
    assert path.read_bytes() == b'{"n": 2}\n'


@pytest.mark.parametrize("broken", [b"{x}", b"[1]", b"", b"\0\0", b"[" * 100_000, b'{"a": "\xff"}'])
def test_a_broken_line_inside_the_file_is_an_error_with_its_place(tmp_path: Path, broken: bytes) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"n": 1}\n' + broken + b'\n{"n": 2}\n')
    lines = iterate_lines(path)
    assert next(lines) == {"n": 1}, "one line is read at a time"
    with pytest.raises(DataError, match=r"events\.jsonl:2 is broken") as caught:
        next(lines)
    assert caught.value.code == "run.line-broken"


WRITER = """
import sys
from pathlib import Path
from limbeck.runs.lines import append_line, event_line
number = int(sys.argv[2])
print("ready", flush=True)
for number in range(number, number + 2_000):  # bounded: a writer that nobody kills must not fill a disk
    append_line(Path(sys.argv[1]), event_line({"n": number, "text": "x" * 32_000}))
"""


@pytest.mark.report("TU-01")
def test_readers_see_whole_lines_in_order_while_the_writer_is_killed_again_and_again(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    seen: list[object] = []
    for _ in range(4):
        command = [sys.executable, "-c", WRITER, str(path), str(len(seen))]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            try:
                begun = len(seen)
                while len(seen) < begun + 5:
                    if path.exists():
                        seen = [event["n"] for event in iterate_lines(path)]
                        assert seen == list(range(len(seen)))
            finally:
                process.send_signal(signal.SIGKILL)
        seen = [event["n"] for event in iterate_lines(path)]
    assert seen == list(range(len(seen)))


def test_a_full_disk_stops_resumably_and_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "events.jsonl"
    append_line(path, '{"n": 1}\n')
    real_write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real_write(descriptor, data[:4]))
    with pytest.raises(Stopped, match="No space left") as caught:
        append_line(path, '{"n": 2}\n')
    assert caught.value.exit_code == 75
    assert "events.jsonl" in caught.value.given
    assert read(path) == [{"n": 1}]
    monkeypatch.undo()
    append_line(path, '{"n": 3}\n')
    assert path.read_bytes() == b'{"n": 1}\n{"n": 3}\n'


def test_each_line_is_one_write_and_only_a_durable_one_waits_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[object] = []
    real_write, real_fsync = os.write, os.fsync
    monkeypatch.setattr(os, "write", lambda descriptor, data: done.append(len(data)) or real_write(descriptor, data))
    monkeypatch.setattr(os, "fsync", lambda descriptor: done.append("to disk") or real_fsync(descriptor))
    line = event_line({"text": "x" * 1_000_000})
    append_line(tmp_path / "events.jsonl", line)
    append_line(tmp_path / "events.jsonl", line, durable=True)
    assert done == [len(line), len(line), "to disk"]


def test_a_link_is_neither_read_nor_written(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text('{"secret": 1}\n')
    link = tmp_path / "events.jsonl"
    link.symlink_to(target)
    with pytest.raises(DataError, match="regular files, not links") as refused:
        read(link)
    assert (refused.value.code, refused.value.parameters["file"]) == ("run.unreadable", link)
    with pytest.raises(Stopped):
        append_line(link, "{}\n")
    assert target.read_text() == '{"secret": 1}\n'


def test_small_files_are_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "answers.jsonl"
    write_text(path, "ältere\n")
    assert path.read_text(encoding="utf-8") == "ältere\n"

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Stopped, match=r"answers\.jsonl"):
        write_text(path, "new")
    assert path.read_text(encoding="utf-8") == "ältere\n"
    assert [each.name for each in tmp_path.iterdir()] == ["answers.jsonl"]


def test_an_atomic_write_is_on_the_disk_before_it_takes_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    real_fsync, real_replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: done.append("to disk") or real_fsync(descriptor))
    monkeypatch.setattr(Path, "replace", lambda self, new: done.append("rename") or real_replace(self, new))
    write_text(tmp_path / "x", "new")
    assert done == ["to disk", "rename"]
