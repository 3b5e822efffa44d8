"""A bound of memory: arrays lie in files and keep their values, and outputs are the same bytes."""

from __future__ import annotations

import bisect
import errno
import gc
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from augment.batch import memory_limit as memory
from augment.batch import spilling
from augment.batch.conversion import Progress, RunPlan, convert
from augment.batch.inputs import Input
from augment.cli.registry import group
from augment.errors import OutputError, UsageError
from augment.pipeline.request import Request
from traces import SIMULATED, by_folder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="bounds of memory need Linux"),
]

RECORDED = Path(__file__).parents[3] / "shared" / "traces"
SMALLEST = sorted(SIMULATED, key=lambda path: path.stat().st_size)[:2]
FILLED = """
import sys
from pathlib import Path
import numpy as np
from augment.batch import spilling
with spilling.spilled(200 << 20, Path(sys.argv[1])):
    arrays = [np.full(4 << 20, number, np.int32) for number in range(30)]
    sums = [int((array * 1).sum()) for array in arrays]
    arrays[3] += 1
    arrays.append(np.concatenate(arrays[:4]))
    assert int((arrays[-1] * 1).sum()) == (0 + 1 + 2 + 4) * (4 << 20)
    assert sums == [number * (4 << 20) for number in range(30)]
    assert not list(Path(sys.argv[1]).iterdir())
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
kept = arrays
"""


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every array of 16 kB and more is spilled, at each look at the memory."""
    monkeypatch.setattr(spilling, "LEAST_ARRAY", 1 << 14)
    monkeypatch.setattr(spilling, "_FULL", 0.0)
    monkeypatch.setattr(spilling, "_EASED", 0.0)


def outputs(path: Path, folder: Path, bound: int | None) -> dict[str, str]:
    """The digests of all outputs."""
    plan = RunPlan(Request(formats=("chrome", "perfetto")), memory=bound, threads=2)
    result = convert(Input(str(path), str(folder), named=True), plan, Progress())
    assert result.status == "augmented", result.message
    return {Path(name).name: hashlib.sha256(Path(name).read_bytes()).hexdigest() for name in result.outputs}


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("path", SMALLEST, ids=by_folder)
def test_outputs_do_not_depend_on_the_bound(path: Path, tmp_path: Path) -> None:
    assert outputs(path, tmp_path / "bounded", 1 << 20) == outputs(path, tmp_path / "free", None)
    assert sorted(os.listdir(tmp_path / "bounded")) == sorted(os.listdir(tmp_path / "free"))


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("name", ["legacy_autograd_array", "hta_cuda_sync"])
def test_outputs_of_recorded_traces_do_not_depend_on_the_bound(name: str, tmp_path: Path) -> None:
    files = [path for path in sorted((RECORDED / name).rglob("*.json*")) if path.is_file()]
    if not files:
        pytest.skip("no shared traces here")
    assert outputs(files[0], tmp_path / "bounded", 1 << 20) == outputs(files[0], tmp_path / "free", None)


@pytest.mark.usefixtures("always")
def test_arrays_keep_their_values(tmp_path: Path) -> None:
    with spilling.spilled(1 << 20, tmp_path):
        arrays = [np.arange(number, number + 50_000) for number in range(20)]
        zeros = np.zeros(100_000)
        for number, array in enumerate(arrays):
            array *= 2
            array[7] = -number
        grown = arrays.pop()
        grown.resize(90_000, refcheck=False)
        shrunk = arrays.pop()
        shrunk.resize(9_000, refcheck=False)
        small = np.arange(10)
        small.resize(60_000, refcheck=False)
        many = [np.full(5, each) for each in range(200)]
        assert os.listdir(tmp_path) == []
    for number, array in enumerate(arrays):
        expected = 2 * np.arange(number, number + 50_000)
        expected[7] = -number
        assert np.array_equal(array, expected)
    assert grown[49_999] == 2 * (19 + 49_999)
    assert not grown[50_000:].any()
    assert np.array_equal(shrunk[8:], 2 * np.arange(18 + 8, 18 + 9_000))
    assert small[:10].tolist() == list(range(10))
    assert not zeros.any()
    assert [int(each.sum()) for each in many] == [5 * each for each in range(200)]
    after = np.arange(1 << 20)  # by numpy's own handler again
    del arrays, zeros, grown, shrunk, small, many
    gc.collect()
    assert after[-1] == (1 << 20) - 1


def test_the_process_stays_within_the_bound(tmp_path: Path) -> None:
    """480 MB of arrays in 200 MB, and nothing on stderr when they outlive Python's functions."""
    command = [sys.executable, "-c", FILLED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    assert int(done.stdout) << 10 < 200 << 20


def test_a_folder_in_memory_is_refused() -> None:
    if not os.path.isdir("/dev/shm"):
        pytest.skip("no /dev/shm")
    with pytest.raises(OutputError, match="lies in memory"), spilling.spilled(1 << 30, Path("/dev/shm")):
        pass


def test_a_full_disk_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="free disk"), spilling.spilled(1 << 60, tmp_path):
        pass


def test_a_disk_that_fills_up_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    gc.collect()
    memory = spilling._memory()
    others = memory._arrays.keys() - memory._files  # arrays of earlier tests
    monkeypatch.setattr(memory, "_small", 0)  # every 16th small request looks at memory, too
    monkeypatch.setattr(os, "posix_fallocate", full)
    monkeypatch.setattr(spilling, "_FULL", 0.0)
    arrays: list[object] = []
    with pytest.raises(OutputError, match="No space left on device"), spilling.spilled(1 << 20, tmp_path) as expect:
        for _ in range(3):
            arrays.append(np.ones(1 << 20))
            expect()
    assert len(arrays) == (1 if others else 2)  # those of others go to the disk first
    item, plan = Input(str(SMALLEST[0]), str(tmp_path / "out"), named=True), RunPlan(memory=1 << 20)
    monkeypatch.setattr(spilling, "LEAST_ARRAY", 1 << 14)
    result = convert(item, plan, Progress())
    assert result.status == "failed"
    assert "No space left on device" in result.message
    assert not list((tmp_path / "out").glob("*"))
    monkeypatch.undo()
    assert convert(item, RunPlan(), Progress()).status == "augmented"


COMMANDS = {
    "merge": ["merge", *map(str, SMALLEST), "--all", "-o", "{out}/job.pftrace"],
    "diff": ["diff", *map(str, SMALLEST), "--overlay", "-o", "{out}"],
}


def carried_out(command: str, out: Path, *more: str) -> dict[str, str]:
    """The digests of all files that the command wrote."""
    out.mkdir()
    arguments = [part.format(out=out) for part in COMMANDS[command]]
    CliRunner().invoke(group(), [*arguments, "--quiet", *more], standalone_mode=False, catch_exceptions=False)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in out.iterdir()}


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("command", COMMANDS)
def test_merge_and_diff_do_not_depend_on_the_bound(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "needed", lambda _: 1 << 40)
    spills: list[int] = []
    spill = spilling._Memory._spill
    monkeypatch.setattr(
        spilling._Memory, "_spill", lambda self, *where: (spills.append(where[1]), spill(self, *where))[1]
    )
    free = carried_out(command, tmp_path / "free")
    assert not spills
    assert carried_out(command, tmp_path / "bounded", "--memory", "1G") == free
    assert len(spills) > 10


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("command", COMMANDS)
def test_merge_and_diff_tell_of_a_full_disk(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(memory, "needed", lambda _: 1 << 40)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OutputError, match="No space left on device"):
        carried_out(command, tmp_path / "out", "--memory", "1G")
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize("command", COMMANDS)
def test_merge_and_diff_refuse_a_bound_that_is_too_low(command: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at least 512M"):
        carried_out(command, tmp_path / "out", "--memory", "100M")


def test_traces_that_need_less_are_not_bounded(tmp_path: Path) -> None:
    items = [Input(str(path), "", named=True, size=path.stat().st_size) for path in SMALLEST]
    together = memory.needed_together(items)
    assert max(map(memory.needed, items)) < together < sum(map(memory.needed, items))
    assert memory.bound_for(items, together) is None
    assert memory.bound_for(items, together - 1) == together - 1
    assert memory.bound_for(items, None) is None
    with memory.bounded(None, tmp_path) as expect_room:
        expect_room()


def test_freed_memory_serves_the_next_arrays(tmp_path: Path) -> None:
    size = (1 << 20) + 12_345  # no other array's
    with spilling.spilled(1 << 34, tmp_path):
        first = np.full(size, 7)
        address = first.ctypes.data
        del first
        zeros = np.zeros(size)
        assert zeros.ctypes.data == address
        assert not zeros.any()


def test_memory_that_is_freed_meanwhile_is_not_taken_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The garbage collector can run at any time, also in the midst of a search."""
    handler, place_in = spilling._memory(), bisect.bisect_left
    shorter, longer = (4096, 1 << 40), (8192, 2 << 40)

    def collected(kept: list[tuple[int, int]], wanted: tuple[int, int]) -> int:
        place = place_in(kept, wanted)
        kept.insert(0, shorter)
        return place

    monkeypatch.setattr(handler, "_kept", [longer])
    monkeypatch.setattr(bisect, "bisect_left", collected)
    assert handler._again(8192) == 0
    assert handler._kept == [shorter, longer]


def test_a_bound_that_is_too_low_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="at least 512M"):
        spilling.expect_possible(1 << 20)
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UsageError, match="needs Linux"):
        spilling.expect_possible(1 << 40)


@pytest.mark.parametrize(("options", "expected"), [
    (["--memory", "4"], "is not a size"),
    (["--memory", "100M"], "at least 512M"),
    (["--memory", "1G", "--server", "localhost:1"], "not supported with a server"),
    (["--memory", "0.5GiB"], ""),
])  # fmt: skip
def test_the_option(options: list[str], expected: str, tmp_path: Path) -> None:
    arguments = ["run", str(SMALLEST[0]), "-o", str(tmp_path / "out"), "--quiet", *options]
    done = CliRunner().invoke(group(), arguments, standalone_mode=False)
    assert expected in str(done.exception or "")
    assert bool(done.exception) == bool(expected)


def test_a_bounded_conversion_needs_no_more_than_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(b" " * 1000)
    item = Input(str(path), str(tmp_path), named=True)
    assert memory.needed(item, bound=1 << 20) == 1 << 20
    assert memory.needed(item, bound=1 << 40) == memory.needed(item)
