"""Every message of the runs: folders, files, locks, lineage, marks and exports."""

from __future__ import annotations

from pathlib import Path

from limbeck.errors import DataError, Refusal, Stopped, Text, UsageError, error, note

# ---------------------------------------------------------------------------------------- folders


@error(UsageError, "run.exists")
def run_exists(*, name: str, folder: Path) -> Text:
    return Text(
        given="The run name {name} is taken, by a run in {folder} or another stage.",
        needed="Each run needs a folder of its own, so that runs do not mix.",
        fix="Choose another name, or remove the name to get a generated one.",
    )


@error(UsageError, "evaluation.exists")
def evaluation_exists(*, name: str, folder: Path) -> Text:
    return Text(
        given="The evaluation {name} already exists in {folder}.",
        needed="Each evaluation needs a folder of its own, so that evaluations do not mix.",
        fix="Choose another name, or remove the name to get a generated one.",
    )


@error(UsageError, "run.not-found")
def run_not_found(*, path: Path, marker: str) -> Text:
    return Text(
        given="{path} is not a run.",
        needed="A run is a folder with the file {marker}.",
        fix="List the runs with limbeck runs; use --workspace for those of another workspace.",
    )


@error(UsageError, "run.not-found.similar")
def run_not_found_similar(*, path: Path, marker: str, similar: list[str]) -> Text:
    return Text(
        given="{path} is not a run.",
        needed="A run is a folder with the file {marker}.",
        fix="Did you mean {similar}?",
    )


@error(UsageError, "evaluation.not-found")
def evaluation_not_found(*, path: Path, marker: str) -> Text:
    return Text(
        given="{path} is not an evaluation.",
        needed="An evaluation is a folder with the file {marker}.",
        fix="Use the name of a folder in evaluations; use --workspace for another workspace.",
    )


@error(UsageError, "evaluation.not-found.similar")
def evaluation_not_found_similar(*, path: Path, marker: str, similar: list[str]) -> Text:
    return Text(
        given="{path} is not an evaluation.",
        needed="An evaluation is a folder with the file {marker}.",
        fix="Did you mean {similar}?",
    )


@error(Refusal, "run.locked")
def locked(*, folder: str, pid: int, host: str, started: str, heartbeat_age_s: float) -> Text:
    return Text(
        given="The folder {folder} is in use by process {pid} on {host}, started {started} (last active "
        "{heartbeat_age_s:.0f} s ago).",
        needed="Two processes that write to one folder would mix their results; nothing was written.",
        fix="Wait for that process or stop it, or choose another name.",
    )


@error(Refusal, "run.locked.unknown")
def locked_by_unknown(*, folder: str) -> Text:
    return Text(
        given="The folder {folder} is in use by another process.",
        needed="Two processes that write to one folder would mix their results; nothing was written.",
        fix="Wait for that process or stop it, or choose another name.",
    )


# ---------------------------------------------------------------------------------------- files


@error(DataError, "run.unreadable")
def unreadable(*, file: Path, why: str) -> Text:
    return Text(
        given="{file} cannot be read: {why}.",
        needed="The files of a run must be regular files, not links, with read permission.",
        fix="Change the permission, or replace a link by the file itself.",
    )


@error(DataError, "run.line-broken")
def line_broken(*, place: str, why: str) -> Text:
    return Text(
        given="{place} is broken: {why}.",
        needed="Each line must be a JSON object. Limbeck writes whole lines, so this one was changed later.",
        fix="Restore the file from a copy, or delete this line.",
    )


@note("run.line-not-object")
def line_not_object() -> str:
    return "it is not a JSON object"


@error(Stopped, "run.write-failed")
def write_failed(*, file: Path, why: str) -> Text:
    return Text(
        given="{file} could not be written: {why}.",
        needed="The results of a run must be saved, or they are lost.",
        fix="Free disk space or change the permission, then resume the run.",
    )


# ---------------------------------------------------------------------------------------- evaluations


@error(Refusal, "evaluation.changed")
def evaluation_changed(*, name: str, changes: list[str]) -> Text:
    return Text(
        given="{name} was started with other settings or models: {changes}.",
        needed="All answers of an evaluation are compared, so prompts, settings and models must stay the same.",
        fix="Restore the original ones and continue, or choose a new name for this evaluation.",
    )


@note("evaluation.change")
def evaluation_change(*, name: str, before: str, now: str) -> str:
    return "{name} was {before}, is {now}"


@note("evaluation.model-change")
def evaluation_model_change(*, name: str, model: str, before: str, now: str) -> str:
    return "{name} of {model} was {before}, is {now}"


@error(UsageError, "evaluation.unfinished")
def evaluation_unfinished(*, name: str) -> Text:
    return Text(
        given="{name} has no result yet.",
        needed="The result is written when all models have answered and all answers are graded.",
        fix="Run the same command again: it continues where it stopped.",
    )


@error(DataError, "evaluation.unreadable")
def evaluation_unreadable(*, file: Path, folder: Path) -> Text:
    return Text(
        given="{file} is missing, is a link, or does not contain what Limbeck wrote.",
        needed="Limbeck writes this file as a whole, so it was changed or removed later.",
        fix="Restore it from a copy, or delete the folder {folder}.",
    )


@note("evaluation.no-verdict")
def no_verdict() -> str:
    return "There is no verdict on these answers."


# ---------------------------------------------------------------------------------------- exports


@error(UsageError, "export.nothing")
def no_model_yet(*, name: str, path: Path) -> Text:
    return Text(
        given="{name} has no model yet.",
        needed="A run saves its final model, and the adapter of a LoRA run, after its last step.",
        fix="Finish the run: limbeck resume {path}.",
    )


@error(UsageError, "export.nothing.adapter")
def no_adapter(*, name: str) -> Text:
    return Text(
        given="{name} trained all weights and has no adapter.",
        needed="Only a run with the setting lora has an adapter.",
        fix="Export the whole model: --to merged.",
    )


@error(UsageError, "export.exists")
def export_exists(*, folder: Path) -> Text:
    return Text(
        given="{folder} already exists.",
        needed="An export does not overwrite files.",
        fix="Choose another folder with --output, or delete this one.",
    )


# ---------------------------------------------------------------------------------------- lineage


@note("lineage.run")
def lineage_run(*, route: str, state: str, step: int) -> str:
    return "{route}, {state} after step {step}"


@note("lineage.run-changed")
def lineage_run_changed(*, about: str) -> str:
    return "{about}, CHANGED since"


@note("lineage.hosted")
def lineage_hosted() -> str:
    return "hosted API"


@note("lineage.not-in-workspace")
def lineage_not_in_workspace(*, weights: str) -> str:
    return "{weights}, not in this workspace"


@note("lineage.other-teachers")
def other_teachers(*, teachers: list[str]) -> str:
    return (
        "WARNING: the stages have different teachers: {teachers}. Where the teachers differ, a later stage undoes what "
        "an earlier one taught."
    )


@note("lineage.teacher-of")
def teacher_of(*, run: str, teacher: str) -> str:
    return "{teacher} for {run}"


# ---------------------------------------------------------------------------------------- marks


@error(UsageError, "marks.beta")
def beta_not_stored(*, value: float, stored: list[str]) -> Text:
    return Text(
        given="beta is {value:g}.",
        needed="Marks store the exact divergence at beta {stored}.",
        fix="Choose one of these values.",
    )


@error(UsageError, "marks.temperature")
def temperature_not_stored(*, value: float, stored: list[str]) -> Text:
    return Text(
        given="temperature is {value:g}.",
        needed="Marks store the exact divergence at temperature {stored}.",
        fix="Choose one of these values.",
    )


@error(UsageError, "marks.none")
def no_marks(*, run: str) -> Text:
    return Text(
        given="{run} has no marks.",
        needed="A run with a teacher that scores marks some answers at each evaluation.",
        fix="Mark an answer now: limbeck mark {run} --prompt TEXT.",
    )


@error(UsageError, "marks.none.step")
def no_marks_of_step(*, run: str, step: str, stored: list[str]) -> Text:
    return Text(
        given="{run} has no marks of step {step}.",
        needed="Marks are stored at each evaluation; this run has {stored}.",
        fix="Choose one of these steps, or mark an answer now: limbeck mark {run} --prompt TEXT.",
    )


@error(DataError, "marks.unreadable")
def marks_unreadable(*, file: Path, why: str, known_format: str) -> Text:
    return Text(
        given="{file} cannot be read as marks: {why}.",
        needed="It must be a regular file in the format {known_format}, as this version of Limbeck writes it.",
        fix="Mark the answers again: limbeck mark RUN --prompt TEXT.",
    )


@note("marks.is-link")
def marks_are_a_link() -> str:
    return "it is a link, and a folder from elsewhere must not decide which file is opened"


@note("marks.format")
def marks_format(*, found: str) -> str:
    return "its format is {found}"


@note("marks.shape")
def marks_shape(*, shape: str) -> str:
    return "its divergences have the shape {shape}"


@error(DataError, "run.format-unknown")
def format_unknown(*, file: Path, number: str, writer: str, version: str, newest: int) -> Text:
    return Text(
        given="{file} has format {number} and was written by Limbeck {writer}.",
        needed="Limbeck {version} reads formats 1 to {newest}; a newer format may use the same names differently.",
        fix="Use the version that wrote it, or a newer one.",
    )
