"""The simulated traces that ship with the project: what their script writes, and with GPU work."""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path
from typing import Any

import pytest

from augment.core.trace import GPU_WORK
from augment.readers import read
from traces import SIMULATED

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "simulated.py"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = importlib.util.spec_from_file_location("simulated_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    folder = tmp_path_factory.mktemp("simulated")
    script.write(folder)
    return folder


def test_the_script_writes_these_traces(written: Path) -> None:
    folder = SCRIPT.with_suffix("")
    names = sorted(path.relative_to(written).as_posix() for path in written.rglob("*.json.gz"))
    assert names == sorted(path.relative_to(folder).as_posix() for path in SIMULATED)
    assert len(names) == 5
    for name in names:
        same = gzip.decompress((written / name).read_bytes()) == gzip.decompress((folder / name).read_bytes())
        assert same, f"{name} is not what the simulator writes: python examples/simulated.py"


@pytest.mark.parametrize("path", SIMULATED, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_they_are_small_and_have_gpu_work(path: Path) -> None:
    assert path.stat().st_size < 60_000
    trace = read(str(path))
    assert len(trace.events.slices_of(*GPU_WORK)) > 50
    assert trace.partial is None
