"""The one client: which endpoints are approved, where keys go, deadlines, and what a server may ask to wait."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limbeck.errors import LimbeckError, Refusal, UsageError
from limbeck.http import Endpoint, HttpClient, NoReply, Reply, approve_endpoint, plain_address, retry_after_s
from misbehaving_server import MisbehavingServer, error, http

SECRET = "sk-test-SECRET-1234"


@pytest.fixture
def approve(tmp_path):
    """Approve lines of text; gives the environment."""

    def write(lines: str, **variables: str) -> dict[str, str]:
        (tmp_path / "limbeck").mkdir(exist_ok=True)
        (tmp_path / "limbeck" / "endpoints").write_text(lines)
        return {"XDG_CONFIG_HOME": str(tmp_path), **variables}

    return write


def post(endpoint: Endpoint, path: str = "/x", within_s: float = 2.0) -> Reply | NoReply:
    async def once() -> Reply | NoReply:
        async with HttpClient(endpoint, num_connections=1) as client:
            return await client.post(path, b'{"messages": [{"content": "hello"}]}', within_s=within_s)

    return asyncio.run(once())


@pytest.mark.parametrize(
    "url",
    [
        *("", "api.openai.com/v1", "ftp://h/v1", "file:///etc/passwd", "http://", "http://h:0/", "http://h:70000/"),
        *("https://user:sk-test-SECRET@h/v1", "https://sk-test-SECRET@h", "https://h/v1?api-key=sk-test-SECRET"),
        *("https://h/v1#sk-test-SECRET", "http://u:sk-test-SECRET\n@h/", "//h/v1", "http://[::1/v1"),
    ],
)
def test_an_address_that_is_none_or_holds_a_secret_is_refused_without_repeating_it(url):
    with pytest.raises(UsageError, match="not a valid address") as caught:
        approve_endpoint(url, {})
    assert caught.value.code == "http.address"
    assert "SECRET" not in f"{caught.value!r} {caught.value.__cause__} {caught.value.__context__}"


@pytest.mark.parametrize(
    "url",
    [
        *("https://api.example.com/v1", "http://api.openai.com/v1", "https://api.openai.com:8443/v1"),
        *("https://api.openai.com.evil.test/v1", "http://10.0.0.5:8000", "http://169.254.169.254/latest/meta-data"),
        *(
            "http://2130706433/",
            "http://0x7f.1/",
            "http://127.1/",
            "http://[::ffff:10.0.0.1]/",
            "http://localhost.evil.test",
        ),
        *("http://0.0.0.0:8000", "http://[fe80::1]/", "http://metadata.google.internal/"),
    ],
)
def test_no_prompt_and_no_key_goes_to_an_address_that_the_user_has_not_approved(url, approve):
    with pytest.raises(Refusal) as caught:
        approve_endpoint(url, approve("https://api.other.com OTHER_KEY\n", OPENAI_API_KEY=SECRET, OTHER_KEY=SECRET))
    assert caught.value.code == "http.not-approved"
    assert "limbeck/endpoints" in caught.value.fix
    assert SECRET not in str(caught.value)


def test_a_key_goes_to_the_endpoint_that_it_was_approved_for_and_to_no_other(approve):
    lines = "# mine\nhttps://api.example.com EXAMPLE_KEY  # paid by the team\n\nhttp://10.0.0.5:8000\n"
    environ = approve(lines, EXAMPLE_KEY=f" {SECRET}\n", OPENAI_API_KEY="sk-openai")
    found = approve_endpoint("https://API.example.com:443/v1/", environ)
    assert (found.url, found.key, found.is_local) == ("https://api.example.com/v1", SECRET, False)
    assert approve_endpoint("https://api.openai.com/v1", environ).key == "sk-openai"
    assert approve_endpoint("http://10.0.0.5:8000", environ).key is None
    for local in ("http://localhost:8000/v1", "http://127.0.0.1/v1", "http://[::1]:1/v1"):
        assert approve_endpoint(local, environ) == Endpoint(plain_address(local), True, None)
    assert SECRET not in repr(found)


@pytest.mark.parametrize(
    ("key", "says"),
    [
        (None, "is not set"),
        (" ", "is not set"),
        ("a b", "spaces or characters"),
        ("a\nb", "spaces or characters"),
        ("ké", "spaces or characters"),
    ],
)
def test_a_key_that_is_missing_or_none_is_told_by_the_name_of_its_variable(key, says):
    with pytest.raises(UsageError, match=says) as caught:
        approve_endpoint("https://api.openai.com/v1", {} if key is None else {"OPENAI_API_KEY": key})
    assert "OPENAI_API_KEY" in caught.value.given
    assert not key or not key.strip() or key not in str(caught.value)


@pytest.mark.parametrize("line", ["https://h A B", "https://h sk-test-SECRET", "example.com KEY"])
def test_a_broken_line_of_the_file_of_endpoints_is_told_and_a_key_in_it_is_not_repeated(line, approve):
    with pytest.raises(UsageError) as caught:
        approve_endpoint("https://h", approve(f"http://localhost\n{line}\n"))
    assert "SECRET" not in str(caught.value)


def test_redirects_are_not_followed_and_the_key_goes_nowhere_else():
    with MisbehavingServer() as other, MisbehavingServer(lambda seen: redirect) as server:
        redirect = http(b"", 307, location=other.url + "/chat/completions")
        reply = post(Endpoint(server.url, True, SECRET))
    assert isinstance(reply, Reply)
    assert reply.status == 307
    assert server.seen[0].headers["authorization"] == f"Bearer {SECRET}"
    assert other.seen == []


@pytest.mark.parametrize("status", [200, 401])
def test_a_key_that_the_server_repeats_is_hidden_before_anybody_reads_the_reply(status):
    with MisbehavingServer(lambda seen: error(f"{seen.headers['authorization']} is wrong", None, status)) as server:
        reply = post(Endpoint(server.url, True, SECRET))
    assert isinstance(reply, Reply)
    assert b"Bearer *** is wrong" in reply.body
    assert SECRET.encode() not in reply.body


def test_a_short_word_as_key_leaves_a_good_answer_as_it_is():
    with MisbehavingServer(lambda seen: http(b"EMPTY words")) as server:
        reply = post(Endpoint(server.url, True, "EMPTY"))
    assert isinstance(reply, Reply)
    assert reply.body == b"EMPTY words"


@pytest.mark.parametrize("form", ["hang", "drip"])
def test_the_deadline_is_for_the_whole_exchange(form):
    with MisbehavingServer(lambda seen: form) as server:
        reply = post(Endpoint(server.url, True), within_s=0.3)
    assert isinstance(reply, NoReply)
    assert (reply.why, reply.sent) == ("deadline", True)


def test_an_error_of_the_connection_is_a_text_and_says_whether_the_request_was_sent():
    with MisbehavingServer() as server:
        pass
    lost = post(Endpoint(server.url, True, SECRET))
    assert isinstance(lost, NoReply)
    assert (lost.why, lost.sent) == ("unreachable", False)
    assert SECRET not in lost.text


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({}, None),
        ({"retry-after": "2"}, 2.0),
        ({"retry-after": " 0.5 "}, 0.5),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:05 GMT", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 5.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:27:00 GMT", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 0.0),
        *[
            ({"retry-after": odd}, None)
            for odd in ("", "-1", "nan", "inf", "1e9", "soon", "٣", "1" * 400, "2026-10-21")
        ],
    ],
)
def test_the_wait_that_a_server_asks_for_is_read_in_all_its_forms(headers, wait_s):
    assert retry_after_s(headers) == wait_s


@given(seconds=st.integers(-(10**6), 10**6), clock=st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1)))
def test_a_date_is_read_against_the_servers_own_clock(seconds, clock):
    now = clock.replace(microsecond=0, tzinfo=UTC)
    dates = {"date": format_datetime(now), "retry-after": format_datetime(now + timedelta(seconds=seconds))}
    assert retry_after_s(dates) == max(seconds, 0)


@given(st.dictionaries(st.sampled_from(["retry-after", "retry-after-ms", "date"]), st.text(max_size=30)))
def test_no_header_breaks_the_reader(headers):
    wait_s = retry_after_s(headers)
    assert wait_s is None or 0 <= wait_s < float("inf")


@given(st.text())
def test_no_text_is_taken_for_an_approved_endpoint(url):
    with pytest.raises(LimbeckError):
        approve_endpoint(url, {"XDG_CONFIG_HOME": "/nowhere"})
