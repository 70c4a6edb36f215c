"""A hosted teacher against a server that misbehaves: classes, deadlines, storms, kills, budgets, keys."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from limbeck.errors import LimbeckError, Refusal, Stopped, UsageError
from limbeck.models.resolve import parse_ref
from limbeck.teachers import calls
from limbeck.teachers.gate import Gate
from limbeck.teachers.hosted import ChatFailure, HostedSettings, HostedTeacher, ParsedReply
from limbeck.teachers.ledger import Cost
from misbehaving_server import FORMS, MisbehavingServer, completion, error, hang, http, in_seconds

QUICK = {"num_attempts": 2, "first_wait_s": 0.01}
# Where no reply counts and only time ends it; long enough for one that does, on a busy machine.
IMPATIENT = {**QUICK, "attempt_s": 1.0, "deadline_s": 2.5}
SECRET = "sk-test-SECRET-1234"


def prompts(count: int, start: int = 0) -> list[list[dict[str, str]]]:
    return [[{"role": "user", "content": f"p{number}"}] for number in range(start, start + count)]


def teacher(workspace: Path, url: str, *, account: str = "run", environ=None, **fields) -> HostedTeacher:
    ref = parse_ref("openai:tiny", workspace=workspace)
    environ = {"XDG_CONFIG_HOME": str(workspace / "config"), **(environ or {})}
    return HostedTeacher(
        ref, HostedSettings(base_url=url, **fields), workspace=workspace, account=account, environ=environ
    )


def write(workspace: Path, url: str, asked=None, *, write=None, **fields) -> list[ParsedReply | ChatFailure]:
    one = teacher(workspace, url, **fields)
    write = {"samples": 1, **(write or {})}
    pairs = [(row, sample) for row in (prompts(1) if asked is None else asked) for sample in range(write["samples"])]
    del write["samples"]
    return list(one.generate(pairs, max_tokens=10, **write))


def labels(answers) -> list[str]:
    return [one.label if isinstance(one, ParsedReply) else one.kind for one in answers]


def stored(workspace: Path) -> dict[str, str]:
    """From prompt to the bytes that closed it, as the ledgers of a workspace have it."""
    lines = [
        json.loads(line)
        for path in workspace.glob("teachers/*/*.jsonl")
        for line in path.read_bytes().split(b"\n")[:-1]
    ]
    return {line["request"]["messages"][-1]["content"]: line["raw"] for line in lines if line.get("label")}


# Every form of the server: its label, the kind of its failure, or the code of what stops the writing.
LOST = {"hang": "deadline", "drip": "deadline"} | dict.fromkeys(
    ["reset in the body", "close at once", "no http", "length too long", "chunked stop"], "unreachable"
)
BROKEN = dict.fromkeys(
    [
        *("html", "200 with error", "200 with error text", "no choices", "choices null", "message without content"),
        *("no object", "empty body", "truncated json", "length too short", "compressed", "gzip bomb", "deep", "204"),
        *("sse without end", "sse cut in a character", "key twice"),
    ],
    "broken",
)
BUSY = {"429": "rate-limited", "500": "server-error", "503 with wait": "server-error", "408": "server-error"}
REJECTED = dict.fromkeys(["400", "413", "422"], "rejected")
STOPS = {
    **{"401": "unauthorized", "402": "quota", "403": "forbidden", "404": "unknown-model", "405": "unsupported"},
    **{"400 for the model": "unknown-model", "429 quota": "quota", "429 for an hour": "rate-limited"},
    "redirect": "redirected",
}
LABELS = {
    **{"length": "cut-off", "length in reasoning": "cut-off", "filtered": "filtered", "refusal field": "refused"},
    **dict.fromkeys(["finish null", "finish unknown", "finish a list"], "unknown-end"),
    **dict.fromkeys(["empty", "white space", "null", "null with reasoning", "reasoning field"], "empty"),
    **{"tool calls": "tool-call", "other model": "other-model", "20 MB": "oversize"},
    **{
        "bad utf-8": "bad-text",
        "lone surrogate": "bad-text",
        "nul": "bad-text",
        "think unclosed": "unclosed-reasoning",
    },
    **dict.fromkeys(
        ["polite refusal", "parts", "bad utf-8 elsewhere", "bom", "nan", "infinity", "usage missing"], "ok"
    ),
    **dict.fromkeys(["usage null", "usage negative", "usage lies", "dated model", "reasoning apart"], "ok"),
    **dict.fromkeys(["think block", "think only closed"], "ok"),
}
FAILURES = LOST | BROKEN | BUSY | REJECTED


def test_every_form_of_the_server_has_its_class():
    assert FAILURES.keys() | STOPS.keys() | LABELS.keys() == FORMS.keys()


@pytest.mark.report("HA-03", "HA-05", "HA-11", "HA-12")
@pytest.mark.parametrize("form", FORMS)
def test_each_form_ends_in_its_class_within_its_deadline_and_the_next_question_is_answered(form, tmp_path):
    """The question is in the middle of good ones; an answer is asked once, and again by nobody."""
    asked, ways = prompts(3), IMPATIENT if LOST.get(form) == "deadline" or form in BUSY else QUICK
    with MisbehavingServer(lambda seen: form if seen.prompt == "p1" else "good") as server:
        if form in STOPS:
            with pytest.raises(Stopped) as stopped:
                write(tmp_path, server.url, asked, concurrency=1, **ways)
            assert stopped.value.code == f"teacher.{STOPS[form]}"
            assert [seen.prompt for seen in server.seen] == ["p0", "p1"]
            assert stored(tmp_path).keys() == {"p0"}
        else:
            found = write(tmp_path, server.url, asked, concurrency=1, **ways)
            assert labels(found) == ["ok", (FAILURES | LABELS)[form], "ok"]
        if form in LABELS:
            assert write(tmp_path, server.url, asked, **ways) == found
            assert len(server.seen) == 3
        elif form in REJECTED:
            assert len(server.seen) == 3
        elif form in LOST | BROKEN:
            assert [seen.prompt for seen in server.seen] == ["p0", "p1", "p1", "p2"]
            assert isinstance(found[1], ChatFailure)
            assert found[1].text


def test_a_refused_connection_is_tried_again_and_costs_nothing(tmp_path):
    with MisbehavingServer() as server:
        pass
    one = teacher(tmp_path, server.url, **QUICK)
    assert labels(one.generate([(row, 0) for row in prompts(2)], max_tokens=10)) == ["unreachable"] * 2
    assert one.ledger.spent() == Cost()


@pytest.mark.report("HA-01")
def test_forty_prompts_under_a_storm_of_429_are_all_answered_once_and_nothing_is_sent_before_its_time(
    tmp_path, monkeypatch
):
    forms = [({"retry_after": "0.2"}, 0.2), ({"retry_after_ms": "200"}, 0.2), ({}, 0.0)] * 20
    forms[3], forms[6] = (in_seconds(1), 1.0), (in_seconds(1, -86_400), 1.0)  # the second by a clock that is a day late
    waits, told, opens_at = [], [], [0.0]
    enter, narrow = Gate.enter, Gate.narrow

    async def watched_enter(self, until):
        await enter(self, until)
        assert time.monotonic() >= opens_at[0], "sent before its time"

    def watched_narrow(self, sent_at, wait_s):
        told.append(wait_s)
        opens_at[0] = max(opens_at[0], time.monotonic() + wait_s)
        narrow(self, sent_at, wait_s)
        opens_at[0] = min(opens_at[0], self._opens_at)

    monkeypatch.setattr(Gate, "enter", watched_enter)
    monkeypatch.setattr(Gate, "narrow", watched_narrow)

    def script(seen):
        if seen.number % 5 == 1:
            headers, wait_s = forms[len(waits)]
            waits.append(wait_s)
            return http(b"", 429, **headers)
        return {12: "500", 20: "503 with wait"}.get(seen.number, "good")

    with MisbehavingServer(script, delay_s=0.03) as server:
        answers = write(tmp_path, server.url, prompts(40), concurrency=16, first_wait_s=0.02)
    assert [one.text for one in answers] == [f"You said p{number}" for number in range(40)]
    assert len(waits) >= 8
    assert len(server.seen) == 40 + len(waits) + 2
    # each wait was understood; a date says whole seconds, so it may be up to one less
    for wait_s in waits:
        assert any(wait_s - 1 <= each <= wait_s + 0.1 if wait_s == 1 else each >= wait_s for each in told)
    assert sum(each == pytest.approx(0.2) for each in told) >= waits.count(0.2)


def test_the_first_call_goes_alone_and_then_as_many_as_may(tmp_path):
    with MisbehavingServer(crowd=8) as server:
        write(tmp_path, server.url, prompts(40), concurrency=8)
    in_flight = [seen.in_flight for seen in server.seen]
    assert in_flight[:2] == [1, 1]
    assert max(in_flight) == 8


def test_a_429_halves_the_places_once_for_all_calls_in_flight_and_they_come_back_slowly():
    async def places(gate):
        """How many get in, one after the other, until one would have to wait."""
        with contextlib.suppress(TimeoutError):
            while True:
                await gate.enter(0.0)
        found = gate.num_in_flight
        for _ in range(found):
            gate.leave(ended=False)
        return found

    async def story():
        gate = Gate(8)
        assert await places(gate) == 1
        gate.widen()
        assert await places(gate) == 8
        sent_at = time.monotonic()
        for _ in range(3):  # three of the calls that were in flight together
            gate.narrow(sent_at, 0.0)
        assert await places(gate) == 4
        for _ in range(4):
            gate.widen()
        assert await places(gate) == 4
        gate.widen()
        assert await places(gate) == 5
        gate.narrow(time.monotonic(), 3600.0)
        assert await places(gate) == 0

    asyncio.run(story())


@pytest.mark.report("HA-07")
@pytest.mark.parametrize("form", ["401", "403", "404", "429 quota", "402"])
def test_what_all_questions_would_meet_stops_the_writing_after_a_handful_of_calls(form, tmp_path):
    with MisbehavingServer(lambda seen: form) as server:
        with pytest.raises(Stopped) as stopped:
            write(tmp_path, server.url, prompts(50), concurrency=8)
        assert len(server.seen) == 1
    said = {
        "401": "Incorrect API key",
        "403": "Country",
        "404": "does not exist",
        "402": "Insufficient",
        "429 quota": "quota",
    }
    assert said[form] in stopped.value.given
    assert stopped.value.exit_code == 75


@pytest.mark.report("HA-07", "LT-04")
def test_a_key_that_expires_keeps_what_was_paid_for_and_a_row_too_long_fails_alone(tmp_path):
    def script(seen):
        return "401" if seen.number >= 20 else "400" if seen.prompt == "p3" else "good"

    with MisbehavingServer(script, delay_s=0.02) as server:
        with pytest.raises(Stopped, match="unauthorized"):
            write(tmp_path, server.url, prompts(50), concurrency=8)
        assert len(server.seen) <= 28
        assert len(stored(tmp_path)) == 19
    with MisbehavingServer(lambda seen: "400" if seen.prompt == "p3" else "good") as again:
        found = labels(write(tmp_path, again.url, prompts(50), alias=alias_of(tmp_path)))
        assert found == ["rejected" if number == 3 else "ok" for number in range(50)]
        assert len(again.seen) == 31


def alias_of(workspace: Path) -> str:
    return next(workspace.glob("teachers/*")).name


@pytest.mark.parametrize("form", ["500", "empty", "422", "html"])
def test_the_breaker_stops_where_no_question_gets_a_usable_answer(form, tmp_path):
    with MisbehavingServer(lambda seen: form if seen.number else "good") as server:
        with pytest.raises(Stopped) as stopped:
            write(tmp_path, server.url, prompts(200), concurrency=4, **{**QUICK, "num_attempts": 1}, stop_after=10)
        assert stopped.value.code == "teacher.nothing-usable"
        assert 11 <= len(server.seen) <= 15


@pytest.mark.report("HA-04", "HA-03")
def test_samples_are_labelled_counted_and_each_asked_once(tmp_path):
    """Five samples of a prompt: whole, the same again, cut off, refused, whole; two rows of one prompt share them."""
    texts = ["A.", "A.", "B", "No.", "C."]

    def script(seen):
        number = seen.body["seed"] - 7
        if number == 3:
            return http(completion(None, refusal="No."))
        return http(completion(texts[number], finish="length" if number == 2 else "stop"))

    asked = [prompts(1)[0], prompts(1)[0]]
    with MisbehavingServer(script) as server:
        found = write(tmp_path, server.url, asked, write={"samples": 5, "seed": 7})
        assert len(server.seen) == 5
        assert [one.text for one in found] == texts * 2
        assert labels(found) == ["ok", "ok", "cut-off", "refused", "ok"] * 2
        assert write(tmp_path, server.url, asked, write={"samples": 5, "seed": 7}) == found
        assert len(server.seen) == 5


def test_what_is_sent_is_what_was_asked_for(tmp_path):
    with MisbehavingServer() as server:
        extra = {"limit_name": "max_completion_tokens", "parameters": {"top_p": 0.9}}
        write(tmp_path, server.url, write={"temperature": 0, "seed": 3}, **extra)
        write(tmp_path, server.url, write={"temperature": None, "seed": None})
    messages = {"model": "tiny", "messages": [{"role": "user", "content": "p0"}], "stream": False}
    full = {**messages, "max_completion_tokens": 10, "temperature": 0.0, "seed": 3, "top_p": 0.9}
    assert [seen.body for seen in server.seen] == [full, {**messages, "max_tokens": 10}]


@pytest.mark.report("HA-08")
def test_other_settings_are_other_questions_and_old_answers_are_never_mixed_in(tmp_path):
    with MisbehavingServer() as server:
        for _ in range(2):
            write(tmp_path, server.url, prompts(3))
            write(tmp_path, server.url, prompts(3), write={"temperature": 0.5})
            write(tmp_path, server.url, prompts(3), write={"seed": 1})
            write(tmp_path, server.url, [[{"role": "system", "content": "Be brief."}, *prompts(1)[0]]])
            write(tmp_path, server.url, prompts(3), parameters={"top_p": 0.9})
            write(tmp_path, server.url, prompts(3), alias="another-model-behind-it")
        assert len(server.seen) == 16


def test_when_all_is_stored_neither_server_nor_key_nor_approval_is_needed(tmp_path):
    with MisbehavingServer() as server:
        found = write(tmp_path, server.url, prompts(3))
    alias = alias_of(tmp_path)
    assert write(tmp_path, "https://moved.example.com/v1", prompts(3), alias=alias) == found
    with pytest.raises(Refusal, match="not-approved"):
        write(tmp_path, "https://moved.example.com/v1", prompts(4), alias=alias)


WRITER = """
import signal
import sys
from contextlib import closing
from pathlib import Path
from limbeck.models.resolve import parse_ref
from limbeck.teachers import calls
from limbeck.teachers.hosted import HostedSettings, HostedTeacher
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started the tests with it ignored
workspace, url, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
settings = HostedSettings(base_url=url, concurrency=16, max_calls=int(sys.argv[4]) if len(sys.argv) > 4 else None)
teacher = HostedTeacher(parse_ref("openai:tiny", workspace=workspace), settings, workspace=workspace, account="run")
asked = [([{"role": "user", "content": f"p{number}"}], 0) for number in range(count)]
for index, answer in enumerate(teacher.generate(asked, max_tokens=10)):
    print(index, answer.label, flush=True)
"""


def start_writer(workspace: Path, url: str, *arguments: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(workspace), url, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(condition, seconds: float = 300.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.002)


@pytest.mark.report("HA-08")
def test_a_writing_that_is_killed_three_times_asks_for_no_stored_answer_again(tmp_path):
    kept: set[str] = set()
    last = [0]  # the number of the last request that is answered

    def script(seen):
        return "good" if seen.number <= last[0] else "hang"

    with MisbehavingServer(script) as server:
        for kill, more in enumerate((90, 60, 130, 1000)):
            begun = len(server.seen)
            last[0] = begun + more
            writer = start_writer(tmp_path, server.url, 500)
            if kill < 3:
                wait_for(lambda: len(server.seen) > last[0] + 1)
                writer.send_signal(signal.SIGKILL)
            out, _ = writer.communicate(timeout=300)
            assert not kept & {seen.prompt for seen in server.seen[begun:]}
            kept = set(stored(tmp_path))
            assert kill == 3 or len(kept) < 500
        assert 500 <= len(server.seen) <= 500 + 3 * 16
    assert out.splitlines() == [f"{number} ok" for number in range(500)]
    assert len(kept) == 500


@pytest.mark.report("HA-11")
def test_an_interrupt_waits_for_no_reply_and_keeps_what_was_answered(tmp_path):
    held, waited_for = {"p3", "p8", "p15"}, []

    async def never(stream):
        await hang(stream)
        waited_for.append(stream)

    with MisbehavingServer(lambda seen: never if seen.prompt in held else "good") as server:
        writer = start_writer(tmp_path, server.url, 20)
        wait_for(lambda: len(stored(tmp_path)) == 17)
        writer.send_signal(signal.SIGINT)
        _, err = writer.communicate(timeout=300)
        assert not waited_for
    assert "KeyboardInterrupt" in err
    assert writer.returncode != 0
    assert stored(tmp_path).keys() == {f"p{number}" for number in range(20)} - held


@pytest.mark.report("HA-11")
def test_requests_in_flight_and_their_age_are_told_and_a_caller_may_stop_early(tmp_path, monkeypatch):
    monkeypatch.setattr(calls, "_REPORT_EVERY_S", 0.05)
    told: list[str] = []

    def on_progress(text: str) -> None:
        told.append(text)
        if "4 in flight" in text and float(text.split()[-2]) >= 0.2:
            raise KeyboardInterrupt

    with MisbehavingServer(lambda seen: "hang" if seen.prompt != "p0" else "good") as server:
        asked = [(row, 0) for row in prompts(20)]
        answers = teacher(tmp_path, server.url, concurrency=4).generate(asked, max_tokens=10, on_progress=on_progress)
        assert next(answers).label == "ok"
        with pytest.raises(KeyboardInterrupt):
            next(answers)
        assert len(server.seen) == 5
        with closing(teacher(tmp_path, server.url).generate(asked[:2], max_tokens=10)) as answers:
            assert next(answers).label == "ok"
    assert told[-1].startswith("1 of 20 requests finished")


@pytest.mark.parametrize("cap", ["tokens", "money", "calls"])
def test_sixty_four_calls_at_a_time_never_go_over_a_cap(cap, tmp_path):
    """The server bills what it likes up to the longest answer, and some replies fail after they were billed."""
    draw = random.Random(cap)
    bills = []

    def script(seen):
        billed = (draw.randrange(1, 50), draw.randrange(11))
        bills.append(billed)
        if seen.number % 7 == 3:
            return "reset in the body"
        return http(completion(usage={"prompt_tokens": billed[0], "completion_tokens": billed[1]}))

    caps = {
        "tokens": {"max_total_tokens": 12_000},
        "money": {"max_cost": 0.02, "input_price": 2.5, "output_price": 10.0},
        "calls": {"max_calls": 100},
    }[cap]
    with MisbehavingServer(script, crowd=17) as server:
        for _ in range(2):  # a second start has the same budget
            with pytest.raises(Stopped) as stopped:
                write(tmp_path, server.url, prompts(400), concurrency=64, first_wait_s=0.01, **caps)
            assert stopped.value.code == "teacher.budget"
        spent = teacher(tmp_path, server.url, **caps).ledger.spent()
    assert max(seen.in_flight for seen in server.seen) > 16
    assert len(stored(tmp_path)) >= 30
    assert sum(map(sum, bills)) <= spent.tokens
    if cap == "tokens":
        assert 12_000 - 330 < spent.tokens <= 12_000
    elif cap == "money":
        assert sum(2.5 * asked + 10.0 * written for asked, written in bills) * 1e-6 <= spent.nano * 1e-9 <= 0.02
        assert spent.nano * 1e-9 > 0.02 - 0.001
    else:
        assert len(bills) == spent.calls == 100


def test_two_processes_share_one_budget_and_each_others_answers(tmp_path):
    with MisbehavingServer(delay_s=0.02) as server:
        writers = [start_writer(tmp_path, server.url, 100, 150) for _ in range(2)]
        outs = [writer.communicate(timeout=60)[0] for writer in writers]
        assert 100 <= len(server.seen) <= 150
        assert any(len(out.splitlines()) == 100 for out in outs)


def test_a_budget_that_cannot_be_kept_is_refused_before_anything_is_sent(tmp_path):
    with MisbehavingServer() as server:
        with pytest.raises(ValidationError, match="requires both prices") as refused:
            write(tmp_path, server.url, max_cost=1.0, input_price=2.0)
        assert [(fault["type"], fault["loc"]) for fault in refused.value.errors()] == [
            ("recipe.price-missing", ("max_cost",))
        ]
        with pytest.raises(Stopped, match=r"teacher\.budget"):
            write(tmp_path, server.url, max_total_tokens=100)
        assert server.seen == []
    with pytest.raises(UsageError, match=r"teacher\.no-budget"):
        write(tmp_path, "https://api.openai.com/v1", environ={"OPENAI_API_KEY": SECRET})


CRASH = """
import sys
from pathlib import Path
from limbeck.models.resolve import parse_ref
from limbeck.teachers import calls
from limbeck.teachers.hosted import HostedSettings, HostedTeacher
workspace = Path(sys.argv[1])
settings = HostedSettings(base_url=sys.argv[2], num_attempts=2, first_wait_s=0.01, attempt_s=0.3, max_calls=99)
teacher = HostedTeacher(parse_ref("openai:tiny", workspace=workspace), settings, workspace=workspace, account="run")
print(vars(teacher)["_settings"], teacher)
made, begin = [], calls.Calls.__init__
def keep(self, *arguments):
    begin(self, *arguments)
    made.append(self)
calls.Calls.__init__ = keep
for row in teacher.generate([([{"role": "user", "content": f"p{number}"}], 0) for number in range(9)], max_tokens=10):
    print(row, vars(made[0]), vars(made[0]._client))
"""


@pytest.mark.report("HA-10")
def test_a_key_is_sent_and_written_nowhere_whatever_fails(tmp_path):
    """Good replies, lost ones, one that repeats the key, and at last a 401 that does, as an uncaught error."""

    def script(seen):
        echo = f"You sent {seen.headers['authorization']}, which is wrong."
        forms = {1: "hang", 2: "reset in the body", 4: http(completion(echo)), 6: "html", 8: error(echo, None, 401)}
        return forms.get(int(seen.prompt[1:]), "good")

    with MisbehavingServer(script) as server:
        (tmp_path / "config" / "limbeck").mkdir(parents=True)
        (tmp_path / "config" / "limbeck" / "endpoints").write_text(f"{server.url} OUR_KEY\n")
        environ = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path / "config"), "OUR_KEY": SECRET}
        command = [sys.executable, "-X", "dev", "-c", CRASH, str(tmp_path), server.url]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)
    assert "unauthorized" in done.stderr
    assert "Traceback" in done.stderr
    assert {seen.headers["authorization"] for seen in server.seen} == {f"Bearer {SECRET}"}
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert any(b"You sent Bearer ***" in data for data in written)
    for text in (*written, done.stdout.encode(), done.stderr.encode()):
        assert SECRET.encode() not in text


def test_a_key_that_is_approved_for_one_endpoint_is_not_sent_to_another(tmp_path):
    with MisbehavingServer() as ours, MisbehavingServer() as evil:
        (tmp_path / "config" / "limbeck").mkdir(parents=True)
        (tmp_path / "config" / "limbeck" / "endpoints").write_text(f"{ours.url} OUR_KEY\n")
        for server in (ours, evil):
            write(tmp_path, server.url, environ={"OUR_KEY": SECRET, "OPENAI_API_KEY": SECRET})
        assert ours.seen[0].headers["authorization"] == f"Bearer {SECRET}"
        assert "authorization" not in evil.seen[0].headers


@given(st.lists(st.sampled_from(sorted(FORMS.keys() - STOPS.keys() - {"20 MB", "429"})), max_size=8), st.integers(1, 8))
@settings(max_examples=15, deadline=None)
def test_any_mixture_of_forms_ends_with_each_row_in_its_class(tmp_path_factory, forms, concurrency):
    asked = prompts(len(forms))
    workspace = tmp_path_factory.mktemp("mixture")
    with MisbehavingServer(lambda seen: forms[int(seen.prompt[1:])]) as server:
        fields = {**QUICK, "attempt_s": 0.2, "num_attempts": 1, "deadline_s": 5.0}
        found = write(workspace, server.url, asked, concurrency=concurrency, **fields)
    assert labels(found) == [(FAILURES | LABELS)[form] for form in forms]


def test_a_disk_that_takes_nothing_stops_the_writing_and_says_so(tmp_path, monkeypatch):
    from limbeck.teachers import ledger

    def full(path, line, *, durable):
        if '"outcome"' in line and "p2" in line:
            raise ledger.write_failed(path, OSError(28, "No space left on device"))
        real(path, line, durable=durable)

    real = ledger.append_line
    monkeypatch.setattr(ledger, "append_line", full)
    with MisbehavingServer() as server, pytest.raises(LimbeckError, match="No space left"):
        write(tmp_path, server.url, prompts(5), concurrency=1)
    assert stored(tmp_path).keys() == {"p0", "p1"}
