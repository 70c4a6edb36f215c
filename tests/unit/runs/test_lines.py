"""Files of JSON lines: strict, torn ends, readers beside a writer, and a writer that is killed."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limbeck.errors import DataError, Stopped
from limbeck.runs.atomic import write_json, write_text
from limbeck.runs.lines import LineWriter, event_line, iterate_lines, read_backwards, read_lines


def strict(line: str) -> dict[str, object]:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    value = json.loads(line, parse_constant=refuse)
    assert isinstance(value, dict)
    return value


def write(path: Path, *events: Mapping[str, object]) -> None:
    writer = LineWriter(path)
    for event in events:
        writer.append(event_line(event))
    writer.close()


def test_a_number_that_is_not_finite_is_null_and_named() -> None:
    event = {"kind": "step", "loss": math.nan, "norms": [1.0, math.inf], "part": {"low": -math.inf}}
    assert strict(event_line(event)) == {
        "kind": "step",
        "loss": None,
        "norms": [1.0, None],
        "part": {"low": None},
        "not_finite": {"loss": "nan", "norms.1": "inf", "part.low": "-inf"},
    }


def test_numbers_of_arrays_paths_and_tuples_are_plain_json() -> None:
    event = {
        "a": np.float32(0.5),
        "b": np.int64(3),
        "c": Path("/x/y"),
        "d": (1, "z"),
        "e": True,
        "f": np.float64("nan"),
    }
    assert strict(event_line(event)) == {
        "a": 0.5, "b": 3, "c": "/x/y", "d": [1, "z"], "e": True, "f": None, "not_finite": {"f": "nan"}
    }  # fmt: skip


def test_what_json_has_no_word_for_is_an_error_that_names_the_place() -> None:
    with pytest.raises(TypeError, match=r"a\.b is a set"):
        event_line({"a": {"b": {1}}})


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=8), st.text(max_size=20), max_size=5))
def test_any_text_is_one_line_of_utf8_and_comes_back(event: dict[str, str]) -> None:
    line = event_line(event)
    data = line.encode("utf-8")
    assert data.count(b"\n") == 1
    assert strict(data.decode("utf-8")) == event


def test_characters_that_others_take_for_line_ends_do_not_split_a_line(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    text = "a\u2028b\u2029c\x85d\x0be\x0cf\rg\nh\x1ci\ud83d"
    write(path, {"text": text}, {"text": "next"})
    assert [event["text"] for event in read_lines(path)[0]] == [text, "next"]
    assert [event["text"] for event in read_backwards(path)] == ["next", text]


def test_a_torn_end_is_not_there_for_readers_and_goes_when_a_writer_comes(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write(path, {"n": 1}, {"n": 2})
    whole = path.read_bytes()
    for torn in (b"{", b'{"n": 3', b'{"n": 3}', b"\0\0\0", b"\xff\xfe", b'{"n": "' + b"x" * 200_000):
        path.write_bytes(whole + torn)
        assert read_lines(path) == ([{"n": 1}, {"n": 2}], len(whole))
        assert list(read_backwards(path)) == [{"n": 2}, {"n": 1}]
        write(path, {"n": 9})
        assert [event["n"] for event in read_lines(path)[0]] == [1, 2, 9]


def test_a_file_that_is_one_torn_line_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"n": 1')
    assert read_lines(path) == ([], 0)
    assert list(read_backwards(path)) == []
    write(path, {"n": 2})
    assert path.read_bytes() == b'{"n": 2}\n'
    assert read_lines(tmp_path / "not-there") == ([], 0)


@pytest.mark.parametrize("broken", [b"{x}", b"[1]", b"", b'{"a": NaN}', b"\0\0", b"[" * 100_000, b'{"a": "\xff"}'])
def test_a_broken_line_inside_the_file_is_an_error_with_its_place(tmp_path: Path, broken: bytes) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"n": 1}\n' + broken + b'\n{"n": 2}\n')
    with pytest.raises(DataError, match="near byte 9") as caught:
        read_lines(path)
    assert caught.value.code == "run.line-broken"
    backwards = read_backwards(path)
    assert next(backwards) == {"n": 2}
    with pytest.raises(DataError):
        next(backwards)


def test_reading_goes_on_from_an_offset(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    seen: list[object] = []
    offset = 0
    writer = LineWriter(path)
    for number in range(5):
        writer.append(event_line({"n": number, "text": "ü" * number}))
        events, offset = read_lines(path, offset)
        seen += [event["n"] for event in events]
        assert read_lines(path, offset) == ([], offset)
    writer.close()
    assert seen == [0, 1, 2, 3, 4]
    assert offset == path.stat().st_size


@settings(deadline=None)
@given(st.lists(st.integers(0, 200_000), max_size=4))
def test_backwards_is_forwards_reversed_whatever_the_length_of_lines(lengths: list[int]) -> None:
    path = Path(os.environ["PYTEST_TMP"]) / "backwards.jsonl"
    path.unlink(missing_ok=True)
    write(path, *({"n": number, "text": "x" * length} for number, length in enumerate(lengths)))
    assert list(read_backwards(path)) == read_lines(path)[0][::-1]


@pytest.fixture(autouse=True)
def folder_for_property_tests(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_TMP", str(tmp_path_factory.getbasetemp()))


def test_readers_take_one_line_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"n": 1}\nbroken\n')
    assert next(iterate_lines(path)) == ({"n": 1}, 9)


WRITER = """
import sys
from pathlib import Path
from limbeck.runs.lines import LineWriter, event_line
writer = LineWriter(Path(sys.argv[1]))
number = int(sys.argv[2])
print("ready", flush=True)
while True:
    writer.append(event_line({"n": number, "text": "x" * 32_000}))
    number += 1
"""


def test_readers_see_whole_lines_in_order_while_the_writer_is_killed_again_and_again(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    seen: list[object] = []
    offset = 0
    for _ in range(4):
        command = [sys.executable, "-c", WRITER, str(path), str(len(seen))]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            until = time.monotonic() + 0.15
            while time.monotonic() < until:
                events, offset = read_lines(path, offset)
                seen += [event["n"] for event in events]
            process.send_signal(signal.SIGKILL)
        events, offset = read_lines(path, offset)
        seen += [event["n"] for event in events]
    assert len(seen) > 4
    assert seen == list(range(len(seen)))


def test_a_full_disk_stops_resumably_and_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "events.jsonl"
    writer = LineWriter(path)
    writer.append('{"n": 1}\n')
    real_write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real_write(descriptor, data[:4]))
    with pytest.raises(Stopped, match="No space left") as caught:
        writer.append('{"n": 2}\n')
    assert caught.value.exit_code == 75
    assert "9 bytes" in caught.value.given
    monkeypatch.undo()
    writer.append('{"n": 3}\n')
    writer.close()
    assert path.read_bytes() == b'{"n": 1}\n{"n": 3}\n'


def test_each_line_is_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = LineWriter(tmp_path / "events.jsonl")
    sizes: list[int] = []
    real_write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: sizes.append(len(data)) or real_write(descriptor, data))
    line = event_line({"text": "x" * 1_000_000})
    writer.append(line)
    writer.close()
    assert sizes == [len(line)]


def test_a_link_is_neither_read_nor_written(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text('{"secret": 1}\n')
    link = tmp_path / "events.jsonl"
    link.symlink_to(target)
    with pytest.raises(DataError, match="no links"):
        read_lines(link)
    with pytest.raises(DataError):
        next(read_backwards(link))
    with pytest.raises(Stopped):
        LineWriter(link)
    assert target.read_text() == '{"secret": 1}\n'


def test_small_files_are_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state.json"
    write_json(path, {"a": 1})
    assert json.loads(path.read_text()) == {"a": 1}
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(path, {"a": math.nan})

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Stopped, match=r"state\.json"):
        write_text(path, "new")
    assert json.loads(path.read_text()) == {"a": 1}
    assert [each.name for each in tmp_path.iterdir()] == ["state.json"]


def test_the_order_of_an_atomic_write_survives_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    real_fsync, real_replace = os.fsync, Path.replace
    kind = {True: "folder to disk", False: "file to disk"}
    monkeypatch.setattr(
        os, "fsync", lambda fd: done.append(kind[Path(f"/proc/self/fd/{fd}").is_dir()]) or real_fsync(fd)
    )
    monkeypatch.setattr(Path, "replace", lambda self, new: done.append("rename") or real_replace(self, new))
    write_text(tmp_path / "x", "new")
    assert done == ["file to disk", "rename", "folder to disk"]
