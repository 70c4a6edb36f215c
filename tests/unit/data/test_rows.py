"""Rows: what is read, what is set aside, and how errors are reported."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import prompt_row, write_rows
from limbeck.data.prompt import Message
from limbeck.data.row_errors import RowErrors
from limbeck.data.rows import read_rows
from limbeck.errors import DataError


def error_of(path: Path, text: str | bytes) -> DataError:
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
    with pytest.raises(DataError) as raised:
        read_rows(path)
    return raised.value


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tickets.jsonl"


def test_the_three_forms_of_a_row_are_the_same_conversation(path: Path) -> None:
    turn = {"role": "user", "content": "Hi"}
    rows = [{"prompt": [turn]}, {"prompt": "Hi"}, {"messages": [turn, {"role": "assistant", "content": "Hello"}]}]
    read = read_rows(write_rows(path, rows))
    assert [row.messages for row in read.rows] == [(Message("user", "Hi"),)] * 3
    assert len({row.content_hash for row in read.rows}) == 1
    assert [row.reference for row in read.rows] == [None, None, "Hello"]
    assert [row.source for row in read.rows] == ["tickets.jsonl:1", "tickets.jsonl:2", "tickets.jsonl:3"]
    assert "Rows that repeat the prompt of an earlier row: 2 of 3." in read.notes
    assert read.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_content_hash_tells_roles_and_turns_apart(path: Path) -> None:
    rows = [
        prompt_row("ab"),
        prompt_row("b", system="a"),
        {"messages": [{"role": r, "content": c} for r, c in (("user", "a"), ("assistant", "b"), ("user", "c"))]},
    ]
    assert len({row.content_hash for row in read_rows(write_rows(path, rows)).rows}) == 3


@pytest.mark.report("DC-05")
def test_prompt_only_rows_are_fine_and_references_are_set_aside(path: Path) -> None:
    prompt_only = read_rows(write_rows(path, [prompt_row(f"question {i}") for i in range(20)]))
    assert (len(prompt_only.rows), prompt_only.notes) == (20, ())
    assert all(row.reference is None for row in prompt_only.rows)
    rows = [prompt_row("q", **{name: f"by {name}"}) for name in ("completion", "answer", "ideal", "response")]
    rows.append(prompt_row("q", completion=[{"role": "assistant", "content": "by turn"}]))
    rows.append({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "by messages"}]})
    rows.append(prompt_row("q", answer=None))
    read = read_rows(write_rows(path, rows))
    assert [row.reference for row in read.rows] == [
        "by completion",
        "by answer",
        "by ideal",
        "by response",
        "by turn",
        "by messages",
        None,
    ]
    assert all(row.messages == (Message("user", "q"),) for row in read.rows)
    assert "6 rows have a reference answer; only supervised training and graders use it." in read.notes


def test_other_columns_are_kept_and_named(path: Path) -> None:
    read = read_rows(write_rows(path, [prompt_row("q", id=7, tags=["a"]), prompt_row("r", id="x")]))
    assert [dict(row.extra) for row in read.rows] == [{"id": 7, "tags": ["a"]}, {"id": "x"}]
    assert read.notes == ("Columns that are kept with their rows but are not part of the prompt: id (2), tags (1).",)


def test_an_empty_system_text_is_kept(path: Path) -> None:
    turns = [{"role": "system", "content": ""}, {"role": "user", "content": "How so?"}]
    read = read_rows(write_rows(path, [{"prompt": turns}]))
    assert read.rows[0].messages == (Message("system", ""), Message("user", "How so?"))


# -- the file --------------------------------------------------------------------------------------


def test_mark_line_ends_and_blank_lines_change_nothing(path: Path) -> None:
    lines = [json.dumps(prompt_row(f"Füße {i}"), ensure_ascii=False) for i in range(3)]
    plain = "\n".join(lines) + "\n"
    path.write_text(plain, encoding="utf-8", newline="")
    expected = [row.messages for row in read_rows(path).rows]
    for text, sources in (
        ("\ufeff" + plain, [1, 2, 3]),
        (plain.replace("\n", "\r\n"), [1, 2, 3]),
        (f"\n{lines[0]}  \r\n\r\n{lines[1]}\n \n{lines[2]}", [2, 4, 6]),
    ):
        path.write_text(text, encoding="utf-8", newline="")
        read = read_rows(path)
        assert [row.messages for row in read.rows] == expected
        assert [row.source for row in read.rows] == [f"tickets.jsonl:{line}" for line in sources]


@pytest.mark.report("DL-01")
def test_a_byte_order_mark_changes_nothing_not_even_the_hash(path: Path) -> None:
    text = "".join(json.dumps(prompt_row(f"Füße {i}", id=i), ensure_ascii=False) + "\n" for i in range(5))
    read = []
    for encoding in ("utf-8", "utf-8-sig"):
        path.write_bytes(text.encode(encoding))
        read.append(read_rows(path))
    assert read[0] == read[1]
    assert [row.extra for row in read[1].rows] == [{"id": i} for i in range(5)]


@pytest.mark.report("DL-01")
@pytest.mark.parametrize("name", ["tickets.jsonl", "tickets.csv"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_utf16_is_refused_by_its_name(tmp_path: Path, name: str, encoding: str) -> None:
    text = json.dumps(prompt_row("Füße")) if name.endswith("jsonl") else "prompt,answer\nFüße,ja\n"
    error = error_of(tmp_path / name, text.encode(encoding))
    assert (error.code, "UTF-16" in error.given, "UTF-8" in error.fix) == ("data.format-unsupported", True, True)


@pytest.mark.report("DL-02")
def test_what_a_field_holds_in_other_rows_and_their_order_change_nothing(path: Path) -> None:
    rows = [
        prompt_row(f"q {i}", metadata=None if i < 11_000 else "text", id=i if i % 3 else str(i)) for i in range(12_000)
    ]
    known = {row.messages: row.extra for row in read_rows(write_rows(path, rows)).rows}
    assert len(known) == 12_000
    assert known[Message("user", "q 11999"),] == {"metadata": "text", "id": 11999}
    assert {row.messages: row.extra for row in read_rows(write_rows(path, reversed(rows))).rows} == known
    rows[11_499] = {"prompt": [{"role": "user", "content": [{"type": "text", "text": "in parts"}]}]}
    parts = read_rows(write_rows(path, rows)).rows
    assert parts[11_499].messages == (Message("user", "in parts"),)
    rows[11_499] = {"prompt": [{"role": "user", "content": [{"type": "image", "text": "in parts"}]}]}
    told = r'tickets\.jsonl:11500, prompt\[0\]\.content\[0\]: the part has the type "image"'
    with pytest.raises(DataError, match=told):
        read_rows(write_rows(path, rows))


@pytest.mark.report("DL-12")
def test_crlf_blank_lines_and_spaces_are_read_and_broken_lines_named(path: Path) -> None:
    lines = [json.dumps(prompt_row(f"question {i}")) for i in range(20)]
    spaced = [*lines[:7], "", *(f"{line}  " for line in lines[7:15]), " ", *lines[15:]]
    path.write_text("\r\n".join(spaced) + "\r\n", encoding="utf-8", newline="")
    assert [row.messages[0].content for row in read_rows(path).rows] == [f"question {i}" for i in range(20)]
    broken = "\n".join([*lines[:11], lines[11].replace('"role"', "role"), *lines[12:]]) + "\n"
    assert "tickets.jsonl:12: invalid JSON: Expecting property name" in error_of(path, broken).given
    torn = "\n".join(lines)[:-9]
    assert "tickets.jsonl:20: invalid JSON: Unterminated string" in error_of(path, torn).given


def test_line_separators_inside_a_text_cut_nothing(path: Path) -> None:
    text = "one\u2028two\u0085three\x0bfour\x1cfive\u2029six"
    row = json.dumps({"prompt": text}, ensure_ascii=False)
    path.write_bytes(f"{row}\n{row}\n".encode())
    assert [r.messages[0].content for r in read_rows(path).rows] == [text, text]


@given(st.lists(st.text(alphabet=st.characters(exclude_categories=["Cs"])).filter(str.strip), min_size=1, max_size=5))
def test_any_text_comes_back_unchanged(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    file = tmp_path_factory.mktemp("rows") / "any.jsonl"
    read = read_rows(write_rows(file, [{"prompt": text} for text in texts]))
    assert [row.messages[0].content for row in read.rows] == texts


def test_rows_printed_over_several_lines_are_read(path: Path) -> None:
    rows = [prompt_row("one", id=1), prompt_row("two", id=2)]
    path.write_text("\n".join(json.dumps(row, indent=2) for row in rows), encoding="utf-8")
    read = read_rows(path)
    assert [row.messages[0].content for row in read.rows] == ["one", "two"]
    assert [row.source for row in read.rows] == ["tickets.jsonl[0]", "tickets.jsonl[1]"]


@pytest.mark.report("DL-12")
@pytest.mark.parametrize("indent", [None, 1])
def test_one_json_array_is_read(path: Path, indent: int | None) -> None:
    path.write_text(json.dumps([prompt_row("one"), prompt_row("two")], indent=indent) + "\n", encoding="utf-8")
    read = read_rows(path)
    assert [row.messages[0].content for row in read.rows] == ["one", "two"]
    assert [row.source for row in read.rows] == ["tickets.jsonl[0]", "tickets.jsonl[1]"]


def test_a_broken_array_says_where_it_breaks(path: Path) -> None:
    error = error_of(path, '[\n{"prompt": "a"},\n{"prompt": "b"}\n{"prompt": "c"}]')
    assert error.code == "data.json-invalid"
    assert "tickets.jsonl:4: invalid JSON: Expecting ',' delimiter at column 1" in error.given
    assert "tickets.jsonl:3: invalid JSON: Expecting value" in error_of(path, '\n\n[{"prompt": "a"}] x').given
    assert (
        "tickets.jsonl:1: invalid JSON: Expecting ',' delimiter"
        in error_of(path, '[{"prompt": "a"}, {"prompt": "b"}').given
    )


def test_errors_in_an_array_are_named_by_place_and_field(path: Path) -> None:
    error = error_of(path, '[{"prompt": "a", "x": NaN},\n{"prompt": "b", "x": {"y": 1, "y": 2}},\n{"prompt": ""}]')
    assert error.code == "data.rows-faulty"
    assert "tickets.jsonl[0], x: the value is NaN" in error.given
    assert 'tickets.jsonl[1], x: the key "y" appears more than once' in error.given
    assert "tickets.jsonl[2], prompt: the text is" in error.given


def test_a_bad_byte_is_named_with_row_and_place(path: Path) -> None:
    error = error_of(path, b'{"prompt": "a"}\n{"prompt": "caf\xe9"}\n')
    assert error.code == "data.not-utf8"
    # the row has 12 bytes before the text and "caf" before the byte: the 16th of the row
    assert "tickets.jsonl:2: byte 16 is 0xe9, which is not UTF-8" in error.given


@pytest.mark.report("DL-12")
@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "data.file-empty"),
        (b"\xef\xbb\xbf \r\n\n", "data.file-empty"),
        (b"[]", "data.file-empty"),
        ('{"prompt": "a"}'.encode("utf-16"), "data.format-unsupported"),
        ('{"prompt": "a"}'.encode("utf-16-le"), "data.format-unsupported"),
    ],
)
def test_files_of_another_kind_are_refused(path: Path, content: bytes, code: str) -> None:
    assert error_of(path, content).code == code


def test_a_csv_a_folder_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "tickets.csv").write_text("prompt\nhi\n")
    (tmp_path / "tickets.jsonl").write_text('{"prompt": "a"}\n')
    for name, code, part in (
        ("tickets.csv", "data.format-unsupported", "is a table (.csv), not JSONL"),
        (".", "data.file-missing", "is a folder"),
        ("tickts.jsonl", "data.file-missing", "(nearest: tickets.jsonl"),
        ("nowhere/rows.jsonl", "data.file-missing", "There is no file "),
    ):
        with pytest.raises(DataError) as raised:
            read_rows(tmp_path / name)
        assert raised.value.code == code
        assert part in raised.value.given


@pytest.mark.report("DL-06")
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cells.csv", 'prompt,answer\r\n"one\ntwo\n\nfour, ""five""\nsix",yes\r\nlast,no'),
        ("open.csv", "prompt,answer\n" + "a,b\n" * 39 + '"open,b\n' + "a,b\n" * 5),
        ("semicolons.csv", "prompt;answer\na;b\n"),
        ("tabs.tsv", "prompt\tanswer\na\tb\n"),
        ("frame.parquet", "PAR1"),
        ("rows.jsonl.gz", "\x1f\x8b"),
    ],
)
def test_another_format_is_refused_with_what_it_is_and_how_to_convert_it(tmp_path: Path, name: str, text: str) -> None:
    error = error_of(tmp_path / name, text)
    assert error.code == "data.format-unsupported"
    assert f"({Path(name).suffix}), not JSONL" in error.given
    assert error.parameters["suffix"] == Path(name).suffix
    assert ("Decompress" if name.endswith(".gz") else "pandas.read_") in error.fix


@pytest.mark.report("DL-06")
def test_a_table_under_the_name_of_rows_is_never_one_column(path: Path) -> None:
    for text in ("prompt;answer\na;b\n", '"prompt";"answer"\n"a";"b"\n', '"prompt"\n"a"\n'):
        assert error_of(path, text).code in ("data.json-invalid", "data.row-not-object")


# -- errors ----------------------------------------------------------------------------------------

USER = '{"role": "user", "content": "a"}'


@pytest.mark.parametrize(
    ("row", "code", "place"),
    [
        ('{"prompt": ""}', "data.content-empty", ', prompt: the text is ""'),
        ('{"prompt": " \\n"}', "data.content-empty", ", prompt: "),
        ('{"prompt": []}', "data.conversation-end", ", prompt: prompt contains no turn to answer"),
        ('{"prompt": 42}', "data.field-type", ", prompt: the value is 42"),
        ('{"messages": "hi"}', "data.field-type", ', messages: the value is "hi"'),
        ('{"messages": null}', "data.field-missing", "; the row has: messages;"),
        (
            '{"promt": "a"}',
            "data.field-missing",
            ", prompt: no column contains a prompt; the row has: promt; expected prompt or messages",
        ),
        ("{}", "data.field-missing", "the row has: (none);"),
        (USER, "data.field-missing", "the row has: role, content;"),
        (
            f'{{"prompt": "a", "messages": [{USER}]}}',
            "data.field-ambiguous",
            "several columns contain a prompt: prompt, messages; expected exactly one",
        ),
        ('["a"]', "data.row-not-object", ""),
        ('"a"', "data.row-not-object", 'the row is "a"'),
        ('{"prompt": ["a"]}', "data.field-type", ', prompt[0]: the message is "a"'),
        ('{"prompt": [{"role": "user"}]}', "data.field-missing", ", prompt[0].content: "),
        ('{"prompt": [{"content": "a"}]}', "data.field-missing", ", prompt[0].role: "),
        (
            '{"prompt": [{"role": "Assistant", "content": "a"}]}',
            "data.role-unknown",
            "expected one of: system, user, assistant",
        ),
        ('{"prompt": [{"role": "developer", "content": "a"}]}', "data.role-unknown", 'the role is "developer"'),
        ('{"prompt": [{"role": 1, "content": "a"}]}', "data.role-unknown", "the role is 1"),
        ('{"prompt": [{"role": "user", "content": true}]}', "data.field-type", "the content is true"),
        ('{"prompt": [{"role": "user", "content": []}]}', "data.content-empty", ', prompt[0].content: the text is ""'),
        ('{"prompt": [{"role": "user", "content": ["a"]}]}', "data.part-unsupported", '.content[0]: the part is "a"'),
        (
            '{"prompt": [{"role": "user", "content": [{"type": "text", "text": null}]}]}',
            "data.part-unsupported",
            'content[0]: the part is {"type": "text", "text": null}',
        ),
        ('{"prompt": [{"role": ["user"], "content": "a"}]}', "data.role-unknown", 'the role is ["user"]'),
        ('{"prompt": [{"role": "user", "content": null}]}', "data.field-type", "the content is null"),
        (
            '{"prompt": [{"role": "user", "content": [{"type": "image", "url": "x"}]}]}',
            "data.part-unsupported",
            ', prompt[0].content[0]: the part has the type "image"; expected text parts only',
        ),
        (
            f'{{"prompt": [{USER}, {{"role": "assistant", "content": "b"}}]}}',
            "data.conversation-end",
            "(put a reference answer in messages",
        ),
        (f'{{"prompt": [{USER}, {{"role": "system", "content": "b"}}]}}', "data.conversation-end", "the role system"),
        (
            '{"messages": [{"role": "assistant", "content": "b"}]}',
            "data.conversation-end",
            "messages contains no turn",
        ),
        (f'{{"messages": [{USER}, {{"role": "assistant", "content": " "}}]}}', "data.content-empty", "messages[1]"),
        (
            f'{{"messages": [{USER}, {{"role": "assistant", "content": "b", "tool_calls": [1]}}]}}',
            "data.field-unsupported",
            ", messages[1].tool_calls: ",
        ),
        ('{"prompt": "a", "tools": [{"name": "f"}]}', "data.field-unsupported", ", tools: "),
        ('{"prompt": "a", "answer": 42}', "data.reference-invalid", ", answer: the reference answer is 42"),
        (f'{{"prompt": "a", "answer": [{USER}]}}', "data.reference-invalid", "one assistant turn"),
        (
            '{"prompt": "a", "answer": "b", "ideal": "c"}',
            "data.field-ambiguous",
            "reference answers: answer, ideal;",
        ),
        ('{"prompt": "a", "prompt": "b"}', "data.key-repeated", 'the key "prompt" appears more than once'),
        ('{"prompt": "a", "x": {"y": 1, "y": 2}}', "data.key-repeated", ', x: the key "y" appears more than once'),
        ('{"prompt": "a", "x": NaN}', "data.number-not-finite", ", x: the value is NaN"),
        ('{"prompt": "a", "x": -Infinity}', "data.number-not-finite", "the value is -Infinity"),
        ('{"prompt": "half \\ud83d"}', "data.lone-surrogate", ", prompt: half of a surrogate pair, \\ud83d, at char"),
        ('{"prompt": "a", "x": ["\\ude00"]}', "data.lone-surrogate", ", x[0]: "),
        ('{"prompt": "a", "\\ude00": 1}', "data.lone-surrogate", "a key of the row"),
        ('{"prompt": "a"} {"prompt": "b"}', "data.json-invalid", "Extra data at column 17"),
        ("{'prompt': 'a'}", "data.json-invalid", "invalid JSON: Expecting property name enclosed in double quotes"),
        ("prompt,answer", "data.json-invalid", "invalid JSON: Expecting value"),
        ('{"prompt": "a', "data.json-invalid", "invalid JSON: Unterminated string"),
        ('{"prompt": ' + "[" * 100_000, "data.json-invalid", ""),
    ],
)
def test_an_error_is_named_with_row_and_field(path: Path, row: str, code: str, place: str) -> None:
    error = error_of(path, f'{{"prompt": "fine"}}\n{row}')
    assert error.code == code
    assert error.given.startswith("tickets.jsonl has 1 invalid row (1 error):\n  tickets.jsonl:2")
    assert place in error.given


@pytest.mark.report("DC-01")
def test_text_parts_are_one_text_and_any_other_part_is_named_by_row_message_and_place(path: Path) -> None:
    def turn(*parts: object, role: str = "user") -> dict[str, object]:
        return {"role": role, "content": list(parts)}

    def text(words: str) -> dict[str, str]:
        return {"type": "text", "text": words}

    rows = [
        {"prompt": [turn(text("hi"))]},
        {"prompt": [turn(text("one, "), text("two"))]},
        {"messages": [turn(role="system"), turn(text("a")), turn(text("b"), text("c"), role="assistant")]},
    ]
    read = read_rows(write_rows(path, rows)).rows
    assert [row.messages[-1].content for row in read] == ["hi", "one, two", "a"]
    assert read[0].content_hash == read_rows(write_rows(path, [prompt_row("hi")])).rows[0].content_hash
    # an empty list is an empty message, which a system turn may be
    assert (read[2].messages[0], read[2].reference) == (Message("system", ""), "bc")
    image = {"type": "image_url", "image_url": {"url": "x"}}
    error = error_of(
        path, "\n".join(map(json.dumps, [rows[0], {"prompt": [rows[0]["prompt"][0], turn(text("a"), image)]}]))
    )
    assert error.code == "data.part-unsupported"
    assert 'tickets.jsonl:2, prompt[1].content[1]: the part has the type "image_url"' in error.given
    assert "prompt[0].content: the text is" in error_of(path, json.dumps({"prompt": [turn()]})).given


@pytest.mark.report("DC-09")
def test_from_and_value_are_recognised_and_said_and_no_role_is_guessed(path: Path) -> None:
    shared = {"conversations": [{"from": who, "value": words} for who, words in TALK]}
    usual = {"messages": [{"role": role, "content": words} for role, (_, words) in zip(ROLES, TALK, strict=True)]}
    read = read_rows(write_rows(path, [shared, usual, prompt_row("other")]))
    assert read.rows[0].messages == read.rows[1].messages
    assert [row.reference for row in read.rows] == ["good", "good", None]
    assert "Rows in from/value form: 1 of 3; human is read as user, gpt as assistant." in read.notes
    assert not any("from/value" in note for note in read_rows(write_rows(path, [usual])).notes)
    for role in ("Assistant", "bot", "developer", "model", "tool", "USER", ""):
        error = error_of(path, json.dumps(usual) + "\n" + json.dumps({"prompt": [{"role": role, "content": "a"}]}))
        assert error.code == "data.role-unknown"
        told = f'tickets.jsonl:2, prompt[0].role: the role is "{role}"; expected one of: system, user, assistant'
        assert told in error.given
    for role in ("Human", "bot", "tool", "function_call"):
        error = error_of(path, json.dumps({"conversations": [{"from": role, "value": "a"}]}))
        assert f'.from: the role is "{role}"; expected one of: system, human, gpt' in error.given
    # half of each form is neither
    for message in ({"from": "human", "content": "a"}, {"role": "user", "value": "a"}):
        assert error_of(path, json.dumps({"messages": [message]})).code == "data.field-missing"
    assert error_of(path, json.dumps({**shared, **usual})).code == "data.field-ambiguous"


ROLES = ("system", "user", "assistant", "user", "assistant")
TALK = (("system", "be brief"), ("human", "how"), ("gpt", "so"), ("human", "and"), ("gpt", "good"))


def test_keys_of_messages_that_nothing_reads_are_named(path: Path) -> None:
    rows = [{"prompt": [{"role": "user", "content": "a", "name": "bob", "weight": 0}]}, prompt_row("b")]
    assert read_rows(write_rows(path, rows)).notes == ("Keys of messages that are ignored: name (1), weight (1).",)


@pytest.mark.report("DC-02", "DC-03")
@pytest.mark.parametrize("arguments", [{"city": "Rom"}, '{"city": "Rom"}', None, '{"city": '])
def test_tools_are_refused_by_row_and_field_and_never_left_out(path: Path, arguments: object) -> None:
    """Nothing here renders tools: a prompt without them would be another one than the row means."""
    call = {"type": "function", "function": {"name": "weather", "arguments": arguments}}
    talk = [
        {"role": "user", "content": "Is it warm in Rome?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "30 degrees"},
        {"role": "assistant", "content": "Yes."},
    ]
    error = error_of(path, json.dumps(prompt_row("fine")) + "\n" + json.dumps({"messages": talk}))
    assert "tickets.jsonl:2, messages[1].tool_calls: the value is [{" in error.given
    assert 'tickets.jsonl:2, messages[2].role: the role is "tool"' in error.given
    error = error_of(path, json.dumps({**prompt_row("a"), "tools": [{"type": "function", "function": {"name": "f"}}]}))
    assert (error.code, "tickets.jsonl:1, tools: the value is [{" in error.given) == ("data.field-unsupported", True)
    # no tools at all is what every row has
    read = read_rows(write_rows(path, [prompt_row("a", tools=[]), prompt_row("b", tools=None)]))
    assert [row.reference for row in read.rows] == [None, None]


NO_ANSWER = [
    [{"role": "user", "content": "a"}, {"role": "assistant", **content}]
    for content in (
        {"content": ""},
        {"content": "   "},
        {"content": None},
        {},
        {"content": 42},
        {"content": True},
        {"content": {"a": 1}},
    )
]


@pytest.mark.report("DC-04")
def test_each_row_without_a_usable_answer_is_listed_and_nothing_becomes_text(path: Path) -> None:
    bad = [*NO_ANSWER, []]
    rows = [{"id": f"r{number}", "messages": messages} for number, messages in enumerate(bad, start=1)]
    rows += [{"messages": [*NO_ANSWER[0][:1], {"role": "assistant", "content": f"b{number}"}]} for number in range(12)]
    error = error_of(path, "\n".join(map(json.dumps, rows)))
    listed = error.given.splitlines()[1:]
    for number, line in enumerate(listed, start=1):
        assert line.startswith(f'  tickets.jsonl:{number} (id "r{number}"), messages')
    assert len(listed) == len(bad)
    for line, told in zip(
        listed, ('""', '"   "', "null", "has the keys: role;", "42", "true", '{"a": 1}', "no turn"), strict=True
    ):
        assert told in line
    # left out on request
    errors = RowErrors(path.name)
    read = read_rows(path, errors)
    assert (len(read.rows), errors.num_rows) == (12, len(bad))
    assert {row.reference for row in read.rows} == {f"b{number}" for number in range(12)}
    assert errors.as_list().count("tickets.jsonl:") == len(bad)
    write_rows(path, rows[: len(bad)])
    with pytest.raises(DataError, match=r"8 invalid rows \(8 errors\)"):
        read_rows(path, RowErrors(path.name))


@pytest.mark.report("DL-09")
@pytest.mark.parametrize("field", ["prompt[0].content", "prompt[1].content", "answer", "tags[1]"])
def test_half_a_surrogate_pair_is_refused_by_row_and_field(path: Path, field: str) -> None:
    half = dict.fromkeys(("prompt[0].content", "prompt[1].content", "answer", "tags[1]"), "fine") | {field: "a\ud83d"}
    row = prompt_row(half["prompt[1].content"], system=half["prompt[0].content"], answer=half["answer"])
    lines = [json.dumps(each) for each in (prompt_row("fine"), {**row, "tags": ["a", half["tags[1]"]]})]
    error = error_of(path, "\n".join(lines))
    assert error.code == "data.lone-surrogate"
    assert f"tickets.jsonl:2, {field}: half of a surrogate pair, \\ud83d, at character 2" in error.given


def test_whole_surrogate_pairs_are_text(path: Path) -> None:
    path.write_text('{"prompt": "\\ud83d\\ude00"}\n')
    assert read_rows(path).rows[0].messages[0].content == "\U0001f600"


def test_a_list_of_texts_holds_references_that_are_all_right(path: Path) -> None:
    rows = [prompt_row("a", ideal=["b", "c"]), prompt_row("d", ideal=["e"]), prompt_row("f", ideal=["g", ""])]
    read = read_rows(write_rows(path, rows))
    assert [(row.reference, row.others) for row in read.rows] == [("b", ("c",)), ("e", ()), ("g", ())]
    with pytest.raises(DataError, match="a list of strings that are all correct"):
        read_rows(write_rows(path, [prompt_row("a", ideal=["b", 3])]))


def test_equal_references_are_one_reference(path: Path) -> None:
    assert read_rows(write_rows(path, [prompt_row("a", answer="b", ideal="b")])).rows[0].reference == "b"


def test_all_errors_are_listed_at_once_in_the_order_of_the_file(path: Path) -> None:
    lines = ['{"prompt": ""}', '{"prompt": "a"', '{"prompt": "fine"}', '{"prompt": "b", "x": NaN, "y": Infinity}']
    lines.append('{"prompt": "", "answer": 1, "tools": [1]}')
    error = error_of(path, "\n".join(lines) + "\n")
    assert error.code == "data.rows-faulty"
    places = [line.strip().split(":")[1].split(",")[0] for line in error.given.splitlines()[1:]]
    assert places == ["1", "2", "4", "4", "5", "5", "5"]
    assert error.given.startswith("tickets.jsonl has 4 invalid rows (7 errors):")
    assert error.parameters["num_rows"] == 4


def test_more_than_twenty_errors_are_counted(path: Path) -> None:
    error = error_of(path, '{"prompt": ""}\n' * 33)
    assert error.code == "data.content-empty"
    assert error.given.startswith("tickets.jsonl has 33 invalid rows (33 errors):")
    assert error.given.count("tickets.jsonl:") == 20
    assert error.given.rstrip().endswith("and 13 more")


def test_a_long_value_is_shown_short(path: Path) -> None:
    error = error_of(path, json.dumps({"prompt": [{"role": "x" * 10_000, "content": "a"}]}))
    assert len(error.given) < 300
    assert "(10002 characters)" in error.given
