"""Results of the public functions: folders and records that a notebook can show and pandas can read.

This module does not import torch, so that results can be read without loading it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from limbeck.errors import DataError
from limbeck.messages import module_missing
from limbeck.reporting.cells import evaluation_cell, marks_cell, table_cell
from limbeck.reporting.check import machine_rows
from limbeck.runs import evaluations, marks, store
from limbeck.runs.lineage import LineageNode

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["Evaluation", "Lineage", "MachineReport", "Marks", "Run", "RunList", "Talk", "frame"]

CURVE_COLUMNS = ("step", "loss", "grad_norm", "learning_rate", "mean_length", "cut_off_share", "agreement", "step_s")


def frame(rows: Iterable[Mapping[str, Any]]) -> DataFrame:
    """Rows as a pandas frame. Raises LimbeckError `api.module-missing` where pandas is not installed."""
    try:
        pandas = import_module("pandas")
    except ModuleNotFoundError as error:
        raise module_missing(module="pandas") from error
    return pandas.DataFrame(list(rows))


class Run(store.Run):
    """A run's folder: `path`, `name`, `status()`, `model_path`, its events and its answers."""

    def steps(self) -> list[dict[str, Any]]:
        """One record for each step: losses and entropies in nats per token, times in seconds, shares from 0 to 1."""
        return [event for event in self._events() if event["kind"] == "step"]

    def evaluations(self) -> list[dict[str, Any]]:
        """One record for each evaluation of held-out loss during training."""
        return [event for event in self._events() if event["kind"] == "evaluation"]

    def to_pandas(self) -> DataFrame:
        """`steps()` as a frame."""
        return frame(self.steps())

    def answers_to_pandas(self, name: str) -> DataFrame:
        """A set of answers (`answer_sets()` names them) as a frame."""
        return frame(self.read_answers(name))

    def _events(self) -> list[dict[str, Any]]:
        return store.current_events(self.read_events())

    def _repr_html_(self) -> str:
        status = self.status()
        sentences = [f"{status.state} after step {status.step} of {status.steps or '?'}. {status.text}".strip()]
        sentences += [str(event["text"]) for event in self._events() if event["kind"] == "alert"]
        measured = [
            {
                "step": event["step"],
                "teacher's text, nats": event["teacher_text_loss"],
                "student's text, nats": event["student_text_loss"],
            }
            for event in self.evaluations()
        ]
        last = [{name: step.get(name) for name in CURVE_COLUMNS} for step in self.steps()[-5:]]
        return table_cell(f"Run {self.name}", sentences, measured, last)

    def __repr__(self) -> str:
        return f"<limbeck.Run {self.path}>"


class Evaluation(evaluations.Evaluation):
    """An evaluation's folder; `result()` contains all values of its report."""

    @property
    def verdict(self) -> str | None:
        """The verdict in a sentence with its interval; None if the evaluation has no verdict."""
        found = self.result()["verdict"]
        return None if found is None else str(found["words"][0])

    @property
    def decision(self) -> str | None:
        """The verdict in one or two words, as in the headline of `limbeck report`."""
        found = self.result()["verdict"]
        return None if found is None else str(found["decision"])

    @property
    def scores(self) -> dict[str, float | None]:
        """The mean score of each model, from 0 to 1; None for models without grades."""
        return {each["alias"]: each["score"] and each["score"]["estimate"] for each in self.result()["models"]}

    def answers_of(self, alias: str) -> list[dict[str, Any]]:
        """The answers of one model, one record for each prompt and sample."""
        return self.read_answers(alias)

    def to_pandas(self) -> DataFrame:
        """All answers of all models as one frame, the model's alias in the column `model`."""
        aliases = [each["alias"] for each in self.result()["models"]]
        return frame({"model": alias, **row} for alias in aliases for row in self.read_answers(alias))

    def _repr_html_(self) -> str:
        return evaluation_cell(self.result())

    def __repr__(self) -> str:
        return f"<limbeck.Evaluation {self.path}: {self.verdict if self.finished else 'not finished'}>"


@dataclass(frozen=True)
class RunList(Sequence[Run]):
    """The runs of a workspace, newest first."""

    runs: tuple[Run, ...]

    def __len__(self) -> int:
        return len(self.runs)

    def __getitem__(self, place: Any) -> Any:
        return self.runs[place]

    def rows(self) -> Iterator[dict[str, Any]]:
        """A record for each run: its name, path and status. If its log is damaged, `text` says how."""
        for run in self.runs:
            try:
                yield {"run": run.name, "path": str(run.path), **asdict(run.status())}
            except DataError as error:
                yield {"run": run.name, "path": str(run.path), "state": "damaged", "text": error.given}

    def to_pandas(self) -> DataFrame:
        """`rows()` as a frame."""
        return frame(self.rows())

    def _repr_html_(self) -> str:
        rows = [
            {name: row.get(name) for name in ("run", "state", "step", "steps", "checkpoint")} for row in self.rows()
        ]
        return table_cell("Runs", () if rows else ("This workspace has no runs yet.",), rows)


@dataclass(frozen=True)
class Lineage:
    """The origin of a run as a tree; `warning` is empty unless its stages had different teachers."""

    root: LineageNode
    warning: str

    def rows(self) -> list[dict[str, Any]]:
        """The tree as records, the run first; `depth` counts from 0."""
        return list(_rows(self.root, 0))

    def to_pandas(self) -> DataFrame:
        """`rows()` as a frame."""
        return frame(self.rows())

    def _repr_html_(self) -> str:
        rows = [{"role": "  " * each.pop("depth") + each["role"], **each} for each in self.rows()]
        return table_cell(f"Lineage of {self.root.name}", [self.warning] if self.warning else [], rows)


def _rows(node: LineageNode, depth: int) -> Iterator[dict[str, Any]]:
    yield {"depth": depth, "role": node.role, "name": node.name, "about": node.about}
    for parent in node.parents:
        yield from _rows(parent, depth + 1)


@dataclass(frozen=True)
class Marks(marks.MarkSheet):
    """Marks of answers: the log-probabilities of student and teacher at every token."""

    def rows(self) -> Iterator[dict[str, Any]]:
        """A record for each token: its position, its text, both log-probabilities and the divergence, in nats."""
        for number, answer in enumerate(self.answers):
            for position, nats in enumerate(answer.nats(self.beta)):
                yield {
                    "answer": number,
                    "source": answer.source,
                    "position": position,
                    "token": int(answer.token_ids[position]),
                    "text": answer.piece(position).shown,
                    "student_logp": float(answer.student_logp[position]),
                    "teacher_logp": float(answer.teacher_logp[position]),
                    "divergence": nats,
                    "kind": answer.kind(position),
                }

    def to_pandas(self) -> DataFrame:
        """`rows()` as a frame."""
        return frame(self.rows())

    def _repr_html_(self) -> str:
        return marks_cell(self)


@dataclass(frozen=True)
class Talk(Sequence[str]):
    """A conversation: the user's turns and, as the items of the sequence, the model's answers."""

    turns: tuple[str, ...]
    replies: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.replies)

    def __getitem__(self, place: Any) -> Any:
        return self.replies[place]

    def rows(self) -> list[dict[str, str]]:
        """A record for each turn."""
        return [{"user": user, "assistant": reply} for user, reply in zip(self.turns, self.replies, strict=True)]

    def to_pandas(self) -> DataFrame:
        """`rows()` as a frame."""
        return frame(self.rows())

    def _repr_html_(self) -> str:
        return table_cell("Conversation", (), self.rows())


@dataclass(frozen=True)
class MachineReport:
    """The machine's resources and libraries (sizes in bytes), and the environment variables that affect a run."""

    machine: Mapping[str, object]
    environment: Mapping[str, str]

    def _repr_html_(self) -> str:
        return table_cell("This machine", (), machine_rows(self.machine))
