"""``augment doctor``: reports what a file contains, its anomalies, and what will be lost."""

from __future__ import annotations

import datetime
import os
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from augment.cli.options import TRACE, FromStdin, debug
from augment.core import text

if TYPE_CHECKING:
    from augment.cli.inspection import Report

_EPOCH_NS = 10**18  #: a Unix time in ns after 2001
_KINDS_SHOWN = 20  #: kinds of events in the table for people


@click.command("doctor", short_help="Report what a trace contains, and its anomalies.")
@click.argument("files", nargs=-1, required=True, metavar="FILE|FOLDER…", type=TRACE)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per file, one per line.")
@debug
def command(files: tuple[str, ...], as_json: bool) -> int:
    """Report what each FILE contains, what is odd, and what will be lost. Nothing is written. In a FOLDER, each trace
    is examined.
    """
    from augment.batch.inputs import no_trace
    from augment.cli.runs import files_of
    from augment.cli.terminal import complain, emit
    from augment.core import jsontext
    from augment.errors import AugmentError, UnknownFormat

    failed: list[AugmentError] = []
    seen = 0
    paths = [(path, name) for name in files for path in files_of(name)]
    for path, name in paths:
        try:
            report = examine(path)
        except AugmentError as error:
            if isinstance(error, UnknownFormat) and path != name:
                continue
            if len(paths) == 1:
                raise
            failed.append(error)
            complain(str(error))
            continue
        seen += 1
        if isinstance(name, FromStdin):
            report["file"]["path"] = "standard input"
        if as_json:
            emit(jsontext.json_line(report))
        else:
            print_report(report)
    if not seen and not failed:
        raise no_trace(", ".join(files))
    return 1 if failed else 0


def examine(path: str) -> Report:
    """The report on one file.

    Raises:
        InputError: the file cannot be read.
    """
    from augment.cli.inspection import inspect
    from augment.cli.terminal import bar
    from augment.pipeline import augment
    from augment.readers import read

    with bar(1, quiet=False) as shown:
        shown.stage(f"reading {path}")
        trace = read(path)
        shown.stage("examining")
        return inspect(augment(trace))


def print_report(report: Report) -> None:
    """Print ``report`` for people."""
    from augment.cli.table_output import print_rows
    from augment.cli.terminal import emit

    for line in _overview(report):
        emit(line)
    if report["categories"]:
        print_rows("Events", report["categories"][:_KINDS_SHOWN])
    if rest := report["categories"][_KINDS_SHOWN:]:
        emit(f"\nand {len(rest)} more kinds, {sum(row['count'] for row in rest):,} events: --json lists them")
    for title, name in (("Odd", "odd"), ("In Perfetto, the file as it is", "perfetto")):
        if report[name]:
            print_rows(title, report[name])
    if skipped := report["skipped"]:
        emit("\nAnalyses that will be skipped")
        for reason in dict.fromkeys(skipped.values()):
            names = ", ".join(name for name, why in skipped.items() if why == reason)
            emit(textwrap.fill(f"{reason} ({names})", 120, initial_indent="  ", subsequent_indent="    "))
    emit("")


def _overview(report: Report) -> Iterator[str]:
    file, recording, tracks, launches = (report[name] for name in ("file", "recording", "tracks", "launches"))
    yield text.printable(file["path"])
    version = f", schema {file['schema_version']}" if file["schema_version"] is not None else ""
    layers = [f"{file['format']} ({file['layout']}{version})", *reversed(file["compression"])]
    unpacked = f" ({text.exact_size(file['text_bytes'])} unpacked)" if file["compression"] else ""
    yield _line("file", f"{' in '.join(layers)}, {text.exact_size(file['bytes'])}{unpacked}")
    lost = file["elements"] - file["events"]
    apart = f", {lost:,} of them metadata or without a time: kept, but not analysed"
    yield _line("events", f"{file['elements']:,}" + (apart if lost else ""))
    if report["partial"]:
        yield _line("incomplete", report["partial"])
    yield _line("vendor", file["vendor"] or "no calls of a GPU runtime")
    ranks = ", ".join(map(str, recording["ranks"])) or "unknown"
    world = f" of {recording['world_size']}" if recording["world_size"] else ""
    yield _line("rank", f"{ranks}{world}" + (f" (from {recording['rank_from']})" if recording["ranks"] else ""))
    yield _line("time", _time(recording))
    yield _line("steps", ", ".join(map(str, recording["steps"])) or "none")
    for device, streams in tracks["streams"].items():
        names = [each["name"] for each in recording["devices"] if str(each["device"]) == device]
        of_ascend = "NPU" if file["vendor"] == "Ascend" else "device"  # recorded as a number of a process
        label = text.device_label(of_ascend, int(device) if device.isdigit() else device, len(tracks["streams"]) == 1)
        recorded = [] if label.endswith(device) else [f"recorded as {device}"]
        yield _line(label, ", ".join([*names, text.counted(streams, "stream"), *recorded]))
    yield _line("tracks", f"{text.counted(tracks['threads'], 'thread')}, of {text.counted(tracks['processes'], 'pid')}")
    yes, no = ([name.replace("_", " ") for name, there in report["has"].items() if there is so] for so in (True, False))
    yield _line("recorded", "; ".join(filter(None, (", ".join(yes), f"no {', no '.join(no)}" if no else ""))))
    if launches["gpu_work_count"]:
        linked = text.share(launches["linked_ratio"], 1)
        yield _line("GPU work", f"{launches['gpu_work_count']:,}, of which {linked} have a known launch")
    if launches["launch_count"]:
        unmatched = f"{launches['unmatched_launch_count']:,} without GPU work"
        yield _line("launches", f"{launches['launch_count']:,}, {unmatched}")
    for each in report["beside"]:
        name, option = os.path.basename(each["path"]), each["kind"].replace("_", "-")
        by_option = "" if each["is_used"] else f" (of which rank is not known: give --{option} {each['path']})"
        yield _line("beside", f"{each['what']}: {name}{by_option}")


def _line(name: str, value: str) -> str:
    return f"  {name:<10} {value}"


def _time(recording: dict[str, Any]) -> str:
    start = recording["start_ns"]
    if start is None:
        return "no event has a time"
    if start < _EPOCH_NS:
        return f"{text.exact_time(recording['recorded_ns'])}, from {text.exact_time(start)} on"
    moment = datetime.datetime.fromtimestamp(start // 10**9, datetime.timezone.utc)
    return f"{text.exact_time(recording['recorded_ns'])}, from {moment:%Y-%m-%d %H:%M:%S}.{start % 10**9:09} UTC on"
