"""What the command line itself says; the rest comes from the modules that it calls."""

from __future__ import annotations

from pathlib import Path

from limbeck.errors import LimbeckError, Text, UsageError, error, note

__all__: list[str] = []


@error(UsageError, "cli.usage")
def usage(*, reason: str) -> Text:
    return Text(
        given="{reason}",
        needed="A command line consists of a command, its arguments and its options.",
        fix="Run limbeck --help for the commands, or limbeck COMMAND --help for the options of one.",
    )


@error(LimbeckError, "cli.system")
def system(*, reason: str) -> Text:
    return Text(
        given="The operating system reported an error: {reason}.",
        needed="Limbeck must be able to read and write its files.",
        fix="Free disk space, shorten the path or grant the permission, then run the same command again.",
    )


@note("cli.interrupted")
def interrupted() -> str:
    return (
        "Interrupted. Finished work is saved. Run the same command again to continue, or `limbeck resume NAME` for a "
        "run."
    )


@note("cli.next")
def next_command(*, command: str) -> str:
    return "Next: {command}"


@note("cli.answers-stored")
def answers_stored(*, folder: Path) -> str:
    return "The answers are in {folder}: teacher.jsonl has all of them, targets.jsonl those that are fit for training."


@note("cli.report-written")
def report_written(*, path: Path) -> str:
    return "The report is in {path}. It opens in any browser, without a network connection."


@note("cli.exported")
def exported(*, run: str, path: Path) -> str:
    return "The result of {run} is in {path}."


@note("cli.phase")
def phase_begins(*, phase: str) -> str:
    return "{phase} ..."
