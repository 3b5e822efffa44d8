"""The command line: commands and their arguments. Every error becomes one line and an exit code here.

Exit codes: 0 done; 1 a check failed, some inputs of a batch failed, or an output cannot be written; 2 usage; 3 the
input cannot be read; 5 done, but an input was read in part; 130 interrupted; 143 terminated.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from typing import NoReturn

DEBUG = "--debug"
TERMINATED = 143  #: the exit code after SIGTERM
#: how many more objects than were freed let garbage be collected, and how often older ones are looked at: what a run
#: makes stays or is freed at once, and traces are freed without
GARBAGE = (100_000, 5, 5)


def program() -> NoReturn:
    """The entry point of the program: :func:`main`, and the end of the process."""
    code = main()
    gc.disable()
    gc.freeze()  # the interpreter looks through nothing at its end: as fast as os._exit, within 1 % of a small file
    sys.exit(code)


def main() -> int:
    """Run the command that ``sys.argv`` names and return its exit code."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # linear algebra is not used: numpy need not start threads
    gc.disable()  # what is loaded stays: collecting among it took a tenth of the time of a small file
    import click

    from augment.cli.registry import group
    from augment.cli.terminal import complain, finish_output, prepare_output
    from augment.errors import AugmentError

    prepare_output()
    previous = signal.signal(signal.SIGTERM, _terminated)
    try:
        commands = group()
        gc.freeze()
        gc.set_threshold(*GARBAGE)
        gc.enable()
        code = commands.main(prog_name="augment", standalone_mode=False)
        return finish_output(code if isinstance(code, int) else 0)
    except click.UsageError as error:
        if isinstance(error, click.NoSuchOption) and not error.option_name.startswith("--h"):
            likely = [name for name in error.possibilities or () if name != "--help"]  # it is like many short names
            error = click.NoSuchOption(error.option_name, error.message, likely, error.ctx)
        where = error.ctx.command_path if error.ctx else "augment"
        complain(f"{error.format_message()} (see {where} --help)")
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        complain("interrupted")
        return 130
    except AugmentError as error:
        _trace()
        complain(str(error))
        return error.exit_code
    except SystemExit as error:
        if error.code == TERMINATED:
            complain("terminated; unfinished outputs are removed")
        raise
    except Exception as error:  # a bug: one line, too; --debug shows the rest
        _trace()
        complain(f"internal error, {type(error).__name__}: {error}; please report what {DEBUG} shows")
        return 1
    finally:
        if signal.getsignal(signal.SIGTERM) is _terminated:  # the service has a handler of its own, up to its end
            signal.signal(signal.SIGTERM, previous)


def _trace() -> None:
    if DEBUG in sys.argv:
        import traceback

        traceback.print_exc()


def _terminated(*_: object) -> NoReturn:
    """On SIGTERM, run every ``finally`` block so that no partial output stays."""
    raise SystemExit(TERMINATED)
