"""The summary that ``augment run`` prints at the end: the main figures, read from the sidecars."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from augment.batch import locations
from augment.batch.conversion import Result
from augment.batch.inputs import Input
from augment.cli.options import as_given
from augment.cli.table_output import source_line, verdict_lines
from augment.core.text import counted, device_label, exact_time, ranges_text, share, time
from augment.results.sidecars import in_job, in_steady_steps

if TYPE_CHECKING:
    from augment.batch.job_question import Concluded
    from augment.batch.jobs import Job

SHOWN = 40  #: limit for listed devices, and for listed files
_DEVICES = 4  #: maximum number of devices shown
_OPERATORS = 3  #: maximum number of operators named for a part
_LONGEST = 40  #: maximum characters of an operator's name
_OVERLAP = 0.02  #: of the durations of kernels, by which they exceed the time in which any runs
_LEAST = 0.0005  #: share of the step time; smaller parts are left out
#: for a part: the bound of the operators that cause it, and the column with the time they contribute
_CAUSES = {
    "below peak": ("compute", "lost_ns"),
    "memory-bound": ("memory", "time_ns"),
    "small kernels": ("latency", "time_ns"),
}


def summary(results: Sequence[Result]) -> Iterator[str]:
    """The lines of the summary."""
    augmented = [result for result in results if result.status in ("augmented", "done_before")]
    passed_over = [result for result in results if result.status == "passed_over"]
    if len(augmented) == 1:
        result = augmented[0]
        sidecar, path = _sidecar(result), as_given(result.path)
        yield from source_line(sidecar["source"]).splitlines()
        yield from (f"  {sentence}" for sentence in verdict_lines(sidecar.get("verdict", {}), path))
        rows = _devices(sidecar)
        if rows:
            lines = [[f"  {row['shown']}", *_figures(row)] for row in rows]
            yield from _table([["  device", rows[0]["period"], *_HEADS], *lines], left=1)
        yield from costly_lines(sidecar)
        yield from measured_activity(sidecar)
        yield from waterfall(sidecar)
        yield from not_recorded(sidecar)
        if sidecar["diagnostics"]:
            yield f"  what is odd in the trace: augment doctor {shlex.quote(path)}"
    elif any(result.status == "augmented" for result in augmented):  # else nothing is opened again
        lines = []
        periods: dict[str, None] = {}
        paths = [result.path for result in augmented]
        folder = locations.common(list(map(locations.parent, paths)))
        names = [locations.below(path, folder) for path in paths]
        left_out = max(0, len(augmented) - SHOWN)
        for result, name in zip(augmented[:SHOWN], names, strict=False):
            sidecar = _sidecar(result)
            rank = sidecar["source"]["ranks"]
            of_file = [name, str(rank[0]) if rank else "–"]
            rows = _devices(in_job(sidecar))
            periods |= {row["period"]: None for row in rows}
            lines += [[*of_file, row["shown"], row["steps"], *_figures(row)] for row in rows]
            if not rows:
                lines.append([*of_file, "–", "–", *["–"] * (1 + len(_HEADS))])
        heads = ["file", "rank", "device", "steps", " or ".join(periods), *_HEADS]
        place = heads.index("steps")
        if len({line[place] for line in lines} - {"–"}) < 2:  # else means are of different steps
            for line in (heads, *lines):
                del line[place]
        yield f"in {folder}:"
        yield from _table([heads, *lines], left=1)
        if left_out:
            yield f"… and {left_out} more files"
    if len(results) > 1:
        partial = [result for result in augmented if result.partial]
        # one message per reason, with the number of its files and the first of them
        by_reason: dict[str, list[str]] = {}
        for result in passed_over:
            by_reason.setdefault(result.message.removeprefix(f"{result.path}: "), []).append(result.path)
        reasons = [
            f"{paths[0]}: {reason}" if len(paths) == 1 else f"{len(paths):,} × {reason}: {paths[0]}, …"
            for reason, paths in by_reason.items()
        ]
        yield from _first_lines("passed over", reasons)
        yield from _first_lines("read in part", [f"{result.path}: {result.partial}" for result in partial])
        failed = len(results) - len(augmented) - len(passed_over)
        before = sum(result.status == "done_before" for result in augmented)
        done_before = f"{before} done before, " if before else ""
        in_part = f"; {len(partial)} read in part" if partial else ""
        passed = f"{len(passed_over)} passed over"
        yield f"{len(augmented) - before} augmented, {done_before}{passed}, {failed} failed{in_part}"


def _first_lines(title: str, lines: Sequence[str]) -> Iterator[str]:
    """The first of ``lines`` below a title; nothing if there are none."""
    if lines:
        yield f"{title}:"
        yield from (f"  {line}" for line in lines[:SHOWN])
    if len(lines) > SHOWN:
        yield f"  … and {len(lines) - SHOWN} more"


def measured_activity(sidecar: Mapping[str, Any]) -> Iterator[str]:
    """One line for each device: how much of it the hardware measured to be active while it was busy."""
    rows = sidecar["analyses"].get("hardware_activity", {}).get("rows", ())
    busy = [row for row in rows if row["part"] == "busy" and row["unit"] == "ratio"]
    for device in dict.fromkeys(row["device"] for row in busy):
        said = [
            f"{row['quantity'].replace('_', ' ')} {share(row['value'], 1)}" for row in busy if row["device"] == device
        ]
        yield f"  measured on device {device} while it is busy: {', '.join(said)}"


def costly_lines(sidecar: Mapping[str, Any]) -> Iterator[str]:
    """One line: the lines of the program with the most GPU time, as ``augment.analyses.source_lines`` knows them."""
    rows = [row for row in sidecar["analyses"].get("source_lines", {}).get("rows", ()) if row["source"]]
    if rows:
        device = rows[0]["device"]
        said = []
        for row in [row for row in rows if row["device"] == device][:_OPERATORS]:
            cost = f"{time(row['per_step_ns'])} a step" if row["per_step_ns"] is not None else time(row["gpu_ns"])
            name = f"{row['source']} ({row['function']})" if row["kind"] == "function" else row["source"]
            said.append(f"{name} costs {cost} ({share(row['gpu_ns'], row['gpu_ns'] / row['gpu_ratio'])})")
        spent = sum(row["gpu_ns"] for row in sidecar["analyses"]["source_lines"]["rows"] if row["device"] == device)
        whole = sidecar["analyses"].get("temporal_breakdown", {}).get("rows", ())
        busy = sum(row["busy_ns"] for row in whole if row["device"] == device)
        is_more = 0 < busy < (1 - _OVERLAP) * spent
        overlap = f" (kernels overlap: {time(spent)} of them in {time(busy)})" if is_more else ""
        yield f"  GPU time by line, % of all GPU work{overlap}: {'; '.join(said)}"


def next_steps(results: Sequence[Result], job_files: Sequence[str], timelines: Sequence[str]) -> Iterator[str]:
    """Commands to look at the results: of a single trace, or of the first job."""
    if timelines and not locations.protocol(timelines[0]):
        yield f"open it: augment open {shlex.quote(timelines[0])}"
    augmented = [result for result in results if result.status in ("augmented", "done_before")]
    if job_files and not locations.protocol(job_files[0]):
        file = shlex.quote(job_files[0])
        yield f"figures of the job: augment show {file}; one page to send: augment report {file}"
    elif len(augmented) == 1 and not locations.protocol(augmented[0].outputs[0]):
        trace, metrics = augmented[0].outputs[0], augmented[0].outputs[-1]
        yield f"open it: augment open {shlex.quote(trace)}; all figures: augment show {shlex.quote(metrics)}"


def jobs(inputs: Sequence[Input], results: Sequence[Result], concluded: Sequence[Concluded] = ()) -> Iterator[str]:
    """A line for each job of several ranks, with the ranks that are present; its verdict may be that it is none."""
    if len(results) < 2:
        return
    from augment.batch.job_question import jobs_of
    from augment.batch.jobs import folder_title

    jobs = jobs_of(inputs, {result.path: result for result in results})
    several = [job for job in jobs if len(job.members) > 1]
    names = _names_of_jobs(several)
    unrelated = [each.job for each in concluded if not each.joined]
    for job, name in zip(several[:SHOWN], names, strict=False):
        if job in unrelated:
            folder = folder_title(locations.common([locations.parent(member.input.path) for member in job.members]))
            yield f"{len(job.members)} traces in {folder} share no collectives"
            continue
        ranks = sorted({member.rank for member in job.members if member.rank is not None})
        of = f" of {job.world_size}" if job.world_size else ""
        there = f"ranks {ranges_text(ranks)}{of}" if ranks else f"{len(job.members)} traces of unknown rank"
        yield f"{name}: {there}"
        for rank in ranks:
            same = [member.input.basename for member in job.members if member.rank == rank]
            if len(same) > 1:
                yield f"  {len(same)} files state the same rank {rank}: {', '.join(same)}; each counts as a rank"
    if len(several) > SHOWN:
        yield f"… and {len(several) - SHOWN} more jobs"
    alone = [
        f"{job.members[0].input.path} (rank {job.members[0].rank} of {job.world_size})"
        for job in jobs
        if len(job.members) == 1 and job.members[0].rank is not None and (job.world_size or 1) > 1
    ]
    yield from _first_lines("compared with no other rank, as their names differ in more than the rank or window", alone)


def verdicts(concluded: Sequence[Concluded]) -> Iterator[str]:
    """The sentences about each job."""
    if not concluded:  # nothing of jobs is loaded
        return
    from augment.job.rank_answers import in_folder

    names = _names_of_jobs([each.job for each in concluded])
    for each, name in zip(concluded[:SHOWN], names, strict=False):
        if len(concluded) > 1:
            yield f"{name}:"
        folder = locations.common([locations.parent(member.input.path) for member in each.job.members])
        traces = {member.rank: member.input.path for member in each.job.members if member.rank is not None}
        said = in_folder(each.verdict, folder, traces if len(concluded) > 1 else {})
        yield from (f"  {sentence}" if len(concluded) > 1 else sentence for sentence in said)


def _names_of_jobs(jobs: Sequence[Job]) -> list[str]:
    """The names of jobs, with their folders where names are equal."""
    plain = [
        f"{'roles' if job.parts else 'job'} {job.name}{f', window {job.window}' if job.window else ''}" for job in jobs
    ]
    return [f"{name} in {job.folder}" if plain.count(name) > 1 else name for job, name in zip(jobs, plain, strict=True)]


#: missing data as it appears in reasons of skipped analyses and rules, and the option that records it
_RECORDED_BY = (
    ("record_shapes=True", "shapes of operators"),
    ("profile_memory=True", "memory"),
    ("with_stack=True", "Python stacks"),
    ("step()", "steps (call the profiler's step() after each)"),
)

#: analyses that have rows if it was recorded, though an analysis of other things asks for the same option
_MADE_OF = {"memory": ("memory_profile",), "shapes of operators": ("roofline",)}


def not_recorded(sidecar: dict[str, Any]) -> Iterator[str]:
    """One line: what the profiler did not record, and the options that record it. It leaves out files that can be
    given in addition to a trace, and kinds of work that the run does not contain."""
    analyses = sidecar["analyses"]
    if analyses.get("diagnosis", {}).get("status") == "skipped":
        return  # not of PyTorch's profiler: its options are no advice
    reasons = [analysis["reason"] for analysis in analyses.values() if analysis["status"] == "skipped"]
    rows = analyses.get("diagnosis", {}).get("rows", [])
    reasons += [row["advice"] or "" for row in rows if row["status"] == "no_data"]
    missing = []
    for flag, what in _RECORDED_BY:
        plain = re.escape(flag)
        option = re.compile(rf"torch\.profiler's {plain}|[\w.]+\({plain}\)|{plain}")  # as recorders call it
        asked = next((match[0] for reason in reasons if (match := option.search(reason))), "")
        if asked and not any(bool(analyses.get(name, {}).get("rows")) for name in _MADE_OF.get(what, ())):
            missing.append(what if "(" in what else f"{what} ({asked})")
    if missing:
        yield f"  not recorded: {', '.join(missing)}"


_HEADS = ("busy", "computing", "exposed comm.", "exposed memory", "idle")


_PARTS = ("busy_ns", "compute_ns", "exposed_communication_ns", "exposed_memory_ns", "idle_ns")


def _devices(sidecar: dict[str, Any]) -> list[dict[str, Any]]:
    """The figures of each device in the mean step of those that the verdict is about."""
    rows: dict[Any, list[dict[str, Any]]] = {}
    for row in in_steady_steps(sidecar, "steps"):
        if row["busy_ns"] is not None:
            rows.setdefault(row["device"], []).append(row)
    means, gpu = [], str(sidecar["source"].get("accelerator", "GPU"))
    for device, steps in rows.items():
        period = "from first work" if steps[0]["step"] is None else "mean step"
        sums = {name: sum(row[name] for row in steps) / len(steps) for name in ("wall_ns", *_PARTS)}
        numbers = ranges_text([row["step"] for row in steps if row["step"] is not None]) or "–"
        shown = device_label(gpu, device, len(rows) == 1).removeprefix(f"{gpu} ")
        means.append({"shown": shown, "period": period, "steps": numbers, **sums})
    return means


def _figures(row: dict[str, Any]) -> list[str]:
    return [exact_time(row["wall_ns"]), *(share(row[name], row["wall_ns"]) for name in _PARTS)]


def _sidecar(result: Result) -> dict[str, Any]:
    decoded: dict[str, Any] = msgspec.json.decode(locations.read(result.outputs[-1]))
    return decoded


def _table(lines: list[list[str]], left: int) -> Iterator[str]:
    """Columns padded with blanks; the first ``left`` are left-aligned."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (
            cell.ljust(width) if index < left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()


def waterfall(sidecar: Mapping[str, Any]) -> Iterator[str]:
    """The lines of a sidecar: nothing without ``step_efficiency``, a reason without an MFU."""
    steps = in_steady_steps(sidecar, "step_efficiency")
    operators = sidecar["analyses"].get("roofline", {}).get("rows", [])
    devices = list(dict.fromkeys((row["rank"], row["device"]) for row in steps))
    for rank, device in devices[:_DEVICES]:
        windows = [row for row in steps if (row["rank"], row["device"]) == (rank, device)]
        parts = [row for row in operators if (row["rank"], row["device"]) == (rank, device)]
        yield from _of_device(windows, parts, f" of device {device}" if len(devices) > 1 else "")
    if len(devices) > _DEVICES:
        yield f"  … and {counted(len(devices) - _DEVICES, 'more device')}"


def _of_device(steps: Sequence[Mapping[str, Any]], operators: Sequence[Mapping[str, Any]], of: str) -> Iterator[str]:
    from augment.facts.operators.step_time_parts import RECOMPUTED, SAID

    wall = sum(row["wall_ns"] for row in steps)
    if not wall:
        return
    ratios = [row["mfu_ratio"] for row in steps]
    if None in ratios:
        yield f"  no MFU{of}: {next(row['lacking'] for row in steps)}"
        return
    mfu = sum(row["mfu_ratio"] * row["wall_ns"] for row in steps) / wall
    hfu = sum(row["hfu_ratio"] * row["wall_ns"] for row in steps) / wall
    shares = {said: sum(row[f"{part}_ns"] for part in parts for row in steps) / wall for said, parts in SAID.items()}
    shares[RECOMPUTED] = hfu - mfu
    whole, of_each = f"{time(wall)} from the first work to the last", f" of {time(wall / len(steps))}"
    counts = whole if steps[0]["step"] is None else f"{counted(len(steps), 'step')}{of_each}"
    yield f"  MFU{of} {100 * mfu:.1f} % ({counts}; {steps[0]['peak']}); the rest, in points:"
    for said, part in sorted(shares.items(), key=lambda item: -item[1]):
        if part >= _LEAST:
            # The operators that cause most of a part, by name
            if said not in _CAUSES:
                names = []
            else:
                bound, amount = _CAUSES[said]
                spent: dict[str, int] = {}
                for row in operators:
                    if row["bound"] == bound:
                        spent[row["operator"]] = spent.get(row["operator"], 0) + row[amount]
                largest = sorted(spent, key=lambda name: -spent[name])[:_OPERATORS]
                names = [name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…" for name in largest]
            yield f"    {100 * part:5.1f}  {said}" + (f": {', '.join(names)}" if names else "")
