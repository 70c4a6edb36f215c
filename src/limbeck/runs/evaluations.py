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
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from limbeck.errors import DataError, Refusal, UsageError
from limbeck.names import check_name
from limbeck.runs.folder import LockedFolder
from limbeck.runs.lineage import is_same_model
from limbeck.runs.lines import FORMAT, append_line, check_format, event_line, write_text

__all__ = ["RESULT_KEYS", "Evaluation", "list_evaluations", "open_evaluation", "worth_record"]

# What every view of a result reads.
RESULT_KEYS = {
    *("kind", "name", "prompts", "settings", "measure", "models", "team_length", "comparisons", "slices", "verdict"),
    *("next_step", "notes"),
}


class Evaluation(LockedFolder):
    """One evaluation's folder."""

    kind = "evaluation"
    marker = "evaluation.json"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.asked_path = path / self.marker
        self.judgements_path = path / "judgements.jsonl"
        self.marks_path = path / "marks"
        self.result_path = path / "result.json"

    @property
    def finished(self) -> bool:
        return self.result_path.is_file()

    def begin(self, asked: Mapping[str, object]) -> None:
        """Write down what is asked, or find the same written down already.

        Raises:
            Refusal: something else was asked when the evaluation began; the differences are named.
        """
        if self.asked_path.is_file():
            self._refuse(self.changes(asked))
        else:
            self._write(self.asked_path, {**FORMAT, **asked, "facts": {}})

    def changes(self, asked: Mapping[str, object]) -> list[str]:
        """What differs between `asked` and what was asked when the evaluation began."""
        before = {name: value for name, value in self.asked().items() if name not in FORMAT}
        return _differences({**before, "facts": None}, {**_as_written(asked), "facts": None})

    def learn(self, alias: str, facts: Mapping[str, object]) -> None:
        """Write down what was found out about a model, its weights for one, or find the same written down already.

        Raises:
            Refusal: the model is another one than when it answered.
        """
        known, now = self.asked(), _as_written(facts)
        self._refuse(_differences(known["facts"].setdefault(alias, now), now, f" of {alias}"))
        self._write(self.asked_path, known)

    def _refuse(self, changes: list[str]) -> None:
        if changes:
            raise Refusal(
                "evaluation.changed",
                given=f"{self.name} began with another question: {'; '.join(changes)}.",
                needed="Answers of one evaluation stand side by side, so all of them are to the same question.",
                fix="Put it back and go on, or give the new evaluation a name of its own.",
            )

    def _write(self, path: Path, value: Mapping[str, object]) -> None:
        self._needs_lock()
        write_text(path, event_line(value, indent=1))

    def asked(self) -> dict[str, Any]:
        """What was asked, and under `facts` what was found out about each model. Raises DataError if unreadable."""
        return _object(self.asked_path)

    def append_answer(self, alias: str, row: Mapping[str, object]) -> None:
        """Add one answer; it is on the disk when this returns, for a hosted model's answer was paid for."""
        self._needs_lock()
        append_line(self.answers(alias), event_line(row), durable=True)

    def read_answers(self, name: str) -> list[dict[str, Any]]:
        """A model's answers so far; none of a model that has not begun."""
        return super().read_answers(name) if self.answers(name).is_file() else []

    def result(self) -> dict[str, Any]:
        """The result. Raises UsageError `evaluation.unfinished` while there is none."""
        if not self.finished:
            raise UsageError(
                "evaluation.unfinished",
                given=f"{self.name} has no result yet.",
                needed="It is written when all models have answered and all answers are graded.",
                fix="Give the same command again: it goes on where it stopped.",
            )
        self.asked()  # bears the format of both
        return _object(self.result_path, RESULT_KEYS)

    def write_result(self, result: Mapping[str, object]) -> None:
        """Write the result, whole."""
        self._write(self.result_path, result)


def open_evaluation(workspace: Path, name: str | None, asked: Mapping[str, object]) -> Evaluation:
    """The evaluation to write: the one of this name, or one that was stopped with the same question, or a new one."""
    if name is None:
        stopped = [each for each in list_evaluations(workspace) if not each.finished and not each.changes(asked)]
        return stopped[0] if stopped else Evaluation.create(workspace, None)
    path = Evaluation.home(workspace) / check_name(name, what="evaluation")
    return Evaluation(path) if (path / "answers").is_dir() else Evaluation.create(workspace, name)


def list_evaluations(workspace: Path) -> list[Evaluation]:
    """All evaluations of a workspace, newest first. What is none, is damaged or leads out of it is left out."""
    found = [(each.asked_path.stat().st_mtime, each.name, each) for each in Evaluation.stored(workspace)]
    return [each for _, _, each in sorted(found, key=lambda entry: entry[:2], reverse=True) if _is_whole(each)]


def _is_whole(evaluation: Evaluation) -> bool:
    """Whether its two files are what Limbeck wrote there, as far as they are there."""
    try:
        evaluation.asked()
        if evaluation.finished:
            evaluation.result()
    except DataError:
        return False
    return True


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
            sides = {model["role"]: {**model, "name": model["ref"]} for model in result["models"]}
            same = result["prompts"]["hash"] == prompts and sides.keys() == {"student", "teacher"}
            if same and is_same_model(student, sides["student"]) and is_same_model(teacher, sides["teacher"]):
                verdict = result["verdict"] or {"decision": None, "words": ["There is no verdict on these answers."]}
                return {"evaluation": evaluation.name, "decision": verdict["decision"], "text": verdict["words"][0]}
    return None


def _as_written(value: Mapping[str, object]) -> dict[str, Any]:
    """What comes back when `value` has been written and read."""
    return json.loads(event_line(value))


def _differences(before: Mapping[str, object], now: Mapping[str, object], whose: str = "") -> list[str]:
    names = [name for name in sorted(before.keys() | now.keys()) if before.get(name) != now.get(name)]
    return [f"{name}{whose} was {_short(before.get(name))}, is {_short(now.get(name))}" for name in names]


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 120 else f"{text[:117]}..."


def _object(path: Path, needed: Collection[str] = ()) -> dict[str, Any]:
    try:
        value = None if path.is_symlink() else json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        value = None
    if isinstance(value, dict) and value.keys() >= set(needed):
        check_format(value, path)
        return value
    raise DataError(
        "evaluation.unreadable",
        given=f"{path} is missing, a link, or does not hold what Limbeck wrote there.",
        needed="Limbeck writes this file in one piece; it was changed or taken away.",
        fix=f"Restore it from a copy, or remove the folder {path.parent}.",
    )
