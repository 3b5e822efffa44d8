"""The flags of ``augment serve`` for :class:`Limits`, and the notation of sizes and times."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

import click

from augment_server.base.limits import Limits

_SIZES = {
    "": 1, "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
}  # fmt: skip
_TIMES = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
#: how the names of limits of the work begin
_OF_WORK = (
    "max_text", "max_events", "max_devices", "max_streams", "max_name", "max_nesting", "max_running", "max_job_memory",
    "max_job_attempts", "job_deadline", "max_stored", "max_upload_bytes",
)  # fmt: skip

Read = Callable[[click.Context, click.Parameter, str | None], Any]


def scaled(units: Mapping[str, float], example: str, *, zero: bool = False) -> Read:
    """A parser of option values: a number above 0 with a unit; ``zero`` also allows 0."""
    scales = {unit.lower(): scale for unit, scale in units.items()}

    def read(_context: click.Context, _parameter: click.Parameter, value: str | None) -> Any:
        if value is None:
            return None
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", value.strip().lower())
        scale = scales.get(match[2]) if match else None
        if match is None or scale is None or (float(match[1]) == 0 and not zero):
            least = "from" if zero else "above"
            raise click.BadParameter(f"{value!r} must be a number {least} 0 with a unit, such as {example}")
        number = float(match[1]) * scale
        return number if isinstance(scale, float) else round(number)

    return read


size = scaled(_SIZES, "500MB or 8GiB")
duration = scaled(_TIMES, "90s, 15m, 12h or 7d")
grace = scaled(_TIMES, "25s or 5m", zero=True)


def origins(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """The origins of web pages, as browsers send them."""
    for value in values:
        if not re.fullmatch(r"https?://[a-z0-9.\[\]:-]+", value):
            raise click.BadParameter(f"{value!r} must be a scheme and a host, such as https://ui.perfetto.dev")
    return values


def public_url(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    """The address of a server as people reach it, perhaps below a path, without ``/`` at its end."""
    if value and not re.fullmatch(r"https?://[A-Za-z0-9.\[\]:-]+(?:/[A-Za-z0-9._~-]+)*/?", value):
        raise click.BadParameter(f"{value!r} must be a URL such as https://traces.example.com, without ? and #")
    return value.rstrip("/")


def flag_of(field: dataclasses.Field[Any]) -> str:
    """``--max-upload`` for ``max_upload_bytes``: the value contains its unit."""
    return "--" + re.sub(r"_(bytes|s)$", "", field.name).replace("_", "-")


def shown(value: Any, unit: str) -> str:
    """A default in the notation of the flags: ``8GiB``, ``7d``."""
    if value is None:
        return ""
    if unit == "bytes":
        return _largest(value, {name: scale for name, scale in _SIZES.items() if name.endswith("iB")}, "")
    if unit == "s":
        return _largest(value, {name: scale for name, scale in _TIMES.items() if name}, "s")
    return str(value)


def limit_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """An option for each limit, in their order; :func:`limits_from` takes their values."""
    for field in reversed(dataclasses.fields(Limits)):
        unit = field.metadata["unit"]
        default = shown(field.default, unit)
        sentence = field.metadata["doc"] + (f"  [default: {default}]" if default else "")
        option = click.option(flag_of(field), field.name, help=sentence, **_kind(unit, field.metadata["least"]))
        function = option(function)
    return function


def _kind(unit: str, least: int) -> dict[str, Any]:
    if unit == "bytes":
        return {"metavar": "SIZE", "callback": size}
    if unit == "s":
        return {"metavar": "TIME", "callback": duration}
    return {"metavar": "N", "type": click.IntRange(min=least)}


def limits_of_work() -> set[str]:
    """The names of the limits that those who do jobs look at; the others are those of calls, uploads and retention."""
    names = (field.name for field in dataclasses.fields(Limits))
    return {name for name in names if name.startswith(_OF_WORK)}


def limits_from(values: dict[str, Any]) -> Limits:
    """The limits from the option values; removes these from ``values``."""
    given = {field.name: values.pop(field.name) for field in dataclasses.fields(Limits)}
    return Limits(**{name: value for name, value in given.items() if value is not None})


def table_rows() -> list[tuple[str, str, str]]:
    """Flag, default and sentence of each limit, for the docs."""
    fields = dataclasses.fields(Limits)
    return [(f"`{flag_of(of)}`", shown(of.default, of.metadata["unit"]), of.metadata["doc"]) for of in fields]


def _largest(value: float, scales: Mapping[str, float], least: str) -> str:
    for name, scale in sorted(scales.items(), key=lambda item: -item[1]):
        if value >= scale and value % scale == 0:
            return f"{value / scale:g}{name}"
    return f"{value:g}{least}"
