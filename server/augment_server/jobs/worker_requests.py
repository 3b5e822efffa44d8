"""Orders for workers: one for each attempt at a job, as plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from augment.core.attachment_kinds import TABLES
from augment.core.output_files import OF_DIFF, OF_TRACE, stem
from augment.v1 import resources_pb2 as v1
from augment_server.base.limits import Limits
from augment_server.base.names import MOST_FOLDERS
from augment_server.base.people import prefix_of
from augment_server.jobs.catalog import cut_of, gate_of, ranks_of, request_of
from augment_server.jobs.job_metadata import Card
from augment_server.jobs.jobs import Begun
from augment_server.jobs.parts import Part
from augment_server.storage.inputs import Given, attachments_of, history_of, is_control
from augment_server.storage.places import Places
from augment_server.storage.roots import OutsideFolder, folder_inside, steps_of
from augment_server.storage.storage import Storage

Order = dict[str, Any]
_OUTPUTS = 8  #: of each trace, and of a job, at most; each is synced to the disk


class Orders:
    """Writes orders. Every method may be called from any thread, and may block."""

    def __init__(self, storage: Storage, limits: Limits, places: Places) -> None:
        self._storage, self._limits, self._places = storage, limits, places
        self._of_kind: dict[str, Callable[[Begun], Order]] = {
            "augment": lambda begun: _augment_order(begun.spec.augment),
            "diff": lambda begun: {**_diff_order(begun.spec.diff), "sides": _sides(begun)},
            "job": self._job_order,
            "report": lambda begun: {"markdown": begun.spec.report.markdown},
            "diagnose": self._diagnose_order,
            "check": lambda begun: (
                {"gate": gate_of(begun.spec.check), "region": begun.spec.check.region} | self._runs(begun)
            ),
            "history": self._runs,
            "cut": lambda begun: {
                "choice": cut_of(begun.spec.cut),
                "format": begun.spec.cut.format,
                "ranks": ranks_of(begun.spec.cut.ranks),
                "part": begun.spec.cut.part,
                "of_job": bool(begun.spec.cut.input.job),
            },
        }

    def order(self, begun: Begun, folder: Path, given_in: Path) -> Order:
        """The order for a worker; makes the folder of the attempt, and ``given_in`` the files that it is about.

        Raises:
            Refusal: an input no longer exists.
            OSError: a name leads outside of the attempt's folder.
        """
        limits, kind = self._limits, begun.spec.WhichOneof("kind")
        assert kind
        order: Order = {
            "kind": kind,
            "folder": str(folder),
            "inputs": [self._place(at, given) for at, given in enumerate(begun.inputs)],
            "attached": list(self._attached(begun)),
            "limits": {
                "text_bytes": limits.max_text_bytes,
                "text_ratio": limits.max_text_ratio,
                "events": limits.max_events,
                "devices": limits.max_devices,
                "streams": limits.max_streams,
                "name_bytes": limits.max_name_bytes,
                "nesting": limits.max_nesting,
            },
        }
        order |= self._of_kind[kind](begun)
        for given in (*order["inputs"], *order["attached"]):
            for name in (given["at"], given["file_name"], *(made["file_name"] for made in given.get("made", ()))):
                steps_of(name)
        with folder_inside(folder.parent, (folder.name, "out"), make=True):
            given_all = [*order["inputs"], *order["attached"]]
            places = [given_in / f"{folder.name}-{at}" for at in range(len(given_all))]
            files = [file for given, place in zip(given_all, places, strict=True) for file in _given(given, place)]
            self._storage.store.give(files)
            far = [(given, place / "blob") for given, place in zip(given_all, places, strict=True) if "uri" in given]
            self._places.give([(given.pop("uri"), path) for given, path in far])
            for given, path in far:
                given["blob"] = str(path)
            return order

    def _place(self, at: int, given: Given) -> Order:
        """Where the worker finds an input, and its path ``at`` below the folder of inputs."""
        order: Order = {"file_name": given.file_name, "at": f"{at}/{given.file_name}", "origin": given.origin}
        if given.source:
            order["made"] = _plain(given.made.files)
            order["key"], order["job"] = given.made.folder or f"artifacts/{given.source}", f"jobs/{given.source}"
        if given.content:
            order["blob"] = f"blobs/{given.content}"
        elif given.uri:
            order |= self._places.order(given.uri)
        return order

    def _attached(self, begun: Begun) -> Iterator[Order]:
        """What was recorded beside the traces of the order: its kind, and beside which ``inputs`` (None: all).

        A whole job's last step needs only its tables, but for a timeline.
        """
        step = begun.step
        only_tables = step is not None and step.is_last and not begun.spec.job.HasField("merge")
        for given, attachment in zip(begun.attached, attachments_of(begun.spec), strict=True):
            if only_tables and attachment.kind != TABLES:
                continue
            index = attachment.trace_index if attachment.HasField("trace_index") else None
            traces = begun.parts if step and step.is_last else begun.inputs
            origins = [(part.given if isinstance(part, Part) else part).origin for part in traces]
            beside = None if index is None else [at for at, origin in enumerate(origins) if origin == index]
            if beside != []:
                folder = f"{attachment.kind}.{'all' if index is None else index}"
                place = {**self._place(0, given), "at": f"{folder}/{given.origin:06d}/{given.file_name}"}
                yield {**place, "kind": attachment.kind, "beside": beside}

    def _diagnose_order(self, begun: Begun) -> Order:
        """The traces get a common folder, as for the command."""
        name = begun.spec.diagnose.name or "job"
        places = [self._place(at, given) for at, given in enumerate(begun.inputs)]
        asked = begun.spec.diagnose
        return {
            "inputs": [{**place, "at": f"{name}/{place['file_name']}"} for place in places],
            "peaks": _peaks(asked),
            "region": asked.region,
        }

    def _runs(self, begun: Begun) -> Order:
        """What is known of each input that is a run: the side of a check, or when its job came, and its labels."""
        sides = ["test"] * len(begun.spec.check.tests) + ["baseline"] * len(begun.spec.check.baselines)
        runs = []
        for given in begun.inputs:
            row = self._storage.row("SELECT * FROM jobs WHERE id = ?", given.source) if given.source else None
            card = Card.of(row) if row else Card()  # the job may have been removed since
            runs.append(
                {
                    "side": [*sides, "run"][min(given.origin, len(sides))],
                    "name": card.display_name or stem(given.file_name),
                    "labels": dict(card.labels),
                    "job": f"{prefix_of(row['realm'] if row else '')}jobs/{given.source}",
                    "created_ns": row["created_ns"] if row else 0,
                }
            )
        return {"runs": runs, "history": dict(getattr(history_of(begun.spec), "labels", {}))}

    def _job_order(self, begun: Begun) -> Order:
        """A step of a whole job: the conversion of one trace, or the last step, with the outputs of all."""
        spec, step = begun.spec.job, begun.step
        assert step
        if not step.is_last:
            base = begun.inputs[0].file_name.rpartition("/")[2]
            place = {**self._place(0, begun.inputs[0]), "at": f"0/{base}"}
            order = {**_augment_order(spec.augment), "kind": "augment", "summaries": True, "inputs": [place]}
            return order | ({"metrics_only": True} if spec.merge.only else {})  # of which nothing remains
        name = spec.name or "job"
        sizes = dict(spec.parallelism)
        request = structs.replace(request_of(spec.augment), parallelism=sizes, trust_clocks=spec.trust_clocks)
        merge = {
            "align": not spec.merge.no_align,
            "everything": spec.merge.everything,
            "only": spec.merge.only,
            "ranks": ranks_of(spec.merge.ranks),
        }
        return {
            "request": _plain(request),
            "summaries": spec.augment.summaries,
            "merge": merge if spec.HasField("merge") else None,
            "inputs": [
                self._done(begun.id, at, part, name, needed=spec.HasField("merge"))
                for at, part in enumerate(begun.parts)
            ],
        }

    def _done(self, job: str, at: int, part: Part, name: str, *, needed: bool) -> Order:
        """A trace of a whole job, with its outputs, which are empty if it could not be converted.

        ``needed``: the trace itself is needed, too.
        """
        given = part.given
        there = bool(given.content) and self._storage.store.has(given.content)
        if not (needed or (given.source and there)):
            given = replace(given, content="", uri="")
        place = {**self._place(at, given), "at": f"{name}/{given.file_name}"}
        if not part.given.source:
            place["key"] = part.given.made.folder or f"ranks/{job}/{at}"
        place["made"] = _plain(part.given.made.files) if part.succeeded else []
        if not part.given.source:
            place["rank"], place["world_size"] = part.given.made.rank, part.given.made.world_size
        return place


def _given(given: Order, place: Path) -> Iterator[tuple[str, Path, str]]:
    """The stored files of an input, which are put below ``place``, where the worker can read them, and no others: the
    key of each, and its path there. The order then says where they are.
    """
    place.mkdir(mode=0o700)
    if key := given.get("blob"):
        yield key, place, "blob"
        given["blob"] = str(place / "blob")
    if key := given.get("key"):
        for made in given["made"]:
            yield f"{key}/{made['file_name']}", place, f"made/{made['file_name']}"
        given["made_in"] = str(place / "made")


def handed_over(order: Order) -> Iterator[tuple[str, str]]:
    """The outputs of all traces, in the last step of a whole job: the path of each below ``out``, beside its trace's,
    and its key.
    """
    for given in order["inputs"] if order["kind"] == "job" else ():
        folder = given["file_name"].rpartition("/")[0]
        for made in given["made"]:
            name = made["file_name"].rpartition("/")[2]
            yield f"{folder}/{name}" if folder else name, f"{given['key']}/{made['file_name']}"


#: the endings of the outputs of each kind of order
_ENDINGS = {
    "augment": OF_TRACE,
    "job": OF_TRACE,
    "diff": OF_DIFF,
    "report": (".report.md", ".report.html"),
    "diagnose": ("diagnosis.md", "diagnosis.jsonl"),
    "check": ("check.md", "check.xml", "check.json"),
    "history": ("history.json",),
    "cut": (".cut.json.gz", ".cut.pftrace"),
}


def expect_outputs(order: Order, names: Sequence[str]) -> None:
    """Check that a worker has made only files that its order is for: clients save them under these names.

    Raises:
        OutsideFolder: another one has been made, or more than there can be.
    """
    known = {name for name, _ in handed_over(order)}
    new = sum(name not in known for name in names)
    if new > _OUTPUTS * (1 + len(order["inputs"])):
        raise OutsideFolder(f"{new} new outputs of {len(order['inputs'])} traces")
    for name in names:
        if not name.endswith(_ENDINGS[order["kind"]]) or name.count("/") > MOST_FOLDERS:
            raise OutsideFolder(f"{name[-200:]!r} is no output of such a job")


def _augment_order(spec: v1.AugmentSpec) -> Order:
    return {"request": _plain(request_of(spec)), "summaries": spec.summaries, "metrics_only": spec.metrics_only}


def _peaks(spec: v1.DiffSpec | v1.DiagnoseSpec) -> list[str]:
    return list(request_of(v1.AugmentSpec(peaks=spec.peaks, peak_values=spec.peak_values)).peaks)


def _plain(what: Any) -> Any:
    return msgspec.to_builtins(what)


def _sides(begun: Begun) -> list[str]:
    """The side of a comparison that each trace belongs to."""
    return ["control" if is_control(begun.spec.diff, given.origin) else "test" for given in begun.inputs]


def _diff_order(spec: v1.DiffSpec) -> Order:
    """The order of a comparison; unset options are left out."""
    order: Order = {
        "name": spec.name or "job",
        "peaks": _peaks(spec),
        "compare": {"region": spec.region or None, "short_names": spec.short_names, "functions": spec.functions},
        "drawing": {"formats": list(spec.formats), "label": spec.label, "overlay": spec.overlay},
    }
    ranks = {"control_rank": spec.control_rank, "test_rank": spec.test_rank}
    order["compare"] |= {name: rank for name, rank in ranks.items() if spec.HasField(name)}  # type: ignore[arg-type]
    if spec.HasField("steps"):
        order["compare"]["step"] = [spec.steps.control, spec.steps.test]
    if spec.HasField("min_delta_us"):
        order["drawing"]["min_delta_ns"] = 1000 * spec.min_delta_us
    if spec.HasField("arrow_count"):
        order["drawing"]["arrow_count"] = spec.arrow_count
    return order
