"""An evaluation is a folder beside the runs; this file knows the names and formats in it.

    evaluations/calm-otter-17/
    ├── evaluation.json        what was asked, written once, and what was found out about each model
    ├── answers/MODEL.jsonl    one line per prompt and sample, appended as the answers come
    ├── judgements.jsonl       the raw replies of a judge, where there is one
    ├── marks/*.safetensors    the marks of chosen answers
    ├── result.json            written last: everything that a view of it shows
    └── run.lock               who writes

A model stands under its alias: teacher, student, distilled, or model-1 and so on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from limbeck.errors import DataError, Refusal, UsageError
from limbeck.names import check_name, inside, is_name
from limbeck.runs.lines import append_line, event_line, iterate_lines, write_text
from limbeck.runs.lock import RunLock
from limbeck.runs.store import new_folder

__all__ = ["Evaluation", "evaluations_folder", "find_evaluation", "list_evaluations", "open_evaluation", "worth_record"]

# What every view of a result reads.
_RESULT_KEYS = {
    *("kind", "name", "prompts", "settings", "measure", "models", "team_length", "comparisons", "slices", "verdict"),
    *("next_step", "notes"),
}


class Evaluation:
    """One evaluation's folder. Reading needs nothing; writing needs the lock, which `with evaluation:` holds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name
        self.asked_path = path / "evaluation.json"
        self.judgements_path = path / "judgements.jsonl"
        self.marks_path = path / "marks"
        self.result_path = path / "result.json"
        self._lock = RunLock(path / "run.lock")

    @classmethod
    def create(cls, workspace: Path, name: str | None) -> Evaluation:
        """A new folder, named `name` or with a name like calm-otter-17. Raises UsageError for a name that is taken."""
        path = new_folder(workspace, "evaluation", name)
        (path / "answers").mkdir()
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> Evaluation:
        """The evaluation in the folder `path`. Raises UsageError `evaluation.not-found` if that is none."""
        if not (path / "evaluation.json").is_file():
            raise UsageError(
                "evaluation.not-found",
                given=f"{path} is no evaluation.",
                needed="An evaluation is a folder with a file evaluation.json, which limbeck worth and eval write.",
                fix="Name one of the folder evaluations/ of the workspace; --workspace names another workspace.",
            )
        return cls(path)

    def __enter__(self) -> Self:
        """Take the lock for writing. Raises Refusal `run.locked` naming the process that has it."""
        self._lock.acquire()
        return self

    def __exit__(self, *raised: object) -> None:
        self._lock.release()

    @property
    def finished(self) -> bool:
        return self.result_path.is_file()

    def begin(self, asked: Mapping[str, object]) -> None:
        """Write down what is asked, or find the same written down already.

        Raises:
            Refusal: something else was asked when the evaluation began; the differences are named.
        """
        assert self._lock.held, "only the holder of the lock may write: use `with evaluation:`"
        if not self.asked_path.is_file():
            self._write_asked({**asked, "facts": {}})
        elif changes := self.changes(asked):
            raise _changed(self.name, changes)

    def changes(self, asked: Mapping[str, object]) -> list[str]:
        """What differs between `asked` and what was asked when the evaluation began."""
        before, now = {**self.asked(), "facts": None}, {**json.loads(event_line(asked)), "facts": None}
        names = [name for name in sorted(before.keys() | now.keys()) if before.get(name) != now.get(name)]
        return [f"{name} was {_short(before.get(name))}, is {_short(now.get(name))}" for name in names]

    def learn(self, alias: str, facts: Mapping[str, object]) -> None:
        """Write down what was found out about a model, its weights for one, or find the same written down already.

        Raises:
            Refusal: the model is another one than when it answered.
        """
        known, now = self.asked(), json.loads(event_line(facts))
        before = known["facts"].setdefault(alias, now)
        if before != now:
            names = [name for name in now if before.get(name) != now[name]]
            told = [f"{name} of {alias} was {_short(before.get(name))}, is {_short(now[name])}" for name in names]
            raise _changed(self.name, told)
        self._write_asked(known)

    def _write_asked(self, asked: Mapping[str, object]) -> None:
        plain = json.loads(event_line(asked))
        write_text(self.asked_path, json.dumps(plain, ensure_ascii=False, indent=1) + "\n")

    def asked(self) -> dict[str, Any]:
        """What was asked, and under `facts` what was found out about each model. Raises DataError if unreadable."""
        return _object(self.asked_path)

    def answers(self, alias: str) -> Path:
        """The file of a model's answers. Raises UsageError for an alias that is no name."""
        return self.path / "answers" / f"{check_name(alias, what='set of answers')}.jsonl"

    def append_answer(self, alias: str, row: Mapping[str, object]) -> None:
        """Add one answer; it is on the disk when this returns, for a hosted model's answer was paid for."""
        assert self._lock.held, "only the holder of the lock may write: use `with evaluation:`"
        append_line(self.answers(alias), event_line(row), durable=True)

    def write_answers(self, alias: str, rows: Iterable[Mapping[str, object]]) -> None:
        """Replace a model's answers, as grading does; a reader sees the old ones or the new ones."""
        assert self._lock.held, "only the holder of the lock may write: use `with evaluation:`"
        write_text(self.answers(alias), "".join(event_line(row) for row in rows))

    def read_answers(self, alias: str) -> list[dict[str, Any]]:
        """A model's answers so far; none of a model that has not begun."""
        path = self.answers(alias)
        return list(iterate_lines(path)) if path.is_file() else []

    def result(self) -> dict[str, Any]:
        """The result. Raises UsageError `evaluation.unfinished` while there is none."""
        if not self.finished:
            raise UsageError(
                "evaluation.unfinished",
                given=f"{self.name} has no result yet.",
                needed="It is written when all models have answered and all answers are graded.",
                fix="Give the same command again: it goes on where it stopped.",
            )
        found = _object(self.result_path)
        if not found.keys() >= _RESULT_KEYS:
            raise _unreadable(self.result_path)
        return found

    @property
    def is_readable(self) -> bool:
        """Whether its two files are what Limbeck wrote there, as far as they are there."""
        try:
            self.asked()
            if self.finished:
                self.result()
        except DataError:
            return False
        return True

    def write_result(self, result: Mapping[str, object]) -> None:
        """Write the result, whole."""
        assert self._lock.held, "only the holder of the lock may write: use `with evaluation:`"
        plain = json.loads(event_line(result))
        write_text(self.result_path, json.dumps(plain, ensure_ascii=False, indent=1) + "\n")


def open_evaluation(workspace: Path, name: str | None, asked: Mapping[str, object]) -> Evaluation:
    """The evaluation to write: the one of this name, or one that was stopped with the same question, or a new one."""
    if name is None:
        stopped = [each for each in list_evaluations(workspace) if not each.finished and not each.changes(asked)]
        return stopped[0] if stopped else Evaluation.create(workspace, None)
    path = evaluations_folder(workspace) / check_name(name, what="evaluation")
    return Evaluation(path) if (path / "answers").is_dir() else Evaluation.create(workspace, name)


def evaluations_folder(workspace: Path) -> Path:
    """Where the evaluations of a workspace lie."""
    return inside(workspace, "evaluations")


def list_evaluations(workspace: Path) -> list[Evaluation]:
    """All evaluations of a workspace, newest first. What is none, is damaged or leads out of it is left out."""
    found = [path.parent for path in evaluations_folder(workspace).glob("*/evaluation.json")]
    found = [path for path in found if is_name(path.name) and not path.is_symlink()]
    ordered = sorted(found, key=lambda path: ((path / "evaluation.json").stat().st_mtime, path.name), reverse=True)
    return [each for each in map(Evaluation, ordered) if each.is_readable]


def find_evaluation(text: str, workspace: Path) -> Evaluation:
    """An evaluation by the path of its folder or by its name in the workspace."""
    path = Path(text)
    if path.name != text or (path / "evaluation.json").is_file():
        return Evaluation.open(path)
    return Evaluation.open(inside(workspace, evaluations_folder(workspace) / check_name(text, what="evaluation")))


def worth_record(
    workspace: Path, prompts: str, student: Mapping[str, Any], teacher: Mapping[str, Any]
) -> dict[str, object] | None:
    """The newest verdict of `limbeck worth` on these models and held-out prompts, all by content; None without one.

    Args:
        workspace: where evaluations are looked for.
        prompts: the hash of the held-out prompts.
        student: its `name`, `weights` (a hash, None for a model behind an interface) and `dtype`.
        teacher: the same.
    """
    for evaluation in list_evaluations(workspace):
        if evaluation.finished:
            result = evaluation.result()
            sides = {model["role"]: model for model in result["models"]}
            same = result["prompts"]["hash"] == prompts and sides.keys() == {"student", "teacher"}
            if same and _is(student, sides["student"]) and _is(teacher, sides["teacher"]):
                verdict = result["verdict"] or {"decision": None, "words": ["There is no verdict on these answers."]}
                return {"evaluation": evaluation.name, "decision": verdict["decision"], "text": verdict["words"][0]}
    return None


def _is(known: Mapping[str, Any], model: Mapping[str, Any]) -> bool:
    """Whether two are one model: by its weights, by its name where these cannot be compared."""
    if known["weights"] is None or known["dtype"] != model["dtype"]:
        return known["name"] == model["ref"]
    return known["weights"] == model["weights"]


def _changed(name: str, changes: Iterable[str]) -> Refusal:
    return Refusal(
        "evaluation.changed",
        given=f"{name} began with another question: {'; '.join(changes)}.",
        needed="Answers of one evaluation stand side by side, so all of them are to the same question.",
        fix="Put it back and go on, or give the new evaluation a name of its own.",
    )


def _object(path: Path) -> dict[str, Any]:
    try:
        value = None if path.is_symlink() else json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        value = None
    if isinstance(value, dict):
        return value
    raise _unreadable(path)


def _unreadable(path: Path) -> DataError:
    return DataError(
        "evaluation.unreadable",
        given=f"{path} is missing, a link, or does not hold what Limbeck wrote there.",
        needed="Limbeck writes this file in one piece; it was changed or taken away.",
        fix=f"Restore it from a copy, or remove the folder {path.parent}.",
    )


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 120 else f"{text[:117]}..."
