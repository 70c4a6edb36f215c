"""The command line. It is thin: every command is also a Python function (see `limbeck.api`).

Commands import what they need when they run, so that `--help`, `recipe`, `runs` and `show` respond at once.
Exit codes: 0 done, 2 invalid command line or recipe, 3 refused by a guard, 4 not finite or below --fail-under,
75 stopped but resumable, 130 interrupted, 1 any other error.
"""

from __future__ import annotations

import os
import sys

from cyclopts import CycloptsError

from limbeck.cli import messages
from limbeck.cli.commands import app
from limbeck.console import Printer
from limbeck.errors import LimbeckError

__all__ = ["app", "main", "run_cli"]

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    sys.exit(run_cli(sys.argv[1:] if arguments is None else arguments))


def run_cli(arguments: list[str]) -> int:
    """Run the command line; returns the exit code."""
    printer = Printer()
    try:
        app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except LimbeckError as error:
        printer.fail(error)
        return error.exit_code
    except CycloptsError as error:
        printer.fail(messages.usage(reason=str(error).strip().replace("\n", " ")))
        return EXIT_USAGE
    except KeyboardInterrupt:
        printer.warn(messages.interrupted())
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # the reader of our output has closed its end, for example `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        printer.fail(messages.system(reason=str(error)))
        return 1
    return 0
