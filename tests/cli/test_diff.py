"""``augment diff`` and ``augment check`` as a shell sees them."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner, Result
from running import Augment

from augment.cli.registry import group
from augment.compare.outputs import diff_schema
from augment.errors import AugmentError, InputError
from perfetto_engine import PerfettoEngine
from simulator import JobOptions, simulate
from traces import kernel, launch, step, write_trace

pytestmark = pytest.mark.slow

GPU = ("kernel", "gpu_memcpy", "gpu_memset")


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of two ranks: ``control``, and ``test``, whose matrix products take a quarter longer."""
    folder = tmp_path_factory.mktemp("jobs")
    simulate(JobOptions(ranks=2, steps=4, layers=1, seed=1), folder / "control")
    simulate(JobOptions(ranks=2, steps=4, layers=1, seed=2), folder / "again")
    simulate(JobOptions(ranks=2, steps=4, layers=1, seed=3, slow_kernel="nvjet", slow_percent=25), folder / "test")
    return folder


def ran(*arguments: object) -> Result:
    return CliRunner().invoke(group(), [str(argument) for argument in arguments], standalone_mode=False)


def rank0(folder: Path) -> Path:
    return folder / "rank0.pt.trace.json.gz"


def test_diff_of_two_traces(jobs: Path, tmp_path: Path) -> None:
    result = ran("diff", rank0(jobs / "control"), rank0(jobs / "test"), "-o", tmp_path)
    assert "compared: 4 steps: 0 to 3" in result.stdout
    for title in ("Figures", "Where the difference comes from", "By operator", "nvjet", "--limit 10 prints"):
        assert title in result.stdout
    assert len(result.output.splitlines()) <= 60
    whole = ran("diff", rank0(jobs / "control"), rank0(jobs / "test"), "-o", tmp_path, "--limit", 10).stdout
    assert ("Slower, time per step" in whole, "Slower, time per step" in result.stdout) == (True, False)
    sidecar = json.loads((tmp_path / "rank0.diff.metrics.json").read_text())
    jsonschema.validate(sidecar, diff_schema(closed=True))
    assert sidecar["compared"][0]["control"]["steps"] == [0, 1, 2, 3]
    assert sum(row["delta_ns"] for row in sidecar["analyses"]["diff_waterfall"]["rows"]) == sum(
        row["delta_ns"] for row in sidecar["analyses"]["diff_steps"]["rows"]
    )
    assert "exposed_communication_ns" in ran("show", tmp_path / "rank0.diff.metrics.json", "diff_figures").stdout


def test_what_is_drawn(jobs: Path, tmp_path: Path) -> None:
    pair = rank0(jobs / "control"), rank0(jobs / "test")
    made = ran("diff", *pair, "-o", tmp_path, "--to", "chrome,perfetto", "--overlay", "--label", "before", "--quiet")
    names = ["rank0.diff.json.gz", "rank0.diff.pftrace", "rank0.diff.overlay.pftrace", "rank0.diff.metrics.json"]
    assert made.stdout.split() == [str(tmp_path / name) for name in names]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    drawn = gzip.decompress((tmp_path / names[0]).read_bytes()).decode()
    added = [line for line in drawn.splitlines() if line.startswith('{"cat":"augment.diff"')]
    assert any('"name":"Diff vs before: Δ GPU 0 slower"' in line for line in added)
    ran("diff", *pair, "-o", tmp_path, "--min-delta-us", 100_000, "--quiet")
    fewer = gzip.decompress((tmp_path / names[0]).read_bytes()).decode()
    assert '"name":"Diff vs rank0: Δ' not in fewer, "the label is the control's name, and no slice is left"
    assert '"ph":"C"' in "".join(line for line in fewer.splitlines() if line.startswith('{"cat":"augment.diff"'))
    written = []
    for flags in ((), ("--min-delta-us", 1)):
        ran("diff", *pair, "-o", tmp_path, *flags, "--quiet")
        written.append((tmp_path / names[1]).read_bytes())
    assert len(written[0]) < len(written[1])
    again = ran("diff", tmp_path, rank0(jobs / "test"))
    assert "holds no trace" in str(again.exception), "what it wrote is no input of a folder"
    assert isinstance(ran("diff", *pair, "-o", tmp_path, "--to", "nonsense").exception, AugmentError)


def test_ranks_of_one_name(jobs: Path, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        shutil.copy(rank0(jobs / "test") if folder == "a" else jobs / "test" / "rank1.pt.trace.json.gz",
                    tmp_path / folder / "trace.json.gz")  # fmt: skip
    refused = ran("diff", jobs / "control", tmp_path, "-o", tmp_path / "out")
    assert "would write the same outputs" in str(refused.exception)
    assert not (tmp_path / "out").exists()
    made = ran(
        "diff", jobs / "control", tmp_path, "-o", tmp_path / "out", "--control-rank", 1, "--test-rank", 1, "--quiet"
    )
    assert made.exception is None


def test_diff_of_two_folders(jobs: Path, tmp_path: Path) -> None:
    sidecar = json.loads(ran("diff", jobs / "control", jobs / "test", "-o", tmp_path, "--json").stdout)
    assert [(each["control"]["rank"], each["test"]["rank"]) for each in sidecar["compared"]] == [(0, 0), (1, 1)]
    assert (tmp_path / "test.diff.metrics.json").exists()
    crossed = ran("diff", jobs / "control", jobs / "test", "-o", tmp_path, "--quiet",
                  "--control-rank", "0", "--test-rank", "1", "--step", "0:2")  # fmt: skip
    assert crossed.stdout.split() == [
        str(tmp_path / f"{stem}") for stem in ("rank1.diff.pftrace", "test.diff.metrics.json")
    ]
    (pair,) = json.loads((tmp_path / "test.diff.metrics.json").read_text())["compared"]
    assert [pair[side][what] for what in ("rank", "steps") for side in ("control", "test")] == [0, 1, [0], [2]]
    alone = ran("diff", jobs / "control", rank0(jobs / "test"), "-o", tmp_path).stdout
    assert re.match(r"control: control, 2 ranks, .*\ntest:    rank0, [^,]*\ncompared: 1 rank, 4 steps", alone)
    alike = ran("diff", jobs / "test", jobs / "test", "-o", tmp_path, "--limit", "0").stdout
    wall, *parts = re.findall(r"(?:^wall time|^ +\+0\.000) +([\d.]+) ", alike.split("\nEfficiency")[0], re.MULTILINE)
    assert sum(map(float, parts)) == pytest.approx(float(wall), abs=0.01), "per step and rank"


@pytest.mark.parametrize("step", ["x", "1:2:3", "", "9"])
def test_steps_that_are_none(jobs: Path, step: str, tmp_path: Path) -> None:
    result = ran("diff", rank0(jobs / "control"), rank0(jobs / "test"), "-o", tmp_path, "--step", step)
    assert isinstance(result.exception, AugmentError)
    assert result.exception.exit_code == 2


def test_check_of_traces_and_of_sidecars(jobs: Path, tmp_path: Path) -> None:
    for job in ("control", "again", "test"):
        assert ran("run", jobs / job, "-o", tmp_path / job, "--only", "steps", "--quiet").exception is None
    for where in (jobs, tmp_path):
        for name in ("rank0.pt.trace.json.gz", "") if where == jobs else ("rank0.metrics.json", ""):
            control = tmp_path / "control" / name.replace(".pt.trace.json.gz", ".metrics.json")
            silent = ran("check", where / "again" / name, "--baseline", control)
            assert (silent.return_value, silent.exception) == (0, None)
            assert silent.stdout.splitlines()[0].startswith("PASS    wall_ns: ")
            failed = ran("check", where / "test" / name, "--baseline", control, "--quiet")
            assert failed.return_value == 1
            assert [row.split()[1] for row in failed.stdout.splitlines()] == ["wall_ns:"]


def test_check_that_cannot_tell(tmp_path: Path) -> None:
    """Steps that vary by a third, on each side in another way."""
    for name, seed in (("control", 1), ("test", 2)):
        options = JobOptions(ranks=1, steps=3, layers=1, seed=seed, step_jitter=0.3, step_seed=seed)
        simulate(options, tmp_path / name)
    gate = ("check", rank0(tmp_path / "test"), "--baseline", rank0(tmp_path / "control"))
    result = ran(*gate, "--markdown", tmp_path / "gate.md", "--junit", tmp_path / "gate.xml")
    assert result.return_value == 4
    assert result.stdout.startswith("CANNOT TELL wall_ns: ")
    assert re.search(r"; cannot tell 5 %: noise ± \d+ %; record \d+ more steps on each side\n", result.stdout)
    assert "cannot tell for 1 of 2 figures" in (tmp_path / "gate.md").read_text(encoding="utf-8")
    assert 'failures="0"' in (tmp_path / "gate.xml").read_text(encoding="utf-8")
    for asked, code in (("pass", 0), ("fail", 1), ("tell", 4)):
        assert ran(*gate, "--uncertain", asked).return_value == code
    assert ran(*gate, "--quiet").stdout.startswith("CANNOT TELL wall_ns: ")
    assert ran(*gate, "--max-regress", "9000%").return_value == 0


def test_check_does_not_hold_a_step_against_a_recording(tmp_path: Path) -> None:
    step_ = step(1, 0, 40)
    work = [launch(ts=2, correlation=1), kernel(ts=10, dur=30, correlation=1)]
    write_trace(tmp_path / "steps.json", step_, *work)
    write_trace(tmp_path / "whole.json", *work)
    for test, control in (("steps", "whole"), ("whole", "steps")):
        result = ran("check", tmp_path / f"{test}.json", "--baseline", tmp_path / f"{control}.json")
        assert result.return_value == 4
        assert "CANNOT TELL wall_ns: " in result.stdout
        assert "whole.json has no steps: its whole recording cannot be compared with a step" in result.stderr
    assert ran("check", tmp_path / "whole.json", "--baseline", tmp_path / "whole.json").return_value == 0


def test_check_does_not_hold_a_device_against_a_host(tmp_path: Path) -> None:
    """Also where a file is cut off, which may have lost its GPU work: no step is known to be whole then."""
    path = simulate(JobOptions(ranks=1, steps=3, layers=1), tmp_path)[0][0]
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    document = json.loads(text)
    document["traceEvents"] = [event for event in document["traceEvents"] if event.get("cat") not in GPU]
    host = tmp_path / "host.json"
    host.write_text(json.dumps(document))
    result = ran("check", host, "--baseline", path)
    assert result.return_value == 4
    assert "only one side has GPU work" in result.stdout
    assert ran("check", path, host).exception.args == (f"one run is judged: augment check --baseline {path} {host}",)
    assert "host.json has no GPU work: its steps are those of the host" in result.stderr
    host.write_text(json.dumps(document)[:-1] + ' "cut')
    error = ran("check", host, "--baseline", path).exception
    assert isinstance(error, InputError)
    assert "host.json: is cut off, and no step is known to be whole in it" in str(error)


def test_check_leaves_out_an_outlying_first_step(tmp_path: Path) -> None:
    options = JobOptions(ranks=1, steps=5, layers=1, seed=1, warmup=4.0)
    simulate(options, tmp_path / "control")
    simulate(replace(options, seed=2, warmup=3.0, stretch=1.08), tmp_path / "test")
    gate = ("check", rank0(tmp_path / "test"), "--baseline", rank0(tmp_path / "control"))
    result = ran(*gate, "--markdown", tmp_path / "gate.md")
    assert result.return_value == 1
    assert "the first step is an outlier and left out on both sides: in the control it takes" in result.stderr
    assert "⚠️ the first step is an outlier" in (tmp_path / "gate.md").read_text(encoding="utf-8")
    diff = ran("diff", rank0(tmp_path / "control"), rank0(tmp_path / "test"), "-o", tmp_path)
    assert "The first step is an outlier and left out on both sides: in the control it takes" in diff.stdout


def test_check_gates_parts_on_request(jobs: Path) -> None:
    gate = ("check", rank0(jobs / "test"), "--baseline", rank0(jobs / "control"))
    for more in (("--parts",), ("--metric", "compute_ns"), ("--metric", "compute_ns=3%")):
        assert "\nFAIL    compute_ns: " in ran(*gate, *more).stdout
    explained = ran(*gate)
    assert (
        "\nINFO    what else changed, on average of the steps; not gated (--metric NAME gates it):\n"
        in explained.stdout
    )
    assert re.search(r"\nINFO      compute_ns +[\d.]+ ms → +[\d.]+ ms +\+[\d.]+ [mµ]s\n", explained.stdout)
    table = [line for line in explained.stdout.splitlines() if line.startswith("INFO      ")]
    assert len({line.index("→") for line in table}) == 1


def test_the_timeline_says_the_verdict(jobs: Path, tmp_path: Path, perfetto: PerfettoEngine) -> None:
    """Over the compared steps; ``augment open`` pins the track ``Diagnosis``."""
    assert ran("diff", rank0(jobs / "control"), rank0(jobs / "test"), "-o", tmp_path).exit_code == 0
    text = " ".join(json.loads((tmp_path / "rank0.diff.metrics.json").read_text())["verdict"]["text"])
    perfetto.load(tmp_path / "rank0.diff.pftrace")
    assert perfetto.rows(
        "select slice.name from slice join track on track.id = track_id where track.name = 'Diagnosis'"
    ) == [(text,)]


def test_different_devices_are_said(jobs: Path, tmp_path: Path) -> None:
    """The same job on another type of device: its times differ for that reason alone."""
    ((other, _),) = simulate(JobOptions(ranks=1, steps=2, layers=1, gpu="A100"), tmp_path / "other")
    note = "The devices differ (NVIDIA H100 80GB HBM3 in the control, NVIDIA A100-SXM4-80GB in the test)"
    assert note in ran("check", other, "--baseline", rank0(jobs / "control")).stderr
    assert note not in ran("check", rank0(jobs / "test"), "--baseline", rank0(jobs / "control")).stderr
    assert note in ran("diff", rank0(jobs / "control"), other, "-o", tmp_path).stdout


def test_regions_are_offered_and_taken_by_pattern(tmp_path: Path) -> None:
    """Annotations that differ in a number, where there are no steps; none without GPU work."""
    for side, factor in (("control", 10), ("test", 13)):
        events: list[dict[str, object]] = []
        for number in range(5):
            ts = 1000 * factor * number
            named = [(f"round[DECODE bs={number}]", ts, 90 * factor), ("timed region", ts + 1, 70 * factor)]
            named.append(("write log", ts + 100 * factor, 800 * factor))
            events += [{"ph": "X", "cat": "user_annotation", "name": name, "pid": 1, "tid": 1, "ts": at, "dur": dur}
                       for name, at, dur in named]  # fmt: skip
            events.append({"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": ts + 2,
                           "dur": 50 * factor, "args": {"device": 0, "stream": 7}})  # fmt: skip
        (tmp_path / f"{side}.json").write_text(json.dumps({"traceEvents": events}))
    pair = tmp_path / "control.json", tmp_path / "test.json"
    offered = "the steps: --region 'round[DECODE bs=*]' (5 times), --region 'timed region' (5 times)"
    assert offered in ran("diff", *pair, "-o", tmp_path).stdout
    assert offered in ran("check", pair[1], "--baseline", pair[0]).stderr
    for region in ("round[DECODE bs=*]", "round?DECODE*", "timed region"):
        assert "compared: 5 steps" in ran("diff", *pair, "-o", tmp_path, "--region", region).stdout
        result = ran("check", pair[1], "--baseline", pair[0], "--region", region)
        assert result.return_value == 1
        assert "+30.0 %" in result.stdout
        assert offered not in result.stderr
    missing = ran("diff", *pair, "-o", tmp_path, "--region", "round[PREFILL*")
    assert "has no annotation or operator that matches 'round[PREFILL*'" in str(missing.exception)


def test_check_by_a_configuration(jobs: Path, tmp_path: Path) -> None:
    config, control, test = tmp_path / "gate.toml", rank0(jobs / "control"), rank0(jobs / "test")
    config.write_text('max_regress = "50%"\n[metrics]\nstep_ns = "90%"\n')
    table, suite = tmp_path / "gate.md", tmp_path / "gate.xml"
    more = ("--config", config, "--markdown", table, "--junit", suite)
    assert ran("check", test, "--baseline", control, *more).return_value == 0
    assert "no regression" in table.read_text()
    assert ran("check", test, "--baseline", control, *more, "--metric", "wall_ns=1%").return_value == 1
    assert 'failures="1"' in suite.read_text()
    first = json.loads(ran("check", test, "--baseline", control, "--json").stdout.splitlines()[0])
    assert (first["figure"], first["status"], first["unit"]) == ("wall_ns", "fail", "ns")


@pytest.mark.parametrize(("arguments", "said"), [
    (("--metric", "wall_ns="), "must be NAME or NAME=LIMIT"),
    (("--metric", "step=3%"), "no figure is called 'step'"),
    (("--max-regress", "x"), "--max-regress: 'x' is not a limit"),
    (("--max-regress", "80ms"), "--max-regress: '80ms' is no share of the baseline, such as 5%; --metric NAME=LIMIT"),
    (("--metric", "wall_ns=x"), "--metric wall_ns: 'x' is not a limit"),
    (("--config", "missing.toml"), "missing.toml: no such file"),
])  # fmt: skip
def test_check_refuses(jobs: Path, arguments: tuple[str, ...], said: str) -> None:
    result = ran("check", rank0(jobs / "test"), "--baseline", rank0(jobs / "control"), *arguments)
    assert isinstance(result.exception, AugmentError)
    assert said in str(result.exception)


def test_a_sidecar_without_figures_of_steps_is_no_baseline(jobs: Path, tmp_path: Path) -> None:
    ran("run", rank0(jobs / "control"), "-o", tmp_path, "--only", "temporal_breakdown", "--quiet")
    result = ran("check", rank0(jobs / "test"), "--baseline", tmp_path / "rank0.metrics.json")
    assert isinstance(result.exception, AugmentError)
    assert "these metrics have no steps: it was written without that analysis; make them with augment run" in str(
        result.exception
    )


def test_several_runs(tmp_path: Path, augment: Augment) -> None:
    paths = [tmp_path / f"run{number}" for number in range(3)]
    for number, path in enumerate(paths):
        simulate(JobOptions(ranks=3, steps=7, layers=2, seed=number, straggler=0 if number == 2 else None), path)
    done = augment("diff", *paths)
    assert done.lines[0].startswith("Since run2 the mean step takes")
    assert "regression" in done.out
    content = json.loads(augment("diff", *paths, "--json").out)
    assert content["labels"] == ["run0", "run1", "run2"]
    assert len(content["rows"][0]["runs_ns"]) == 3
    assert not list(tmp_path.glob("*.diff*"))
    refused = augment("diff", *paths, "--overlay")
    assert (refused.code, "--overlay: of two runs only" in refused.err) == (2, True)
