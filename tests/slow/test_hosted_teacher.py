"""A real OpenAI-compatible server on the CPU, `transformers serve` with SmolLM2-135M-Instruct, as a hosted teacher."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from limbeck.models.resolve import parse_ref
from limbeck.teachers.hosted import ChatFailure, HostedSettings, HostedTeacher, ParsedReply

pytestmark = pytest.mark.slow
MISSING = [name for name in ("fastapi", "uvicorn", "openai") if find_spec(name) is None]
START_S = 90.0


@pytest.fixture(scope="module")
def url(cache):
    """The address of the server, which runs in the folder of the models, so `teacher` names one."""
    if MISSING:
        pytest.fail(f"transformers serve needs {', '.join(MISSING)}, which the extra `dev` installs")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-c", "from transformers.cli.transformers import main; main()", "serve", "teacher"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu", "--dtype", "float32"]
    server = subprocess.Popen(command, cwd=cache, env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "2"})
    try:
        end = time.monotonic() + START_S
        while True:
            assert server.poll() is None, "the server ended"
            assert time.monotonic() < end, "the server did not start"
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait(20)


def write(workspace: Path, url: str, model: str, max_tokens: int) -> list[ParsedReply | ChatFailure]:
    settings = HostedSettings(base_url=url, concurrency=2, attempt_s=60.0, num_attempts=2)
    teacher = HostedTeacher(
        parse_ref(f"openai:{model}", workspace=workspace), settings, workspace=workspace, account="run"
    )
    questions = ["What is the capital of France?", "Name a colour.", "What is 2 + 2?"]
    asked = [([{"role": "user", "content": text}], 0) for text in questions]
    return list(teacher.generate(asked, max_tokens=max_tokens, temperature=0.0))


def test_a_real_server_writes_answers_that_are_stored_and_not_asked_again(url, tmp_path):
    answers = write(tmp_path, url, "teacher", 64)
    assert all(isinstance(answer, ParsedReply) for answer in answers), answers
    assert "Paris" in answers[0].text
    assert {answer.label for answer in answers} <= {"ok", "cut-off"}
    assert answers[0].label == "ok"
    assert all(answer.input_tokens and answer.output_tokens for answer in answers)
    elsewhere = write(tmp_path, "http://127.0.0.1:9/v1", "teacher", 64)  # another endpoint shares nothing
    assert [failure.kind for failure in elsewhere] == ["unreachable"] * 3
    assert write(tmp_path, url, "teacher", 64) == answers
    cut = write(tmp_path, url, "teacher", 2)
    assert [answer.label for answer in cut] == ["cut-off"] * 3


def test_a_model_that_the_real_server_does_not_have_gets_no_answer(url, tmp_path):
    failures = write(tmp_path, url, "gpt-99", 8)
    assert [failure.kind for failure in failures] == ["rejected"] * 3
    assert "gpt-99" in failures[0].text
