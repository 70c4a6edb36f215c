"""What a reply means: labels, reasoning in all its forms, and replies that are none."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from limbeck.http import NoReply, Reply
from limbeck.teachers import reply as reply_module
from limbeck.teachers.reply import ChatFailure, ParsedReply, parse_reply, parse_stored_reply
from misbehaving_server import completion


def answer(message_or_content, **fields) -> ParsedReply:
    found = parse_reply(Reply(200, {}, json.dumps(completion(message_or_content, **fields)).encode()), "tiny")
    assert isinstance(found, ParsedReply)
    return found


@pytest.mark.report("HA-02")
def test_answers_cut_off_and_unknown_ends_are_told_from_whole_ones_by_their_finish_reason():
    ends = ["stop", "length", "length", "length", "length", None, "moon_phase", "stop", "eos", "max_tokens"]
    texts = ["whole"] * 10
    texts[1:3] = ["```python\nfor x in", "<think>\nFirst I"]
    answers = [answer(text, finish=end) for text, end in zip(texts, ends, strict=True)]
    labels = [one.label for one in answers]
    assert labels == ["ok", *["cut-off"] * 4, "unknown-end", "unknown-end", "ok", "ok", "cut-off"]


@pytest.mark.report("HA-03", "HA-13")
@pytest.mark.parametrize(
    ("content", "extra", "text", "reasoning", "label"),
    [
        (None, {"reasoning_content": "Long thoughts."}, "", "Long thoughts.", "empty"),
        ("", {"reasoning": "Long thoughts."}, "", "Long thoughts.", "empty"),
        (" \n ", {}, " \n ", "", "empty"),
        ([{"type": "text", "text": "Yes"}, {"type": "text", "text": "."}], {}, "Yes.", "", "ok"),
        ([], {}, "", "", "empty"),
        ("Yes.", {"reasoning_content": "Thoughts."}, "Yes.", "Thoughts.", "ok"),
        ("<think>\nThoughts.\n</think>\n\nYes.", {}, "Yes.", "Thoughts.", "ok"),
        ("<thinking>Thoughts.</thinking>Yes.", {}, "Yes.", "Thoughts.", "ok"),
        ("Thoughts.\n</think>\nYes.", {}, "Yes.", "Thoughts.", "ok"),
        ("<think>Thoughts.</think>", {}, "", "Thoughts.", "empty"),
        ("<think>\nThoughts without end. Yes.", {}, "", "Thoughts without end. Yes.", "unclosed-reasoning"),
        ("I think <b>so</b>.", {}, "I think <b>so</b>.", "", "ok"),
    ],
)
def test_reasoning_is_kept_apart_whatever_form_it_comes_in(content, extra, text, reasoning, label):
    found = answer(content, **extra)
    assert (found.text, found.reasoning, found.label) == (text, reasoning, label)


@pytest.mark.report("HA-03")
def test_thoughts_that_take_the_whole_length_are_no_answer():
    found = answer(None, finish="length", reasoning_content="Long thoughts.", usage=())
    assert (found.text, found.label, found.input_tokens, found.output_tokens) == ("", "cut-off", None, None)


@pytest.mark.report("HA-04")
def test_filtered_and_flagged_replies_are_labelled():
    assert answer("", finish="content_filter").label == "filtered"
    flagged = answer(None, refusal="I can't help with that.")
    assert (flagged.label, flagged.text) == ("refused", "I can't help with that.")


def test_the_model_that_replied_is_compared_with_the_one_that_was_asked():
    body = json.dumps({**completion(), "model": "served-name"}).encode()
    cases = {
        "served-name": "ok",
        "served": "ok",
        "org/served-name": "ok",
        "name": "other-model",
        "gpt-9": "other-model",
    }
    assert {model: parse_stored_reply(body, model, "ok").label for model in cases} == cases


def test_a_stored_reply_that_is_none_any_more_is_told_and_not_raised():
    assert parse_stored_reply(b"{}", "tiny", "ok") == ParsedReply("", "unreadable")
    assert parse_stored_reply(b"", "tiny", "oversize") == ParsedReply("", "oversize")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_no_body_breaks_the_reader(data):
    value = completion("An answer.", reasoning_content="x", tool_calls=[], refusal=None)
    for _ in range(data.draw(st.integers(0, 3))):  # put anything in any place
        place = data.draw(st.sampled_from(["choices", "usage", "model", "error", "choice", "message", "usage field"]))
        odd = data.draw(JSON)
        choice = value["choices"][0] if isinstance(value["choices"], list) and value["choices"] else {}
        if place in ("choices", "usage", "model", "error"):
            value[place] = odd
        elif place == "choice" and isinstance(choice, dict):
            choice[data.draw(st.sampled_from(["message", "finish_reason"]))] = odd
        elif place == "message" and isinstance(choice, dict) and isinstance(choice.get("message"), dict):
            choice["message"][data.draw(st.sampled_from(["content", "refusal", "reasoning", "tool_calls"]))] = odd
        elif place == "usage field" and isinstance(value["usage"], dict):
            value["usage"]["prompt_tokens"] = odd
    body = json.dumps(value).encode()
    body = body[: data.draw(st.integers(0, len(body)))] if data.draw(st.booleans()) else body
    outcome = parse_reply(Reply(data.draw(st.sampled_from([200, 200, 204, 302, 400, 429, 500])), {}, body), "tiny")
    if isinstance(outcome, ParsedReply) and outcome.label == "ok":
        assert outcome.text.strip()
        assert outcome.input_tokens is None or outcome.input_tokens >= 0


@given(st.binary(max_size=200), st.sampled_from([200, 401, 429, 503]))
def test_no_bytes_break_the_reader(body, status):
    assert isinstance(parse_reply(Reply(status, {}, body), "tiny"), ChatFailure)


def test_a_reply_longer_than_any_answer_closes_its_question():
    assert parse_reply(NoReply("oversize", "too long"), "tiny") == ParsedReply("", "oversize")


def test_the_page_lists_each_label_and_each_class_once():
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "hosted-teacher.md").read_text()
    listed = re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE)
    written = set(re.findall(r'"([a-z]+(?:-[a-z]+)*)"', Path(reply_module.__file__).read_text()))
    assert len(listed) == len(set(listed)) == 12 + 13
    told = reply_module.__doc__ or ""
    assert all(re.search(rf"(?<![\w-]){name}(?![\w-])", told) for name in listed)
    assert set(listed) - {"deadline", "unreachable"} <= written
