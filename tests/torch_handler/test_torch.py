"""Recording in a training script: the handler and the preset; with PyTorch and trainers where they are installed."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import augment.torch
from augment.errors import UsageError
from augment.readers import read
from augment.torch import follow_up, handler
from traces import SIMULATED

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
TRAINING = ROOT / "examples" / "training"
needs_torch = pytest.mark.skipif(
    find_spec("torch") is None, reason="PyTorch is not installed; its CPU build will do: pip install torch==2.13.0+cpu"
)
TIMEOUT_S = 120


class Recorded:
    """A profiler that has recorded a trace."""

    step_num = 5

    def export_chrome_trace(self, path: str) -> None:
        with subprocess.Popen(["gzip", "-dc", SIMULATED[0]], stdout=subprocess.PIPE) as plain:
            Path(path).write_bytes(plain.communicate()[0])


class Broken(Recorded):
    def export_chrome_trace(self, path: str) -> None:
        Path(path).write_text("{")
        raise OSError(28, "No space left on device")


@pytest.fixture(autouse=True)
def _one_rank(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """This rank, and turns of this test's own; nothing waits at the end of the test process."""
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(handler.atexit, "register", lambda *_: None)


def handled(folder: Path, profiler: Any, *, after: float = TIMEOUT_S, **settings: Any) -> list[str]:
    """The names of the files once everything is done."""
    ends = started()
    augment.torch.trace_handler(folder, **settings)(profiler)
    ends[0](after)
    return sorted(re.sub(r"\.\d+\.", ".TIME.", path.name) for path in folder.rglob("*") if path.is_file())


def started() -> list[Any]:
    """To be filled with what a handler would call at the end of the process, with the seconds that it may wait."""
    calls: list[Any] = []
    handler.atexit.register = lambda call, _: calls.append(call)  # type: ignore[assignment]
    return calls


def test_a_trace_is_written_with_its_rank_and_augmented(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "augment.torch")
    files = handled(tmp_path / "traces", Recorded(), run="first", arguments=["--only", "steps", "--to", "chrome"])
    stem = "rank3_step5.TIME"
    assert files == [f"{stem}.augmented.json.gz", f"{stem}.metrics.json", f"{stem}.pt.trace.json.gz"]
    (metrics,) = (tmp_path / "traces" / "first").glob("*.metrics.json")
    assert list(json.loads(metrics.read_text())["analyses"]) == ["steps"]
    (record,) = caplog.records
    assert record.getMessage().endswith("is augmented")


def test_the_trace_itself_can_be_removed(tmp_path: Path) -> None:
    files = handled(tmp_path / "traces", Recorded(), keep_source=False, arguments=["--only", "steps", "--to", "chrome"])
    assert files == ["rank3_step5.TIME.augmented.json.gz", "rank3_step5.TIME.metrics.json"]


def test_a_failure_of_the_other_process_is_one_line_and_the_trace_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = handled(tmp_path / "traces", Recorded(), keep_source=False, arguments=["--only", "nonsense"])
    assert files == ["rank3_step5.TIME.pt.trace.json.gz"]
    (record,) = caplog.records
    assert "no analysis is called 'nonsense'" in record.getMessage()
    assert "\n" not in record.getMessage()


def test_a_trace_that_cannot_be_written_is_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert handled(tmp_path / "traces", Broken()) == []
    (record,) = caplog.records
    assert "No space left on device" in record.getMessage()


class Full:
    """A profiler that finds the disk full: PyTorch leaves a part under another name, and raises nothing."""

    step_num = 3

    def export_chrome_trace(self, path: str) -> None:
        Path(f"{path}.tmp").write_text("{")


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    augment.torch.trace_handler(tmp_path / "traces")(Full())
    assert "is the disk full?" in caplog.text
    assert not list((tmp_path / "traces").iterdir())


def test_a_server_that_is_not_there_is_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("grpc")
    handled(tmp_path / "traces", Recorded(), server="127.0.0.1:1", arguments=["--patience", "0"])
    (record,) = caplog.records
    assert "127.0.0.1:1" in record.getMessage()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc here")
def test_the_other_process_has_the_lowest_priority_and_a_session_of_its_own(tmp_path: Path) -> None:
    import fcntl

    with open(follow_up.turn_file(), "w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)  # the process waits for its turn; the handler, which returns, does not
        ends = started()
        augment.torch.trace_handler(tmp_path / "traces")(Recorded())
        began = time.monotonic()
        while (result := children()) is None or result[1] != follow_up.PRIORITY:
            assert time.monotonic() - began < TIMEOUT_S
            time.sleep(0.05)
        assert result[2] not in (os.getsid(0), 0)
        assert not list((tmp_path / "traces").glob("*.metrics.json"))
        os.kill(result[0], 9)
    ends[0](TIMEOUT_S)


def test_a_killed_process_is_told_and_so_is_what_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One process at a time; more traces than may wait are left, and named; rank 0 says how the job is analysed."""
    caplog.set_level(logging.INFO, "augment.torch")
    monkeypatch.setattr(handler, "MOST_WAITING", 2)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    began, go_on, running = threading.Event(), threading.Event(), list[int]()

    def killed(*_: object, **__: object) -> subprocess.CompletedProcess[bytes]:
        running.append(1)
        began.set()
        assert go_on.wait(TIMEOUT_S)
        return subprocess.CompletedProcess([], -9, b"", b"reading\n")

    monkeypatch.setattr(handler.subprocess, "run", killed)
    queue = handler.Queue((), ())
    queue.put(tmp_path / "0.json")
    assert began.wait(TIMEOUT_S)
    for number in (1, 2, 3):
        queue.put(tmp_path / f"{number}.json")
    queue.wait(0)
    go_on.set()
    for thread in threading.enumerate():
        if thread.name == "augment":
            thread.join(TIMEOUT_S)
    assert len(running) == 1
    said = [record.getMessage().replace(str(tmp_path), "traces") for record in caplog.records]
    assert said == [
        "augment: traces/3.json is not augmented: 2 traces wait already; augment run traces augments it afterwards",
        "augment: after 0 s, a trace is still being augmented",
        "augment: after 0 s, 2 traces are not augmented: augment run traces",
        "augment: figures of the whole job, once all ranks are done: augment run traces",
        "augment: traces/0.json is not augmented: killed by SIGKILL; the kernel does this where memory is short",
    ]


def children() -> tuple[int, int, int] | None:
    """Pid, niceness and session of the process that augments for this one."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if b"augment.torch.follow_up" in command and int(fields[1]) == os.getpid():
            return int(folder.name), int(fields[16]), int(fields[3])
    return None


def test_without_a_rank_the_process_names_the_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in handler._RANKS:
        monkeypatch.delenv(variable, raising=False)
    (name,) = handled(tmp_path / "traces", Recorded(), arguments=["--only", "nonsense"])
    assert name.endswith(f"_{os.getpid()}_step5.TIME.pt.trace.json.gz")


@pytest.mark.skipif(find_spec("torch") is not None, reason="PyTorch is installed")
def test_the_preset_says_that_it_needs_pytorch(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs PyTorch"):
        augment.torch.profile(tmp_path)


def test_importing_does_not_load_pytorch() -> None:
    code = "import augment.torch, sys; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"


def done_by(*command: str) -> str:
    """What a training script says on stderr; it is a process of its own, as PyTorch stays in a process."""
    environment = {name: value for name, value in os.environ.items() if name != "RANK"}
    paths = (str(ROOT), str(TRAINING), os.environ.get("PYTHONPATH", ""))
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def sidecar_in(folder: Path, rank: str = "") -> Any:
    (metrics,) = folder.glob(f"{rank}*.metrics.json")
    return json.loads(metrics.read_text())


@needs_torch
def test_a_job_of_two_ranks_is_recorded_and_augmented(tmp_path: Path) -> None:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    said = done_by(*torchrun, str(TRAINING / "loop.py"), str(tmp_path))
    assert said.count("is augmented") == 2, said
    for rank in (0, 1):
        sidecar = sidecar_in(tmp_path / "loop", f"rank{rank}_step6")
        assert (sidecar["source"]["ranks"], sidecar["source"]["rank_from"]) == ([rank], "distributedInfo")
        assert sidecar["source"]["steps"] == [3, 4, 5]
        operators = {row["operator"] for row in sidecar["analyses"]["operator_breakdown"]["rows"]}
        assert {"aten::addmm", "aten::relu"} <= operators
    assert len(list((tmp_path / "loop").glob("*.pt.trace.json.gz"))) == 2


PRESET = """
import sys, torch, augment.torch
profiler = augment.torch.profile(sys.argv[1], memory=True, wait=0, warmup=1, active=1, with_modules=True)
assert (profiler.record_shapes, profiler.profile_memory, profiler.with_stack) == (True, True, False)
assert profiler.with_modules
with profiler:
    profiler.step()
    torch.ones(8, 8) @ torch.ones(8, 8)
    profiler.step()
"""
LIGHTNING = """
import sys, torch, lightning.pytorch as pl
from lightning_callback import AugmentCallback
from torch.utils.data import DataLoader, TensorDataset

class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, _):
        return self.layer(batch[0]).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

callback = AugmentCallback(sys.argv[1], wait=1, warmup=1, active=2)
quiet = dict(enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False, logger=False)
trainer = pl.Trainer(max_steps=6, accelerator="cpu", callbacks=[callback], **quiet)
trainer.fit(Model(), DataLoader(TensorDataset(torch.ones(24, 4)), batch_size=4))
"""
TRANSFORMERS = """
import sys, torch, transformers
from transformers_callback import AugmentCallback

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def forward(self, values, labels=None):
        return {"loss": self.layer(values).square().mean()}

callback = AugmentCallback(sys.argv[1], wait=1, warmup=1, active=2)
how = transformers.TrainingArguments(output_dir=sys.argv[1] + "-out", max_steps=6, per_device_train_batch_size=4,
    report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True, remove_unused_columns=False)
data = [{"values": torch.ones(4), "labels": torch.zeros(1)}] * 24
transformers.Trainer(Model(), how, train_dataset=data, callbacks=[callback]).train()
"""
TORCHTITAN = """
import sys, torch, torch.distributed as dist
from torchtitan.tools.profiler import Profiler
from torchtitan_profiler import augmented

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
config = augmented(Profiler.Config(profile_freq=4, profiler_warmup=1, profiler_active=2))
with config.build(global_step=0, base_folder=sys.argv[1]) as profiler:
    for _ in range(4):
        torch.ones(8, 8) @ torch.ones(8, 8)
        profiler.step()
dist.destroy_process_group()
"""


@needs_torch
def test_the_preset_has_the_settings_that_analyses_need(tmp_path: Path) -> None:
    done_by("-c", PRESET, str(tmp_path / "traces"))
    operators = sidecar_in(tmp_path / "traces")["analyses"]["operator_breakdown"]["rows"]
    assert "aten::mm" in {row["operator"] for row in operators}


@needs_torch
@pytest.mark.parametrize(("package", "script"), [("lightning", LIGHTNING), ("transformers", TRANSFORMERS)])
def test_trainers_record_their_steps(package: str, script: str, tmp_path: Path) -> None:
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    done_by("-c", script, str(tmp_path / "traces"))
    assert sidecar_in(tmp_path / "traces")["source"]["steps"] == [2, 3]


LOOP = """
import signal, sys, torch, augment.torch
how = sys.argv[2]
layer = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(layer.parameters(), 0.1)
back = torch.Tensor.backward
if how == "accelerate":
    from accelerate import Accelerator
    accelerator = Accelerator(cpu=True)
    layer, optimizer = accelerator.prepare(layer, optimizer)
    back = accelerator.backward
with augment.torch.profile(sys.argv[1], wait=1, warmup=1, active=2 if how == "accelerate" else 50) as profiler:
    for step in range(5):
        back(layer(torch.ones(8, 4)).square().mean())
        optimizer.step()
        profiler.step()
    if how == "SIGTERM":  # which comes again while the trace is written
        profiler.export_chrome_trace = lambda to, of=profiler.export_chrome_trace: (signal.raise_signal(15), of(to))
    if how != "accelerate":
        signal.raise_signal(signal.Signals[how])
"""


@needs_torch
def test_accelerate_is_recorded(tmp_path: Path) -> None:
    if find_spec("accelerate") is None:
        pytest.skip("accelerate is not installed")
    done_by("-c", LOOP, str(tmp_path), "accelerate")
    assert sidecar_in(tmp_path)["source"]["steps"] == [2, 3]


@needs_torch
@pytest.mark.skipif(os.name == "nt", reason="no signals")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_leaves_what_was_recorded(name: str, tmp_path: Path) -> None:
    paths = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))
    environment = {**os.environ, "PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, "-c", LOOP, str(tmp_path), name],
        env=environment, capture_output=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert (ended.returncode == -signal.SIGTERM) == (name == "SIGTERM")
    assert (b"SIGTERM: what was recorded is written to " in ended.stderr) == (name == "SIGTERM")
    (trace,) = (path for path in tmp_path.iterdir() if ".pt.trace.json" in path.name and not path.name.startswith("."))
    assert read(str(trace)).partial is None


@needs_torch
def test_torchtitans_own_profiler_has_its_traces_augmented(tmp_path: Path) -> None:
    if find_spec("torchtitan") is None or find_spec("tyro") is None:
        pytest.skip("torchtitan is not installed: pip install --no-deps torchtitan; pip install tyro")
    done_by("-c", TORCHTITAN, str(tmp_path))
    folder = tmp_path / "profiling" / "traces" / "iteration_4"
    assert {path.name for path in folder.iterdir()} == {
        "rank0_trace.json.gz", "rank0_trace.augmented.pftrace", "rank0_trace.metrics.json"
    }  # fmt: skip
    assert "aten::mm" in {row["operator"] for row in sidecar_in(folder)["analyses"]["operator_breakdown"]["rows"]}
