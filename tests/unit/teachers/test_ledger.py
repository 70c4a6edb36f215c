"""The ledger: bytes back as they were, torn ends, budgets in any order of events, several processes."""

from __future__ import annotations

import json
import os
import random
import stat
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limbeck.errors import UsageError
from limbeck.http import NoReply, Reply
from limbeck.teachers.ledger import FULL, NO_CAPS, Caps, Cost, Ledger, LedgerRequest

URL = "http://127.0.0.1:8000/v1"

WORST = Cost(1, 100, 0)
SPENT = Cost(1, 7, 0)


def question(text: str = "hello", sample: int = 0, limit: int = 10, worst: Cost = WORST) -> LedgerRequest:
    request = {"model": "tiny", "messages": [{"role": "user", "content": text}], "temperature": 1.0}
    return LedgerRequest(request, sample, limit, worst)


def store(ledger: Ledger, asked: LedgerRequest, body: bytes = b"{}", *, label: str = "ok", spent: Cost = SPENT) -> None:
    call = ledger.reserve(asked, 9.0)
    assert len(call) == 32
    ledger.record_reply(call, asked, Reply(200, {}, body), outcome="answered", spent=spent, label=label)


@given(body=st.binary(max_size=300))
@settings(max_examples=50, deadline=None)
def test_bytes_come_back_as_they_were(tmp_path_factory, body):
    folder = tmp_path_factory.mktemp("ledger")
    store(Ledger(folder, URL), question(), body)
    again = Ledger(folder, URL)
    start = again.find(question().key, 10)
    assert start is not None
    assert again.read(start) == ("ok", body)


def test_a_question_is_its_content():
    keys = {question().key, question("hello!").key, question(sample=1).key}
    other = question()
    keys |= {
        LedgerRequest({**other.body, **change}, 0, 10, other.worst).key for change in ({"seed": 1}, {"model": "big"})
    }
    assert len(keys) == 5
    assert question().key == question(limit=99, worst=Cost()).key
    system = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]}
    assert LedgerRequest({**other.body, **system}, 0, 10, other.worst).key not in keys


def test_two_servers_share_nothing_and_one_that_moves_keeps_its_answers_under_its_alias(tmp_path):
    store(Ledger(tmp_path, URL), question())
    assert Ledger(tmp_path, URL).find(question().key, 10) is not None
    assert Ledger(tmp_path, "http://127.0.0.1:8001/v1").find(question().key, 10) is None
    assert Ledger(tmp_path, "http://127.0.0.1:8000/other").find(question().key, 10) is None
    store(Ledger(tmp_path, URL, alias="our-server"), question())
    assert Ledger(tmp_path, "https://elsewhere.example.com/v1", alias="our-server").find(question().key, 10) is not None
    with pytest.raises(UsageError, match="not-allowed"):
        Ledger(tmp_path, URL, alias="../outside")


def test_each_account_pays_for_its_own_calls(tmp_path):
    store(Ledger(tmp_path, URL, account="a"), question())
    assert Ledger(tmp_path, URL, account="a").spent() == SPENT
    assert Ledger(tmp_path, URL, account="b").spent() == Cost()


@pytest.mark.report("HA-02")
def test_a_longer_limit_asks_again_only_what_was_cut_off(tmp_path):
    ledger = Ledger(tmp_path, URL)
    store(ledger, question("whole"))
    store(ledger, question("cut"), label="cut-off")
    assert ledger.find(question("whole").key, 20) is not None
    assert ledger.find(question("cut").key, 20) is None
    assert ledger.find(question("whole").key, 5) is None
    store(ledger, question("cut", limit=20), b"longer")
    start = ledger.find(question("cut").key, 20)
    assert start is not None
    assert ledger.read(start)[1] == b"longer"


def test_a_torn_last_line_is_as_if_it_had_not_been_written(tmp_path):
    ledger = Ledger(tmp_path, URL)
    store(ledger, question("a"))
    store(ledger, question("b"), spent=Cost(1, 9, 0))
    whole = ledger.path.read_bytes()
    for cut in range(len(whole) - 1, len(whole) - len(whole.split(b"\n")[3]) - 1, -7):
        ledger.path.write_bytes(whole[:cut])
        torn = Ledger(tmp_path, URL)
        assert (torn.find(question("a").key, 10) is None, torn.find(question("b").key, 10) is None) == (False, True)
        assert torn.spent() == Cost(2, 107, 0)  # the call of b counts at the most that it could cost
    store(torn, question("b"), spent=Cost(1, 9, 0))
    assert Ledger(tmp_path, URL).spent() == Cost(3, 116, 0)
    assert all(json.loads(line) for line in ledger.path.read_bytes().splitlines())


def test_only_its_owner_may_read_it(tmp_path):
    ledger = Ledger(tmp_path, URL)
    store(ledger, question())
    assert {stat.S_IMODE(path.stat().st_mode) for path in ledger.path.parent.iterdir()} == {0o600}
    assert stat.S_IMODE(ledger.path.parent.stat().st_mode) == 0o700


@given(seed=st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_no_order_of_calls_and_outcomes_goes_over_a_cap(tmp_path_factory, monkeypatch_module, seed):
    draw = random.Random(seed)
    caps = Caps(draw.choice([None, 12]), draw.choice([None, 900]), draw.choice([None, 5_000]))
    ledger = Ledger(tmp_path_factory.mktemp("ledger"), URL, caps=caps)
    open_calls, billed, refused = [], Cost(), 0
    for number in range(30):
        if draw.random() < 0.6:
            asked = question(str(number), worst=Cost(1, draw.randrange(1, 400), draw.randrange(1, 2_000)))
            call = ledger.reserve(asked, 9.0)
            refused += call == FULL
            open_calls += [(call, asked)] if call != FULL else []
        elif open_calls:
            call, asked = open_calls.pop(draw.randrange(len(open_calls)))
            spent = Cost(1, draw.randrange(asked.worst.tokens + 1), draw.randrange(asked.worst.nano + 1))
            billed = billed.plus(spent)
            ledger.record_reply(call, asked, NoReply("deadline", ""), outcome="deadline", spent=spent, label="")
        assert caps.allow(ledger.spent())
    most = billed
    for _, asked in open_calls:
        most = most.plus(asked.worst)
    assert ledger.spent() == most
    assert refused or caps == NO_CAPS or most.calls < 30


@pytest.fixture(scope="module")
def monkeypatch_module():
    """No waiting for the disk: thousands of entries, and none of them has to last."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


WRITER = """
import sys
from pathlib import Path
from limbeck.http import Reply
from limbeck.teachers.ledger import Caps, Cost, Ledger, LedgerRequest
ledger = Ledger(Path(sys.argv[1]), "http://127.0.0.1:8000/v1", caps=Caps(calls=90))
for number in range(60):
    asked = LedgerRequest({"messages": [str(number % 40), sys.argv[2] if number % 2 else ""]}, 0, 10, Cost(1, 10, 0))
    call = ledger.reserve(asked, 9.0)
    if len(call) == 32:
        reply = Reply(200, {}, b"x" * 5000)
        ledger.record_reply(call, asked, reply, outcome="answered", spent=Cost(1, 10, 0), label="ok")
"""


def test_several_processes_write_and_keep_one_budget(tmp_path):
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), name]) for name in "pqrs"]
    assert [writer.wait(60) for writer in writers] == [0] * 4
    ledger = Ledger(tmp_path, URL)
    lines = [json.loads(line) for line in ledger.path.read_bytes().splitlines()]
    # an even question is asked once, by whoever was first, an odd one once by each process: 100, of which 90 fit
    assert ledger.spent() == Cost(90, 900, 0)
    closed = [line["key"] for line in lines if line["kind"] == "outcome"]
    intents = [line["call"] for line in lines if line["kind"] == "intent"]
    assert len(closed) == len(intents) == len(set(intents)) == 90
