"""What several commands take, and how it is read."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from augment.errors import UsageError

if TYPE_CHECKING:
    from augment.batch.beside import Beside
    from augment.batch.inputs import Input

Function = TypeVar("Function", bound=Callable[..., Any])


def debug(function: Function) -> Function:
    """``--debug``, which ``cli.main`` looks for itself."""
    return click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks of errors.")(function)


def listed(_context: click.Context, _parameter: click.Parameter, values: Sequence[str]) -> tuple[str, ...]:
    """The names of ``--only a,b --only c``, each once."""
    names = (name.strip() for value in values for name in value.split(","))
    return tuple(dict.fromkeys(name for name in names if name))


def first_and_last(_context: click.Context, _parameter: click.Parameter, value: str | None) -> tuple[int, int] | None:
    """The numbers of ``3-5``, or of ``4``."""
    if value is None:
        return None
    first, dash, last = (part.strip() for part in value.partition("-"))
    if not first.isdecimal() or not (last.isdecimal() if dash else not last) or int(last or first) < int(first):
        raise UsageError(f"--steps {value}: must be a step's number, such as 4, or a first and a last, such as 3-5")
    return int(first), int(last or first)


def choice_of_analyses(function: Function) -> Function:
    """``--only``, ``--skip``, ``--option`` and ``--steps``."""
    for option in (
        click.option(
            "--steps", metavar="N[-M]", callback=first_and_last,
            help="Analyse these steps alone, with the GPU work that they launch.",
        ),
        click.option(
            "--option", "options", multiple=True, metavar="ANALYSIS.NAME=VALUE",
            help="Set an option of an analysis, as augment list shows it; may be given again.",
        ),
        click.option("--skip", multiple=True, metavar="NAME,…", callback=listed, help="Leave these analyses out."),
        click.option("--only", multiple=True, metavar="NAME,…", callback=listed, help="Run these analyses alone."),
    ):  # fmt: skip
        function = option(function)
    return function


def files_beside(function: Function) -> Function:
    """``--execution-trace`` and ``--memory-timeline``: what was recorded with the trace."""
    for option in (
        click.option(
            "--memory-timeline", metavar="FILE",
            help="The *.raw.json.gz of export_memory_timeline recorded with it; {rank} as above.",
        ),
        click.option(
            "--execution-trace", metavar="FILE",
            help="The ExecutionTraceObserver's file recorded with it; of several, {rank} stands for the rank.",
        ),
    ):  # fmt: skip
        function = option(function)
    return function


def without_beside(inputs: Sequence[Input], beside: Beside) -> list[Input]:
    """The ``inputs`` without files of folders that lie beside traces: they are none."""
    paths = {os.path.realpath(path) for path in beside.named.values()}
    return [one for one in inputs if one.named or not paths or os.path.realpath(one.path) not in paths]


def check_beside(beside: Beside, inputs: int, server: str | None = None) -> None:
    """Refuse what cannot lie beside so many ``inputs``.

    Raises:
        UsageError: one file for several traces, no such file, or a server would have to read it.
    """
    from augment.batch.beside import RANK

    for kind, path in beside.named.items():
        option = f"--{kind.replace('_', '-')}"
        if server:
            raise UsageError(f"{option}: a server takes none; leave --server out")
        if RANK in path:
            continue
        if inputs > 1:
            raise UsageError(f"{option} {path}: there are several inputs; write {RANK} where names have the rank")
        if not os.path.exists(path):
            raise UsageError(f"{option} {path}: no such file")


def option_values(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The values of ``--option``, of the types of the options' defaults.

    Raises:
        UsageError: no ``ANALYSIS.NAME=VALUE``, or a value of another type.
    """
    values: dict[str, dict[str, Any]] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        analysis, dot, option = name.strip().partition(".")
        if not equals or not dot:
            example = "idle_time_breakdown.consecutive_kernel_delay_ns=30000"
            raise UsageError(f"--option {text}: must be ANALYSIS.NAME=VALUE, such as {example}")
        values.setdefault(analysis, {})[option.strip()] = _typed(analysis, option.strip(), value.strip())
    return values


def _typed(analysis: str, option: str, text: str) -> Any:
    """``text`` as the option's default is; as it stands where there is no such option: the pipeline says so."""
    from augment.analyses import ANALYSES
    from augment.pipeline import options_of

    defaults = {one.NAME: options_of(one) for one in ANALYSES}.get(analysis, {})
    default = defaults.get(option)
    try:
        if isinstance(default, bool):
            return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[text.lower()]
        if isinstance(default, int):
            return int(text.replace("_", ""))
        if isinstance(default, float):
            return float(text)
    except (ValueError, KeyError) as error:
        wanted = type(default).__name__
        problem = f"must be of type {wanted} (such as {default!r}), not {text!r}"
        raise UsageError(f"{analysis}: {option} {problem}") from error
    return text


def check_analyses(only: Sequence[str], skip: Sequence[str], options: dict[str, dict[str, Any]]) -> None:
    """Refuse what the pipeline would refuse, before a large trace has been read.

    Raises:
        UsageError: an analysis or option that does not exist, or no analysis is left.
    """
    if not (only or skip or options):
        return
    from augment.pipeline import chosen

    if not chosen(only, skip, options):
        raise UsageError("no analysis is left to run: --skip names all of them")
