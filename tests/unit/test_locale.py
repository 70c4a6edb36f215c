"""Files are UTF-8 and printing goes on, whatever the locale says."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys

import pytest

from builders import prompt_row
from limbeck.console import print_json
from limbeck.reporting.chat_view import chat_loop
from limbeck.runs.store import Run
from pairs import write_pair

TEXTS = ("日本語の質問", "Füße und Crème brûlée", "emoji 👩🏽‍💻 and é")

SCRIPT = """
import sys
from limbeck.cli import run_cli
recipe, folder = sys.argv[1:]
assert sys.stdout.encoding.lower() not in ("utf-8", "utf8"), sys.stdout.encoding
commands = (
    ["--help"],
    ["worth", "--help"],
    ["recipe", "explain", "beta"],
    ["doctor"],
    ["runs", "--workspace", folder],
    ["train", recipe, "--dry-run"],
    ["train", recipe],
    ["show", "tiny", "--workspace", folder],
    ["show", "tiny", "--workspace", folder, "--json"],
    ["recipe", "show", recipe],
    ["recipe", "schema"],
    ["worth", recipe, "--name", "asked", "--max-tokens", "4"],
    ["report", "asked", "--workspace", folder, "-o", folder + "/page.html"],
    ["export", "tiny", "--workspace", folder, "-o", folder + "/exported"],
)
for command in commands:
    code = run_cli(command)
    assert code == 0, (command, code)
"""


@pytest.mark.report("DL-07")
def test_a_run_in_the_locale_c_reads_and_writes_utf8_and_prints_to_a_pipe(tmp_path):
    template = tmp_path / "plain.jinja"
    template.write_text(
        "{% for message in messages %}«{{ message['content'] }}»<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}»{% endif %}",
        encoding="utf-8",
    )
    rows = [prompt_row(f"{text} {number}", answer=text) for number, text in enumerate(TEXTS * 4)]
    settings = {"held_out": 4, "steps": 1, "evaluate_every": 1, "template": "plain.jinja", "grader": "contains"}
    recipe = write_pair(tmp_path, rows=rows, **settings)
    kept = {name: value for name, value in os.environ.items() if name not in ("LANG", "LC_CTYPE", "PYTHONIOENCODING")}
    environment = {**kept, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-c", SCRIPT, str(recipe), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr.decode()
    printed = done.stdout.decode("ascii")
    events = [json.loads(line) for line in printed.splitlines() if line.startswith('{"')]
    assert [event["kind"] for event in events if "kind" in event].count("done") == 1
    assert "KL(student\\u2016teacher)" in printed
    run = Run.open(tmp_path / "runs" / "tiny")
    stored = {row["prompt"] for name in ("prompts-train", "prompts-held-out") for row in run.read_answers(name)}
    assert stored == {f"«{text} {number}»<|im_end|>»" for number, text in enumerate(TEXTS * 4)}
    assert TEXTS[0] in (run.path / "answers" / "prompts-train.jsonl").read_text(encoding="utf-8")
    assert TEXTS[0] in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert (tmp_path / "exported" / "model.safetensors").is_file()


@pytest.mark.report("DL-07")
@pytest.mark.parametrize(
    ("encoding", "answer"), [("ascii", b"\\xfc \\U0001f600\n"), ("latin-1", b"\xfc \\U0001f600\n")]
)
def test_a_conversation_in_any_encoding_is_read_as_utf8(monkeypatch, encoding, answer):
    typed = io.BytesIO("Füße 😀\n".encode() + b"half \xff\n")
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(typed, encoding=encoding, errors="surrogateescape"))
    monkeypatch.setattr(sys, "stdout", out)
    heard = []
    chat_loop(lambda text: heard.append(text) or ["ü ", "😀"])
    assert heard == ["Füße 😀", "half \ufffd"]
    assert out.buffer.getvalue() == answer * 2


@pytest.mark.report("DL-07")
@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_json_on_stdout_is_json_in_every_encoding(monkeypatch, encoding):
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", out)
    text = json.dumps({"text": "é 😀 \u2028"}, ensure_ascii=False) + "\n"
    print_json(text)
    printed = out.buffer.getvalue().decode(encoding)
    assert json.loads(printed) == json.loads(text)
    assert printed.count("\n") == 1
    assert (printed == text) == (encoding == "utf-8")
