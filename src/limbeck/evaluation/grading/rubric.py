"""What a judge is shown, and how its reply is parsed.

A rubric is a Jinja template with the prompt, answer A, answer B and perhaps a reference answer. It never names a model.
Answers cannot leave their part of the text: the default rubric marks it with a word that an answer cannot contain, and
control tokens in an answer are split by a space, so that no tokenizer parses them as control tokens.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jinja2
import jinja2.meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from limbeck.data.templates import RENDER_ERRORS, describe_refusal
from limbeck.evaluation.messages import grading as messages

__all__ = ["AnswerPair", "Preference", "Rubric", "answer_pairs", "hash_of", "read_preference", "read_rubric"]

Preference = Literal["A", "B", "TIE"]

DEFAULT_RUBRIC = Path(__file__).with_name("rubric.jinja")
NEEDED = ("prompt", "answer_a", "answer_b")
VARIABLES = (*NEEDED, "reference", "fence")
_JINJA = ImmutableSandboxedEnvironment(undefined=jinja2.StrictUndefined, trim_blocks=True)

# A reply is one of the three, with nothing around it but the words that people and models usually add.
_REPLY = re.compile(
    r"\W*(?:(?:my|the|final|better|best|verdict|winner|choice|answer|option|it|is|it['’]s)\W+)*"
    r"(?:(?P<letter>[AB])|(?:a\W+)?tie)(?:\W+(?:is|the|better|best|winner|answer|one))*\W*",
    re.IGNORECASE,
)
_PREFERENCES: Mapping[str, Preference] = {"A": "A", "B": "B", "": "TIE"}
_CONTROL_TOKEN = re.compile(
    r"<(?=[|｜][^<>\s]{1,40}[|｜]>|/?s>|(?:start|end)_of_turn>|(?:bos|eos|pad|unk)>)|\[(?=/?INST\])"
)


@dataclass(frozen=True)
class AnswerPair:
    """Two answers to one prompt; None for a missing answer."""

    key: str
    source: str
    prompt: str
    first: str | None
    second: str | None
    reference: str | None = None
    sample: int = 0


@dataclass(frozen=True)
class Rubric:
    """The judge's prompt as a Jinja template. `name` is its file, or "default" for `rubric.jinja`."""

    name: str
    text: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    def judge_prompt(self, pair: AnswerPair, *, swapped: bool) -> str:
        """The judge's prompt: the first answer is A, or B if `swapped`."""
        answers = (pair.second, pair.first) if swapped else (pair.first, pair.second)
        texts = [pair.prompt, *answers, pair.reference]
        fence = hash_of(texts)[:12]
        shown = [_CONTROL_TOKEN.sub(r"\g<0> ", text or "") for text in texts]
        return _JINJA.from_string(self.text).render(**dict(zip(VARIABLES, (*shown, fence), strict=True)))


def read_rubric(path: Path | None) -> Rubric:
    """The user's rubric, or the default. Raises UsageError if it cannot be read or does not show both answers."""
    name, path = ("default", DEFAULT_RUBRIC) if path is None else (path.name, path)
    try:
        rubric = Rubric(name, path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        problem = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise messages.rubric_unreadable(path=path, problem=problem) from None
    try:
        used = jinja2.meta.find_undeclared_variables(_JINJA.parse(rubric.text))
        unknown = [f"{name}{_nearest(name)}" for name in sorted(used - set(VARIABLES))]
        missing = [name for name in NEEDED if name not in used]
        if not unknown and not missing:
            rubric.judge_prompt(AnswerPair("", "", "prompt", "first", "second"), swapped=False)
            return rubric
    except RENDER_ERRORS as error:
        raise messages.rubric_invalid(path=path, problem=describe_refusal(error)) from None
    if unknown:
        raise messages.rubric_unknown_names(path=path, names=unknown)
    raise messages.rubric_missing_names(path=path, names=missing)


def answer_pairs(
    first: Sequence[Mapping[str, Any]],
    second: Sequence[Mapping[str, Any]],
    references: Mapping[str, str | None],
) -> list[AnswerPair]:
    """Pairs of the stored answers of two models, one per prompt and sample; `references` by the prompt's key."""
    others = {(row["key"], row["sample"]): row["answer"] for row in second}
    return [
        AnswerPair(
            key=row["key"],
            source=row["source"],
            prompt=_conversation(row["messages"]),
            first=row["answer"],
            second=others.get((row["key"], row["sample"])),
            reference=references.get(row["key"]),
            sample=row["sample"],
        )
        for row in first
    ]


def read_preference(reply: str, *, cut_off: bool = False) -> Preference | None:
    """A, B or TIE if the first or the last line says only that; None if neither does or they disagree."""
    lines = [line for line in reply.splitlines() if line.strip()]
    whole = lines[:-1] if cut_off and not reply.endswith("\n") else lines
    found = [match for line in (*whole[:1], *whole[-1:]) if (match := _REPLY.fullmatch(line)) is not None]
    preferences: set[Preference] = {_PREFERENCES[(match["letter"] or "").upper()] for match in found}
    return preferences.pop() if len(preferences) == 1 else None


def hash_of(value: object) -> str:
    """SHA-256 of a JSON value."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def _conversation(turns: Sequence[Mapping[str, str]]) -> str:
    """The text of a single turn; of several turns, each under its role."""
    if len(turns) == 1:
        return turns[0]["content"]
    return "\n\n".join(f"{turn['role']}:\n{turn['content']}" for turn in turns)


def _nearest(name: str) -> str:
    near = difflib.get_close_matches(name, VARIABLES, n=1, cutoff=0.4)
    return f" (nearest: {near[0]})" if near else ""
