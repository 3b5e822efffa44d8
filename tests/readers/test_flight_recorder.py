"""Dumps of the flight recorder: versions, and what strangers may write."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
from running import Augment

from augment import AugmentError, InputError, LimitExceeded, UnknownFormat, cli
from augment.batch.inputs import choose_inputs
from augment.core.attachment_kinds import kind_of
from augment.readers import read
from augment.readers.attachments.flight_recorder import read_dump
from traces import write_trace

ENTRY = {
    "record_id": 0,
    "pg_id": 0,
    "process_group": ("0", "default_pg"),
    "collective_seq_id": 4,
    "p2p_seq_id": 0,
    "op_id": 4,
    "profiling_name": "nccl:all_reduce",
    "time_created_ns": 1_760_000_000_000_000_000,
    "input_sizes": [[2, 3]],
    "output_sizes": [[2, 3]],
    "state": "scheduled",
    "time_discovered_started_ns": None,
    "time_discovered_completed_ns": None,
    "retired": False,
    "frames": [{"name": "step", "filename": "train.py", "line": 3}],
}
DOCUMENT = {
    "version": "2.9",
    "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
    "pg_status": {"0": {"last_enqueued_collective": 4, "last_started_collective": -1, "last_completed_collective": 3}},
    "entries": [ENTRY],
}


def written(folder: Path, data: bytes, name: str = "dump_1") -> str:
    (folder / name).write_bytes(data)
    return str(folder / name)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5, "json", "gzip"])
def test_every_form(tmp_path: Path, protocol: Any) -> None:
    data = json.dumps(DOCUMENT).encode() if protocol == "json" else pickle.dumps(DOCUMENT, 2)
    data = pickle.dumps(DOCUMENT, protocol) if isinstance(protocol, int) else data
    kind = kind_of(data[:4096])
    assert kind.name == "flight_recorder"
    dump = read_dump(written(tmp_path, gzip.compress(data) if protocol == "gzip" else data))
    (operation,) = dump.operations
    assert (dump.rank, operation.kind, operation.sequence, operation.done) == (1, "all_reduce", 4, False)
    assert dump.groups["0"].ranks == (0, 1)
    assert (operation.frames[0].filename, operation.frames[0].line) == ("train.py", 3)


def test_before_version_two(tmp_path: Path) -> None:
    old = {name: value for name, value in ENTRY.items() if name not in ("collective_seq_id", "process_group")}
    data = pickle.dumps({"version": "1.4", "entries": [{**old, "seq_id": 9, "state": "completed"}]}, 2)
    (operation,) = read_dump(written(tmp_path, data)).operations
    assert (operation.sequence, operation.done) == (9, True)


@pytest.mark.parametrize(
    ("name", "kind", "peer"),
    [("nccl:send 0->1", "send", 3), ("nccl:recv 1<-0", "recv", 2), ("gloo:isend 0->1", "send", 3)],
)
def test_messages_have_a_peer(tmp_path: Path, name: str, kind: str, peer: int) -> None:
    config = {"5": {"name": "5", "desc": "pp", "ranks": "[2, 3]"}}
    entry = {**ENTRY, "process_group": ("5", "pp"), "profiling_name": name, "is_p2p": True, "p2p_seq_id": 7}
    data = pickle.dumps({**DOCUMENT, "pg_config": config, "entries": [entry]}, 2)
    (operation,) = read_dump(written(tmp_path, data, f"dump_{5 - peer}")).operations
    assert (operation.kind, operation.peer, operation.sequence) == (kind, peer, 7)


@pytest.mark.parametrize("state", ["completed", "scheduled"])
@pytest.mark.parametrize("is_p2p", [True, False])  # of the entry that closes the batch: False before PyTorch 2.5
def test_messages_of_a_batch_have_the_state_of_the_batch(tmp_path: Path, state: str, is_p2p: bool) -> None:
    names = ("nccl:send 1->0", "nccl:recv 1<-0", "nccl:coalesced")
    batch = [{**ENTRY, "profiling_name": name, "is_p2p": True, "p2p_seq_id": 2} for name in names]
    batch[2] |= {"state": state, "is_p2p": is_p2p}
    alone = {**batch[0], "p2p_seq_id": 3}
    for entries in ([*batch, alone], [alone, *batch[::-1]]):
        dump = read_dump(written(tmp_path, pickle.dumps({**DOCUMENT, "entries": entries}, 2)))
        done = {(operation.kind, operation.sequence): operation.done for operation in dump.operations}
        assert done == {("send", 2): state == "completed", ("recv", 2): state == "completed", ("send", 3): False}


class _Runs:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("ran",)


HOSTILE = {
    "runs": pickle.dumps({**DOCUMENT, "x": _Runs()}, 2),
    "runs_newer": pickle.dumps(_Runs(), 5),
    "marks": b"\x80\x02" + b"(" * 1_000_000,
    "memo": b"\x80\x02}r\xff\xff\xff\x7f.",
    "length": b"\x80\x04\x8d" + b"\xff" * 8,
    "itself": b"\x80\x02}q\x00X\x07\x00\x00\x00entriesh\x00s.",
    "persistent": b"\x80\x02K\x01Q.",
    "cut": pickle.dumps(DOCUMENT, 2)[:-20],
    "other_types": pickle.dumps({**DOCUMENT, "entries": [{"time_created_ns": "soon"}]}, 2),
    "nested": pickle.dumps({**DOCUMENT, "entries": [{"input_sizes": [[[[1]]]]}]}, 2),
    "many_dimensions": pickle.dumps({**DOCUMENT, "entries": [{"input_sizes": [[1 << 62] * 100_000]}]}, 2),
    "number": pickle.dumps({**DOCUMENT, "entries": [{"time_created_ns": 1 << 80}]}, 2),
    "not_a_dump": pickle.dumps({"segments": []}, 2),
    "json": b'{"entries": [' + b"[" * 100_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_strangers_write_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AugmentError) as refused:
        read_dump(written(tmp_path, HOSTILE[name]))
    assert len(str(refused.value).splitlines()) == 1
    assert not Path("ran").exists()


def test_one_list_named_many_times(tmp_path: Path) -> None:
    frames = [{"name": "f"}] * 2000
    data = pickle.dumps({**DOCUMENT, "entries": [{**ENTRY, "frames": frames}] * 6000}, 2)
    with pytest.raises(LimitExceeded):
        read_dump(written(tmp_path, data))


def test_times_before_1970_and_beyond_all_years(tmp_path: Path) -> None:
    from augment.job.verdict.hangs import report_on_dumps

    for moment in (-(10**18), 9 * 10**18):
        data = pickle.dumps({**DOCUMENT, "entries": [{**ENTRY, "time_created_ns": moment}]}, 2)
        report_on_dumps([read_dump(written(tmp_path, data)), read_dump(written(tmp_path, data, "dump_0"))], "x")


@pytest.mark.parametrize("number", ["\N{SUPERSCRIPT TWO}", "9" * 5000])
def test_numbers_of_groups_that_are_none(tmp_path: Path, number: str) -> None:
    status = {number: {"last_enqueued_collective": 4, "last_completed_collective": 3}}
    name = f"nccl:send {'9' * 5000}->1"
    document = {**DOCUMENT, "pg_status": status, "entries": [{**ENTRY, "profiling_name": name}]}
    dump = read_dump(written(tmp_path, pickle.dumps(document, 2)))
    assert (dump.progress, len(dump.operations)) == ({}, 1)


def test_a_name_without_rank(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="rank"):
        read_dump(written(tmp_path, pickle.dumps(DOCUMENT, 2), "dump"))
    with pytest.raises(UnknownFormat):
        read_dump(written(tmp_path, b"", "dump_0"))


def test_a_folder_with_other_files(tmp_path: Path, augment: Augment) -> None:
    """JSON that is no trace hides no dump, a trace none where it is judged; of two dumps of a rank the newer counts."""
    for rank in (0, 1):
        written(tmp_path, pickle.dumps(DOCUMENT, 2), f"dump_{rank}")
    (tmp_path / "config.json").write_text('{"lr": 1}')
    older = {**DOCUMENT, "pg_status": {}, "entries": [{**ENTRY, "collective_seq_id": 2, "time_created_ns": 5}]}
    (tmp_path / "dump_1.json").write_text(json.dumps(older))
    done = augment("diagnose", tmp_path)
    assert "2 dumps of the flight recorder:" in done.out
    assert "Ranks 0-1 wait in all_reduce number 4 of default_pg [0-1]" in done.out
    assert "Several dumps of rank 1 are here: the newest is judged." in done.out
    assert augment("report", tmp_path, "-o", tmp_path / "page.html").code == 0
    write_trace(tmp_path / "trace.json")
    done = augment("diagnose", tmp_path)
    assert "2 dumps of the flight recorder:" in done.out
    assert f"{tmp_path}/trace.json:" in done.out
    assert [item.basename for item in choose_inputs([str(tmp_path)], None).inputs if "dump" in item.basename] == [
        "dump_1.json"
    ]


def test_a_dump_with_the_name_of_another_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As where two files are swapped. Without operations a writer may list groups of others, so most groups decide."""
    config = {"7": {"name": "7", "desc": "dp", "ranks": "[0, 1]"}}
    document = {**DOCUMENT, "pg_config": config}
    (tmp_path / "jobs").mkdir()
    for rank in (0, 2):
        written(tmp_path / "jobs", pickle.dumps(document, 2), f"dump_{rank}")
    monkeypatch.setattr(sys, "argv", ["augment", "diagnose", str(tmp_path / "jobs")])
    assert cli.main() == 1
    said = capsys.readouterr().err.splitlines()[0]
    expected = "a dump of a group of ranks 0-1, and not of rank 2, which its name ends with: is it another's?"
    assert said == f"augment: {tmp_path}/jobs/dump_2: {expected}"
    empty = {**document, "entries": []}
    with pytest.raises(InputError, match="another's"):
        read_dump(written(tmp_path, pickle.dumps(empty, 2), "dump_2"))
    config |= {name: {"name": name, "desc": "tp", "ranks": "[2, 3]"} for name in "89"}
    assert read_dump(written(tmp_path, pickle.dumps({**empty, "pg_config": config}, 2), "dump_2")).rank == 2


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_bare_list_of_collectives_is_called_what_it_is(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps([{"pg_id": 0, "seq_id": 1, "profiling_name": "nccl:all_reduce"}], protocol))
    with pytest.raises(UnknownFormat, match="a dump of the flight recorder of an old PyTorch"):
        read(str(path))


@pytest.mark.parametrize("before", [1, 60_000])
def test_a_log_of_a_hang_leads_to_the_recorder(tmp_path: Path, before: int) -> None:
    path = tmp_path / "job.log"
    path.write_text("step 1\n" * before + "[E] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(…)\n")
    with pytest.raises(UnknownFormat, match="set TORCH_FR_BUFFER_SIZE=2000"):
        read(str(path))
