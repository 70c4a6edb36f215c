"""A model as judge: which of two answers to a prompt is better. It is asked blind, once in each order.

    path/judgements.jsonl    one line per question, appended as replies come; what stands there is not asked again

The judge sees the prompt, answer A, answer B and perhaps a reference, never the name of a model. Only an answer that
wins in both orders is preferred: a change of mind is a tie. A reply that cannot be read gives no preference.

A judge is any `AnswerGenerator`, local or hosted, and its verdict is read from its text. Comparing the
log-probabilities of the choices instead would always give a verdict, also where the model did not understand the
question, and works with local models alone. Text that is no verdict is seen, stored and counted.

What an answer says to the judge stays inside a fence: the default rubric marks it by a word that an answer cannot
know, and control tokens in it are broken by a blank, so that no tokenizer reads them as such.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import jinja2
import jinja2.meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from limbeck.data.prompt import Message
from limbeck.data.templates import RENDER_ERRORS, describe_refusal
from limbeck.errors import UsageError
from limbeck.evaluation.deciding.comparison import GradedModel, common_answers, common_scores, winners
from limbeck.evaluation.deciding.statistics import Interval, kappa, mean_score
from limbeck.evaluation.grading.graders import Grade
from limbeck.rollouts.sampling import Purpose, stream_key
from limbeck.runs.lines import append_line, event_line, iterate_lines
from limbeck.teachers.writer import AnswerGenerator, TeacherRequest

__all__ = ["Judged", "Pair", "Rubric", "Verdict", "agreement", "ask_judge", "pairs_of", "read_rubric", "read_verdict"]

Verdict = Literal["A", "B", "TIE"]

DEFAULT_RUBRIC = Path(__file__).with_name("rubric.jinja")
NUM_AT_ONCE = 32
NEEDED = ("prompt", "answer_a", "answer_b")
VARIABLES = (*NEEDED, "reference", "fence")
_JINJA = ImmutableSandboxedEnvironment(undefined=jinja2.StrictUndefined, trim_blocks=True)

# The reply is one of the three, with no more around it than people and models put there.
_VERDICT = re.compile(
    r"\W*(?:(?:my|the|final|better|best|verdict|winner|choice|answer|option|it|is|it['’]s)\W+)*"
    r"(?:(?P<side>[AB])|(?:a\W+)?tie)(?:\W+(?:is|the|better|best|winner|answer|one))*\W*",
    re.IGNORECASE,
)
# The verdicts of a judge that thinks the same in both orders, and the first model's grade for them.
_SAME_MIND: Mapping[tuple[Verdict | None, ...], float] = {("A", "B"): 1.0, ("B", "A"): 0.0, ("TIE", "TIE"): 0.5}
_VERDICTS: Mapping[str, Verdict] = {"A": "A", "B": "B", "": "TIE"}
_CONTROL_TOKEN = re.compile(
    r"<(?=[|｜][^<>\s]{1,40}[|｜]>|/?s>|(?:start|end)_of_turn>|(?:bos|eos|pad|unk)>)|\[(?=/?INST\])"
)


@dataclass(frozen=True)
class Pair:
    """Two answers to one prompt; None where a model gave none."""

    key: str
    source: str
    prompt: str
    first: str | None
    second: str | None
    reference: str | None = None
    sample: int = 0


@dataclass(frozen=True)
class Rubric:
    """How the judge is asked: a jinja2 text. `name` is its file, or "default" (`rubric.jinja` beside this module)."""

    name: str
    text: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    def question(self, pair: Pair, *, swapped: bool) -> str:
        """What the judge reads: the first answer as A, or as B when `swapped`."""
        answers = (pair.second, pair.first) if swapped else (pair.first, pair.second)
        texts = [pair.prompt, *answers, pair.reference]
        fence = _hash(texts)[:12]
        shown = [_CONTROL_TOKEN.sub(r"\g<0> ", text or "") for text in texts]
        return _JINJA.from_string(self.text).render(**dict(zip(VARIABLES, (*shown, fence), strict=True)))


@dataclass(frozen=True)
class Judged:
    """What a judge thinks of a first and a second model.

    `grades` are the first model's by the prompt's key: 1 it is preferred, 0 the second is, 0.5 a tie, or none with the
    reason. The second model's are the rest to 1. `first_place` is the share of decided replies that chose the answer
    shown first, with an interval over prompts: a judge that does not care has 0.5.
    """

    judge: str
    rubric: Rubric
    grades: Mapping[str, Grade]
    num_questions: int
    num_unreadable: int
    num_changed: int
    first_place: Interval | None

    def models(self, first: GradedModel, second: GradedModel) -> tuple[GradedModel, GradedModel]:
        """Both models with the judge's grades instead of their own, for `compare`, which mixes them with no others."""
        rest = {key: grade if grade.value is None else Grade(1 - grade.value) for key, grade in self.grades.items()}
        return self._regraded(first, self.grades), self._regraded(second, rest)

    def _regraded(self, model: GradedModel, grades: Mapping[str, Grade]) -> GradedModel:
        none = Grade(None, "the judge was not asked")
        answers = tuple(replace(answer, grade=grades.get(answer.key, none)) for answer in model.answers)
        return replace(model, answers=answers, judge=f"{self.judge} by the rubric {self.rubric.sha256[:12]}")

    def measure(self) -> dict[str, str]:
        """The measure of a result; its kind keeps it apart from a grader's."""
        text = f"{self.judge} compares two answers blind, in both orders, by the rubric {self.rubric.name}"
        return {"name": self.judge, "kind": "judge", "text": f"{text}; a change of mind is a tie."}

    def notes(self) -> list[str]:
        """What to know beside the result, as sentences."""
        asked = (
            f"{self.judge} was asked {self.num_questions} questions; {self.num_unreadable} replies cannot be read and "
            f"count for nobody, {self.num_changed} times it changed its mind with the order, which counts as a tie."
        )
        if (place := self.first_place) is None:
            return [asked]
        liked = "prefers the first place" if place.low > 0.5 else "shows no preference for a place"
        liked = "prefers the second place" if place.high < 0.5 else liked
        won = f"{place.estimate:.0%} ({place.low:.0%} to {place.high:.0%}, {place.n} prompts)"
        return [asked, f"Of what it decided, the answer shown first won {won}: it {liked}."]


def read_rubric(path: Path | None) -> Rubric:
    """The user's rubric, or the default. Raises UsageError for one that cannot be read or does not show the answers."""
    name, path = ("default", DEFAULT_RUBRIC) if path is None else (path.name, path)
    try:
        rubric = Rubric(name, path.read_text(encoding="utf-8-sig"))
        named = jinja2.meta.find_undeclared_variables(_JINJA.parse(rubric.text))
        unknown = [f"{name}{_near(name)}" for name in sorted(named - set(VARIABLES))]
        missing = [name for name in NEEDED if name not in named]
        problem = f"names the unknown {', '.join(unknown)}" if unknown else f"does not name {', '.join(missing)}"
        if not unknown and not missing:
            rubric.question(Pair("", "", "prompt", "first", "second"), swapped=False)
            return rubric
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
    except RENDER_ERRORS as error:
        problem = f"cannot be written out: {describe_refusal(error)}"
    raise UsageError(
        "judge.rubric",
        given=f"The rubric {path} {problem}.",
        needed="It is a jinja2 text in UTF-8 that names {{ prompt }}, {{ answer_a }} and {{ answer_b }}, perhaps "
        "{{ reference }} (empty where there is none) and {{ fence }} (a word that no answer can know).",
        fix="Correct it; end it by asking for one word: A, B or TIE.",
    )


def pairs_of(
    first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]], references: Mapping[str, str | None]
) -> list[Pair]:
    """Stored answers of two models as pairs; `references` by the prompt's key, for those that have one."""
    others = {(row["key"], row["sample"]): row["answer"] for row in second}
    return [
        Pair(
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


def ask_judge(
    writer: AnswerGenerator,
    pairs: Sequence[Pair],
    rubric: Rubric,
    path: Path,
    *,
    judge: str,
    models: tuple[str, str],
    seed: int = 0,
    num_at_once: int = NUM_AT_ONCE,
) -> Judged:
    """Ask for each pair in both orders what `path` does not hold yet; two equal answers tie unasked.

        judged = ask_judge(writer, pairs_of(teacher_rows, student_rows, references), read_rubric(None),
                           evaluation.path / "judgements.jsonl", judge="Qwen/...", models=("teacher", "student"))
        comparison = compare(*judged.models(teacher, student))

    Args:
        writer: a `LocalGenerator` at temperature 0 with 16 tokens or more for its reply (a rubric that asks for
            reasons needs more), or a hosted one. An empty reply is not stored, so its question is asked again.
        judge: the judge's name; one question, asked of two judges, is two questions.
        models: what the two are called in the file, for people.
        num_at_once: questions between two writes to the file.

    A share of the gap that is recovered has no meaning here: preferences within pairs are on no common scale.
    """
    asked: dict[str, tuple[Pair, bool, str]] = {}
    for pair in pairs:
        if None not in (pair.first, pair.second) and pair.first != pair.second:
            for swapped in (False, True):
                text = rubric.question(pair, swapped=swapped)
                asked[_hash([judge, pair.key, pair.sample, text])] = (pair, swapped, text)
    found = {str(line["id"]): _read(line) for line in iterate_lines(path)} if path.exists() else {}
    missing = [name for name in asked if name not in found]
    for start in range(0, len(missing), num_at_once):
        names = missing[start : start + num_at_once]
        keys = [stream_key(seed, Purpose.EVALUATION, 0, name, 0, 0) for name in names]
        questions = [
            TeacherRequest((Message("user", asked[name][2]),), key) for name, key in zip(names, keys, strict=True)
        ]
        for name, answer in zip(names, writer.generate(questions), strict=True):
            pair, swapped, _ = asked[name]
            about = {"key": pair.key, "source": pair.source, "sample": pair.sample}
            shown = {"judge": judge, "rubric": rubric.sha256, "a": models[swapped], "b": models[not swapped]}
            line = {"id": name, **about, **shown, "reply": answer.text, "cut_off": answer.cut_off}
            found[name] = _read(line)
            if answer.text:
                append_line(path, event_line({**line, "verdict": found[name]}))
    verdicts: dict[tuple[str, int], list[Verdict | None]] = defaultdict(list)
    for name, (pair, _, _) in asked.items():
        verdicts[pair.key, pair.sample].append(found[name])
    return _judged(judge, rubric, pairs, verdicts)


def read_verdict(reply: str, *, cut_off: bool = False) -> Verdict | None:
    """A, B or TIE if the first line or the last says so and nothing else, None if neither does or both disagree."""
    lines = [line for line in reply.splitlines() if line.strip()]
    whole = lines[:-1] if cut_off and not reply.endswith("\n") else lines
    found = [match for line in (*whole[:1], *whole[-1:]) if (match := _VERDICT.fullmatch(line)) is not None]
    said: set[Verdict] = {_VERDICTS[(match["side"] or "").upper()] for match in found}
    return said.pop() if len(said) == 1 else None


def agreement(judged: Judged, first: GradedModel, second: GradedModel, *, seed: int = 0) -> Interval | None:
    """Cohen's kappa between judge and graders on who is better or tied, where both say; None where it is undefined."""
    models = (first, second, *judged.models(first, second))
    if not common_answers(*models):
        return None
    first_P, second_P, preferred_P, other_P = common_scores(*models)
    return kappa(winners(first_P - second_P), winners(preferred_P - other_P), seed=seed)


def _judged(
    judge: str, rubric: Rubric, pairs: Sequence[Pair], verdicts: Mapping[tuple[str, int], Sequence[Verdict | None]]
) -> Judged:
    grades: dict[str, list[Grade]] = defaultdict(list)
    for pair in pairs:
        grades[pair.key].append(_preference(pair, verdicts.get((pair.key, pair.sample))))
    decided = [[verdict == "A" for verdict in both if verdict in ("A", "B")] for both in verdicts.values()]
    first_places = [sum(sides) / len(sides) for sides in decided if sides]
    return Judged(
        judge=judge,
        rubric=rubric,
        grades={key: _mean(samples) for key, samples in grades.items()},
        num_questions=2 * len(verdicts),
        num_unreadable=sum(both.count(None) for both in verdicts.values()),
        num_changed=sum(None not in both and tuple(both) not in _SAME_MIND for both in verdicts.values()),
        first_place=mean_score(first_places) if first_places else None,
    )


def _preference(pair: Pair, verdicts: Sequence[Verdict | None] | None) -> Grade:
    if None in (pair.first, pair.second):
        return Grade(None, "there is no answer")
    if verdicts is not None and None in verdicts:
        return Grade(None, "the judge's reply cannot be read")
    return Grade(_SAME_MIND.get(tuple(verdicts or ()), 0.5))


def _mean(samples: Sequence[Grade]) -> Grade:
    """Of those samples of one prompt that have a preference."""
    values = [grade.value for grade in samples if grade.value is not None]
    return Grade(sum(values) / len(values)) if values else samples[0]


def _read(line: Mapping[str, object]) -> Verdict | None:
    return read_verdict(str(line["reply"]), cut_off=bool(line["cut_off"]))


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def _conversation(messages: Sequence[Mapping[str, str]]) -> str:
    """A single question as it stands, several turns each under its role."""
    if len(messages) == 1:
        return messages[0]["content"]
    return "\n\n".join(f"{turn['role']}:\n{turn['content']}" for turn in messages)


def _near(name: str) -> str:
    near = difflib.get_close_matches(name, VARIABLES, n=1, cutoff=0.4)
    return f" (nearest: {near[0]})" if near else ""
