"""Messages about prompt files, their rows and the held-out split."""

from __future__ import annotations

from pathlib import Path

from limbeck.errors import DataError, FaultText, Text, error, fault, note

__all__: list[str] = []


@error(DataError, "data.file-missing")
def file_missing(*, path: Path, nearest: str) -> Text:
    return Text(
        given="There is no file {path}{nearest}.",
        needed="A JSONL file of prompts is required.",
        fix="Fix the path. A relative path starts at the current folder.",
    )


@error(DataError, "data.file-missing.folder")
def file_is_folder(*, path: Path) -> Text:
    return Text(
        given="{path} is a folder.",
        needed="A JSONL file of prompts is required.",
        fix="Use the path of a file in that folder.",
    )


@error(DataError, "data.format-unsupported")
def encoding_unsupported(*, file: str) -> Text:
    return Text(
        given="{file} is text in UTF-16 or UTF-32, not JSONL in UTF-8.",
        needed='Prompts are read from UTF-8 files with one JSON object per line, such as {{"prompt": "..."}}.',
        fix="Save it as UTF-8 in an editor, or convert it with iconv -f UTF-16 -t UTF-8.",
    )


@error(DataError, "data.format-unsupported.table")
def table_unsupported(*, file: str, suffix: str, call: str) -> Text:
    return Text(
        given="{file} is a table ({suffix}), not JSONL.",
        needed='Prompts are read from UTF-8 files with one JSON object per line, such as {{"prompt": "..."}}.',
        fix='Convert it, for example with pandas: {call}.to_json("rows.jsonl", orient="records", lines=True, '
        "force_ascii=False).",
    )


@error(DataError, "data.format-unsupported.compressed")
def compressed_unsupported(*, file: str, suffix: str) -> Text:
    return Text(
        given="{file} is compressed ({suffix}), not JSONL.",
        needed='Prompts are read from UTF-8 files with one JSON object per line, such as {{"prompt": "..."}}.',
        fix="Decompress it and use the path of the JSONL file.",
    )


@error(DataError, "data.file-empty")
def file_empty(*, file: str, num_bytes: int) -> Text:
    return Text(
        given="{file} has no rows ({num_bytes:byte|bytes}).",
        needed="At least one prompt is required.",
        fix='Add rows such as {{"prompt": "..."}}, one per line.',
    )


@error(DataError, "data.rows-faulty")
def rows_invalid(*, file: str, num: int, num_rows: int, listing: str) -> Text:
    return Text(
        given="{file} has {num_rows:invalid row|invalid rows} ({num:error|errors}):{listing}\n",
        needed="Limbeck does not skip or repair rows on its own, so that you train on exactly the data you expect.",
        fix="Fix or remove these rows.",
    )


@error(DataError, "data.rows-faulty.skippable")
def rows_invalid_skippable(*, file: str, num: int, num_rows: int, listing: str) -> Text:
    return Text(
        given="{file} has {num_rows:invalid row|invalid rows} ({num:error|errors}):{listing}\n",
        needed="Limbeck does not skip or repair rows on its own, so that you train on exactly the data you expect.",
        fix="Fix or remove these rows, or set bad_rows: skip to leave them out.",
    )


@fault("data.row-not-object")
def row_not_object(*, value: str) -> FaultText:
    return FaultText(given="the row is {value}", expected='an object such as {{"prompt": "..."}}')


@fault("data.not-utf8")
def not_utf8(*, position: int, byte: int) -> FaultText:
    return FaultText(given="byte {position} is 0x{byte:02x}, which is not UTF-8", expected="a file saved as UTF-8")


@fault("data.json-invalid")
def json_invalid(*, reason: str) -> FaultText:
    return FaultText(given="invalid JSON: {reason}", expected="one complete JSON object per line")


@fault("data.key-repeated")
def key_repeated(*, key: str) -> FaultText:
    return FaultText(given="the key {key} appears more than once in one object", expected="each key once")


@fault("data.number-not-finite")
def number_not_finite(*, value: str) -> FaultText:
    return FaultText(given="the value is {value}", expected="null, or a number that JSON allows")


@fault("data.lone-surrogate")
def lone_surrogate(*, code_point: int, position: int) -> FaultText:
    return FaultText(
        given="half of a surrogate pair, \\u{code_point:04x}, at character {position}", expected="whole characters"
    )


@fault("data.field-unsupported")
def field_unsupported(*, value: str) -> FaultText:
    return FaultText(
        given="the value is {value}",
        expected="conversations of text only (without this field the prompt would be a different one)",
    )


@fault("data.field-missing")
def conversation_missing(*, columns: list[str]) -> FaultText:
    return FaultText(
        given="no column contains a prompt; the row has: {columns}", expected="prompt or messages (or conversations)"
    )


@fault("data.field-missing.message")
def message_key_missing(*, keys: list[str], required: list[str]) -> FaultText:
    return FaultText(given="the message has the keys: {keys}", expected="the keys {required}")


@fault("data.field-ambiguous")
def conversation_ambiguous(*, columns: list[str]) -> FaultText:
    return FaultText(given="several columns contain a prompt: {columns}", expected="exactly one of them")


@fault("data.field-ambiguous.reference")
def references_differ(*, columns: list[str]) -> FaultText:
    return FaultText(
        given="these columns contain different reference answers: {columns}", expected="one reference answer"
    )


@fault("data.conversation-end")
def last_turn_not_user(*, role: str) -> FaultText:
    return FaultText(
        given="the last turn has the role {role}",
        expected="a user turn at the end (put a reference answer in messages or in a column such as completion)",
    )


@fault("data.conversation-end.empty")
def no_turn(*, column: str) -> FaultText:
    return FaultText(given="{column} contains no turn to answer", expected="a user turn at the end")


@fault("data.field-type")
def conversation_type(*, value: str) -> FaultText:
    return FaultText(given="the value is {value}", expected="a list of messages")


@fault("data.field-type.prompt")
def prompt_type(*, value: str) -> FaultText:
    return FaultText(given="the value is {value}", expected="a string or a list of messages")


@fault("data.field-type.message")
def message_type(*, value: str) -> FaultText:
    return FaultText(given="the message is {value}", expected='an object such as {{"role": "user", "content": "..."}}')


@fault("data.field-type.content")
def content_type(*, value: str) -> FaultText:
    return FaultText(given="the content is {value}", expected="a string or a list of text parts")


@fault("data.role-unknown")
def role_unknown(*, role: str, known: list[str]) -> FaultText:
    return FaultText(given="the role is {role}", expected="one of: {known}")


@fault("data.part-unsupported")
def part_unsupported(*, part: str) -> FaultText:
    return FaultText(given="the part is {part}", expected='text parts such as {{"type": "text", "text": "..."}}')


@fault("data.part-unsupported.type")
def part_type_unsupported(*, kind: str) -> FaultText:
    return FaultText(given="the part has the type {kind}", expected="text parts only")


@fault("data.content-empty")
def content_empty(*, text: str) -> FaultText:
    return FaultText(given="the text is {text}", expected="text that is not blank, or no such turn")


@fault("data.reference-invalid")
def reference_invalid(*, value: str) -> FaultText:
    return FaultText(
        given="the reference answer is {value}",
        expected="a string, a list of strings that are all correct, a list with one assistant turn, or null",
    )


@note("data.references")
def references_present(*, num: int) -> str:
    return "{num:row has|rows have} a reference answer; only supervised training and graders use it."


@note("data.prompts-repeated")
def prompts_repeated(*, num: int, num_rows: int) -> str:
    return "Rows that repeat the prompt of an earlier row: {num} of {num_rows}."


@note("data.columns-kept")
def columns_kept(*, columns: list[str]) -> str:
    return "Columns that are kept with their rows but are not part of the prompt: {columns}."


@note("data.from-value")
def from_value_rows(*, num: int, num_rows: int) -> str:
    return "Rows in from/value form: {num} of {num_rows}; human is read as user, gpt as assistant."


@note("data.keys-ignored")
def keys_ignored(*, keys: list[str]) -> str:
    return "Keys of messages that are ignored: {keys}."


@error(DataError, "data.too-few-to-hold-out")
def too_few_to_hold_out(*, held_out: str, num_train: int, num_rows: int, num_held_out: int) -> Text:
    return Text(
        given="held_out: {held_out} leaves {num_train} of {num_rows:row|rows} for training and holds out "
        "{num_held_out}.",
        needed="Training and evaluation each need at least one conversation, and no conversation may be in both.",
        fix="Add prompts, hold out fewer, or set held_out to another file.",
    )


@note("data.held-out")
def held_out_rows(*, num: int, num_rows: int) -> str:
    return "Held out: {num} of {num_rows:row|rows}. Rows with the same prompt are always on the same side."


@note("data.held-out-file")
def held_out_file_note(*, file: str, text: str) -> str:
    return "{file}: {text}"


@note("data.held-out-removed")
def held_out_removed(*, file: str, rows: str) -> str:
    return "Left out of training because {file} contains them too: {rows}."
