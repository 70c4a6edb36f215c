"""An evaluation is a folder next to the runs; this file knows the names and formats in it.

    evaluations/calm-otter-17/
    ├── evaluation.json        prompts, settings and models, written once, and facts about each model
    ├── answers/MODEL.jsonl    one line per prompt and sample, appended as the answers arrive
    ├── judgements.jsonl       the raw replies of a judge, if there is one
    ├── marks/*.safetensors    the marks of selected answers
    ├── result.json            written last: everything that the views show
    └── run.lock               the process that writes

A model is named by its alias: teacher, student, distilled, or model-1 and so on.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from limbeck.errors import DataError
from limbeck.names import check_name
from limbeck.runs import messages
from limbeck.runs.folder import LockedFolder
from limbeck.runs.lineage import is_same_model
from limbeck.runs.lines import FORMAT, append_line, check_format, event_line, write_text

__all__ = ["RESULT_KEYS", "Evaluation", "list_evaluations", "open_evaluation", "worth_record"]

# The keys that every view of a result reads.
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
        """Store the request of the evaluation, or check that it equals the stored one.

        Raises:
            Refusal: the evaluation was started with another request; the error lists the differences.
        """
        if self.asked_path.is_file():
            self._refuse(self.changes(asked))
        else:
            self._write(self.asked_path, {**FORMAT, **asked, "facts": {}})

    def changes(self, asked: Mapping[str, object]) -> list[str]:
        """The differences between the request `asked` and the stored one."""
        before = {name: value for name, value in self.asked().items() if name not in FORMAT}
        return _differences({**before, "facts": None}, {**_as_written(asked), "facts": None})

    def learn(self, alias: str, facts: Mapping[str, object]) -> None:
        """Store facts about a model, such as the hash of its weights, or check that they equal the stored ones.

        Raises:
            Refusal: the model has changed since it answered.
        """
        known, now = self.asked(), _as_written(facts)
        self._refuse(_differences(known["facts"].setdefault(alias, now), now, alias))
        self._write(self.asked_path, known)

    def _refuse(self, changes: list[str]) -> None:
        if changes:
            raise messages.evaluation_changed(name=self.name, changes=changes)

    def _write(self, path: Path, value: Mapping[str, object]) -> None:
        self._needs_lock()
        write_text(path, event_line(value, indent=1))

    def asked(self) -> dict[str, Any]:
        """The stored request, with the facts about each model under `facts`. Raises DataError if it is unreadable."""
        return _object(self.asked_path)

    def append_answer(self, alias: str, row: Mapping[str, object]) -> None:
        """Append one answer; it is on disk when this returns, because an answer of a hosted model was paid for."""
        self._needs_lock()
        append_line(self.answers(alias), event_line(row), durable=True)

    def read_answers(self, name: str) -> list[dict[str, Any]]:
        """A model's answers so far; empty if it has none yet."""
        return super().read_answers(name) if self.answers(name).is_file() else []

    def result(self) -> dict[str, Any]:
        """The result. Raises UsageError `evaluation.unfinished` if there is none yet."""
        if not self.finished:
            raise messages.evaluation_unfinished(name=self.name)
        self.asked()  # has the format of both files
        return _object(self.result_path, RESULT_KEYS)

    def write_result(self, result: Mapping[str, object]) -> None:
        """Write the result as a whole."""
        self._write(self.result_path, result)


def open_evaluation(workspace: Path, name: str | None, asked: Mapping[str, object]) -> Evaluation:
    """The evaluation to continue or start: by name, or an unfinished one with the same request, or a new one."""
    if name is None:
        stopped = [each for each in list_evaluations(workspace) if not each.finished and not each.changes(asked)]
        return stopped[0] if stopped else Evaluation.create(workspace, None)
    path = Evaluation.home(workspace) / check_name(name, what="evaluation")
    return Evaluation(path) if (path / "answers").is_dir() else Evaluation.create(workspace, name)


def list_evaluations(workspace: Path) -> list[Evaluation]:
    """All evaluations of a workspace, newest first, without damaged ones and links that lead outside."""
    found = [(each.asked_path.stat().st_mtime, each.name, each) for each in Evaluation.stored(workspace)]
    return [each for _, _, each in sorted(found, key=lambda entry: entry[:2], reverse=True) if _is_whole(each)]


def _is_whole(evaluation: Evaluation) -> bool:
    """Whether its files are intact, as far as they exist."""
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
    """The newest verdict of `limbeck worth` on models and held-out prompts of the same content; None without one.

    Args:
        workspace: contains the evaluations.
        prompts: the hash of the held-out prompts.
        student: its `name`, `weights` (a hash, None for a hosted API) and `dtype`.
        teacher: the same.
    """
    for evaluation in list_evaluations(workspace):
        if evaluation.finished:
            result = evaluation.result()
            sides = {model["role"]: {**model, "name": model["ref"]} for model in result["models"]}
            same = result["prompts"]["hash"] == prompts and sides.keys() == {"student", "teacher"}
            if same and is_same_model(student, sides["student"]) and is_same_model(teacher, sides["teacher"]):
                verdict = result["verdict"] or {"decision": None, "words": [messages.no_verdict()]}
                return {"evaluation": evaluation.name, "decision": verdict["decision"], "text": verdict["words"][0]}
    return None


def _as_written(value: Mapping[str, object]) -> dict[str, Any]:
    """`value` after writing it as JSON and reading it back."""
    return json.loads(event_line(value))


def _differences(before: Mapping[str, object], now: Mapping[str, object], model: str | None = None) -> list[str]:
    changes: list[str] = []
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) != now.get(name):
            values = {"name": name, "before": _short(before.get(name)), "now": _short(now.get(name))}
            of_model = messages.evaluation_model_change
            changes.append(of_model(model=model, **values) if model else messages.evaluation_change(**values))
    return changes


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
    raise messages.evaluation_unreadable(file=path, folder=path.parent)
