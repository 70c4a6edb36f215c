"""Marks: the distributions of student and teacher at every token of some answers, and the selection of tokens to show.

One safetensors file contains several answers, concatenated. N tokens, T temperatures, K candidates, P pieces:

    token_ids                           int32 [N]        the tokens of the answers
    student_logp, teacher_logp          float32 [N]      their log-probabilities, nats, at temperature 1 like all else
    student_entropy, teacher_entropy    float32 [N]      nats
    student_tail, teacher_tail          float32 [N]      the probability of all tokens that are not candidates
    teacher_rank                        int32 [N]        number of tokens that are more likely under the teacher
    divergence                          float32 [N, T, 5] exact, full vocabulary, unit scale, at the betas of BETAS
    candidate_ends                      int32 [N]        end of the token's candidates in the next three
    candidate_places                    uint16 or uint32 [K]  the union of both top-20, sorted by the teacher's
                                                         log-probability, as indices into piece_ids
    candidate_student, candidate_teacher float16 [K]     log-probabilities
    piece_ids, piece_special            int32, uint8 [P] each id that occurs, ascending; whether it is a control token
    piece_ends, piece_bytes             int32 [P], uint8 the bytes of each id, which may be part of a character

The metadata entry `limbeck` is JSON: format, student, teacher, step, beta (of the run's objective), temperatures and,
for each answer, fields of `MarkedAnswer`. Reading needs no tokenizer and no torch; numpy is imported when a file is
read.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from limbeck.console import safe
from limbeck.runs import messages
from limbeck.runs.lines import write_bytes
from limbeck.runs.store import Run

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "BETAS",
    "TOP",
    "MarkSheet",
    "MarkedAnswer",
    "Piece",
    "marks_name",
    "read_marks",
    "worst_marks",
    "write_marks",
]

FORMAT = "limbeck-marks-1"
BETAS = (0.0, 0.25, 0.5, 0.75, 1.0)
TOP = 20

MARKED_SHARE = 0.05  # of an answer's tokens, rounded up
QUIET_NATS = 0.1  # a divergence below it is never marked
SURE = 0.5  # the teacher is confident of a token with at least this probability
SERIOUS_RATIO = 10  # and then a token this many times less likely is a mistake

PER_TOKEN = ("token_ids", "student_logp", "teacher_logp", "student_entropy", "teacher_entropy", "student_tail")
PER_TOKEN += ("teacher_tail", "teacher_rank", "divergence")
PER_CANDIDATE = ("candidate_ids", "candidate_student", "candidate_teacher")

# Signs for what cannot be seen, and the brackets of bytes and control tokens. A model may write these signs itself, or
# the code of a character: then the code of the sign or of the backslash is shown.
_SIGNS = {" ": "␣", "\n": "⏎", "\t": "⇥"}
_CODED = re.compile(r"[␣⏎⇥⟨⟩⟦⟧\x00-\x08\x0b-\x1f\x7f-\x9f]|\\(?=[uU])")
_BYTES = re.compile("[\udc80-\udcff]+")


@dataclass(frozen=True)
class Piece:
    """The bytes of one token id, which may begin or end within a character."""

    data: bytes
    special: bool

    @property
    def shown(self) -> str:
        """Safe to print, and different for different tokens: ␣ ⏎ ⇥ for white space, ⟨E2 82⟩ for bytes that are not a
        whole character, ⟦<|im_end|>⟧ for a control token."""
        text = _shown(self.data, _SIGNS)
        return f"⟦{text}⟧" if self.special else text


class Candidate(NamedTuple):
    """A token that was possible at a position, with its log-probability under each model, nats."""

    token: int
    piece: Piece
    student_logp: float
    teacher_logp: float


class Mark(NamedTuple):
    """A token to show. `serious`: the teacher is confident of another one. `unsure`: the teacher is not confident."""

    position: int
    nats: float
    kind: Literal["serious", "mild", "unsure"]
    turning_point: bool  # the first serious one: everything after it continues from a mistake


@dataclass(frozen=True, eq=False)
class MarkedAnswer:
    """One answer with the values of both models at each of its tokens; arrays as described at the top of the file."""

    key: str  # content hash of the prompt / occurrence
    source: str
    prompt: str  # as rendered
    messages: Sequence[Mapping[str, str]]  # role and content
    cut_off: bool
    temperatures: tuple[float, ...]
    token_ids: np.ndarray
    student_logp: np.ndarray
    teacher_logp: np.ndarray
    student_entropy: np.ndarray
    teacher_entropy: np.ndarray
    student_tail: np.ndarray
    teacher_tail: np.ndarray
    teacher_rank: np.ndarray
    divergence: np.ndarray
    candidate_ends: np.ndarray  # counted from this answer's first
    candidate_ids: np.ndarray
    candidate_student: np.ndarray
    candidate_teacher: np.ndarray
    vocabulary: Mapping[int, Piece]  # every id that occurs

    def __len__(self) -> int:
        return len(self.token_ids)

    def piece(self, position: int) -> Piece:
        return self.vocabulary[int(self.token_ids[position])]

    def text(self, start: int = 0, end: int | None = None) -> str:
        """The text of the tokens from `start` to before `end`, without control tokens. Not safe to print."""
        pieces = (self.piece(position) for position in range(len(self))[start:end])
        return b"".join(piece.data for piece in pieces if not piece.special).decode("utf-8", "replace")

    def shown(self, start: int = 0, end: int | None = None) -> str:
        """The same, safe to print: white space unchanged, control tokens and partial characters as in `Piece`."""
        pieces = [self.piece(position) for position in range(len(self))[start:end]]
        groups = [(special, list(group)) for special, group in groupby(pieces, key=lambda piece: piece.special)]
        return "".join(
            "".join(piece.shown for piece in group) if special else _shown(b"".join(piece.data for piece in group), {})
            for special, group in groups
        )

    def candidates(self, position: int) -> list[Candidate]:
        """Sorted by the teacher's log-probability, the most likely first."""
        start = int(self.candidate_ends[position - 1]) if position else 0
        rows = slice(start, int(self.candidate_ends[position]))
        arrays = (getattr(self, name)[rows].tolist() for name in PER_CANDIDATE)
        return [Candidate(token, self.vocabulary[token], *logps) for token, *logps in zip(*arrays, strict=True)]

    def kind(self, position: int) -> Literal["serious", "mild", "unsure"]:
        """How the teacher rates the token at a position."""
        best = self.candidates(position)[0].teacher_logp
        if best < math.log(SURE):
            return "unsure"
        return "serious" if best - self.teacher_logp[position] >= math.log(SERIOUS_RATIO) else "mild"

    def nats(self, beta: float, temperature: float = 1.0) -> list[float]:
        """The divergence at each token. Raises UsageError for a beta or temperature that is not stored."""
        if beta not in BETAS:
            raise messages.beta_not_stored(value=beta, stored=[f"{each:g}" for each in BETAS])
        if temperature not in self.temperatures:
            stored = [f"{each:g}" for each in self.temperatures]
            raise messages.temperature_not_stored(value=temperature, stored=stored)
        return self.divergence[:, self.temperatures.index(temperature), BETAS.index(beta)].tolist()

    def marks(self, beta: float, temperature: float = 1.0) -> list[Mark]:
        """The worst tokens, in the order of the text: the first mistake, serious ones, then the largest divergences."""
        nats, kinds = self.nats(beta, temperature), [self.kind(position) for position in range(len(self))]
        turning = kinds.index("serious") if "serious" in kinds else None
        order = sorted(range(len(self)), key=lambda place: (place != turning, kinds[place] != "serious", -nats[place]))
        worst = sorted(order[: math.ceil(MARKED_SHARE * len(self))])
        return [
            Mark(place, nats[place], kinds[place], place == turning)
            for place in worst
            if kinds[place] == "serious" or nats[place] >= QUIET_NATS
        ]


@dataclass(frozen=True)
class Continuation:
    """The teacher's continuation after the first `position` tokens of an answer, without its stop token."""

    position: int
    text: str
    cut_off: bool


@dataclass(frozen=True)
class MarkSheet:
    """Answers to several prompts, marked with one pair of models; `continued` is not stored."""

    student: str
    teacher: str
    step: int | None  # of the student's run
    beta: float  # the value of BETAS nearest to the objective's
    answers: tuple[MarkedAnswer, ...]
    continued: Continuation | None = None

    def worst(self, num: int, beta: float) -> MarkSheet:
        """The answers with the largest mean divergence, largest first."""
        order = sorted(self.answers, key=lambda answer: -sum(answer.nats(beta)) / len(answer))
        return replace(self, answers=tuple(order[:num]))


def _shown(data: bytes, signs: Mapping[str, str]) -> str:
    """Safe text, with an escape code for each control character, which `safe` would remove with its sequence."""
    text = _CODED.sub(lambda found: f"\\u{ord(found[0]):04x}", data.decode("utf-8", "surrogateescape"))
    parts = re.split(f"({_BYTES.pattern})", text)
    parts[::2] = ["".join(signs.get(char, char) for char in safe(part)) for part in parts[::2]]
    parts[1::2] = [f"⟨{part.encode('utf-8', 'surrogateescape').hex(' ').upper()}⟩" for part in parts[1::2]]
    return "".join(parts)


def worst_marks(run: str, workspace: Path, num: int = 3, beta: float | None = None) -> MarkSheet:
    """The worst answers of a run's last marks, or of a step (NAME@STEP). Raises UsageError if there are none."""
    name, _, step = run.removeprefix("run:").partition("@")
    folder = Run.find(workspace, name).path
    stored = {path.name: path for path in sorted((folder / "marks").glob("step-*.safetensors"))}
    wanted = marks_name(int(step)) if step.isdecimal() else next(reversed(stored), "") if not step else ""
    if wanted not in stored:
        if step:
            names = [path.stem for path in stored.values()]
            raise messages.no_marks_of_step(run=folder.name, step=step, stored=names or ["none"])
        raise messages.no_marks(run=folder.name)
    sheet = read_marks(stored[wanted])
    return sheet.worst(num, sheet.beta if beta is None else beta)


def marks_name(step: int) -> str:
    return f"step-{step:06d}.safetensors"


def write_marks(path: Path, sheet: MarkSheet) -> None:
    """Store a sheet; readers see either the old or the new file. Raises Stopped if writing failed."""
    import numpy as np
    from safetensors.numpy import save

    answers = sheet.answers
    tensors = {name: np.concatenate([getattr(each, name) for each in answers]) for name in (*PER_TOKEN, *PER_CANDIDATE)}
    candidate_ids = tensors.pop("candidate_ids")
    tensors["candidate_ends"] = np.concatenate([np.diff(each.candidate_ends, prepend=0) for each in answers]).cumsum()
    known = {token: piece for each in answers for token, piece in each.vocabulary.items()}
    pieces = {token: known[token] for token in np.union1d(tensors["token_ids"], candidate_ids).tolist()}
    data = [piece.data for piece in pieces.values()]
    tensors["piece_ids"], tensors["piece_ends"] = np.array(list(pieces)), np.cumsum([len(each) for each in data])
    tensors["piece_special"] = np.array([piece.special for piece in pieces.values()], np.uint8)
    tensors["piece_bytes"] = np.frombuffer(b"".join(data), np.uint8)
    for name in ("candidate_ends", "piece_ids", "piece_ends"):
        tensors[name] = tensors[name].astype(np.int32)
    places = np.searchsorted(tensors["piece_ids"], candidate_ids)
    tensors["candidate_places"] = places.astype(np.uint16 if len(pieces) <= 2**16 else np.uint32)
    about = {
        "format": FORMAT,
        **{name: getattr(sheet, name) for name in ("student", "teacher", "step", "beta")},
        "temperatures": answers[0].temperatures,
        "answers": [
            {name: getattr(each, name) for name in ("key", "source", "prompt", "messages", "cut_off")}
            | {"num_tokens": len(each)}
            for each in answers
        ],
    }
    path.parent.mkdir(exist_ok=True)
    write_bytes(path, save(tensors, {"limbeck": json.dumps(about)}))


def read_marks(path: Path) -> MarkSheet:
    """A stored sheet. Raises DataError for a file that cannot be read as marks."""
    from safetensors import SafetensorError, safe_open

    try:
        if path.is_symlink():
            raise ValueError(messages.marks_are_a_link())
        with safe_open(path, "numpy") as file:
            about = json.loads(file.metadata()["limbeck"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - the file is not a mapping
        tensors["candidate_ids"] = tensors["piece_ids"][tensors["candidate_places"]]
        if about["format"] != FORMAT:
            raise ValueError(messages.marks_format(found=about["format"]))
        answers = tuple(_answers(tensors, about))
        fields: dict[str, Any] = {name: about[name] for name in ("student", "teacher", "step", "beta")}
        return MarkSheet(**fields, answers=answers)
    except (OSError, SafetensorError, ValueError, KeyError, IndexError, TypeError) as error:
        raise messages.marks_unreadable(file=path, why=str(error), known_format=FORMAT) from error


def _answers(tensors: Mapping[str, np.ndarray], about: Mapping[str, Any]) -> Iterator[MarkedAnswer]:
    ends = [0, *tensors["piece_ends"].tolist()]
    blob = tensors["piece_bytes"].tobytes()
    vocabulary = {
        token: Piece(blob[ends[place] : ends[place + 1]], bool(tensors["piece_special"][place]))
        for place, token in enumerate(tensors["piece_ids"].tolist())
    }
    temperatures = tuple(about["temperatures"])
    if tensors["divergence"].shape != (len(tensors["token_ids"]), len(temperatures), len(BETAS)):
        raise ValueError(messages.marks_shape(shape=str(tensors["divergence"].shape)))
    all_ends, start, first = tensors["candidate_ends"], 0, 0
    for row in about["answers"]:
        end = start + row["num_tokens"]
        last = int(all_ends[end - 1])
        arrays: dict[str, Any] = {name: tensors[name][start:end] for name in PER_TOKEN}
        arrays |= {name: tensors[name][first:last] for name in PER_CANDIDATE}
        yield MarkedAnswer(
            **{name: row[name] for name in ("key", "source", "prompt", "messages", "cut_off")},
            temperatures=temperatures,
            candidate_ends=all_ends[start:end] - first,
            vocabulary=vocabulary,
            **arrays,
        )
        start, first = end, last
