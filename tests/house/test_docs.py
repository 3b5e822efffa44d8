"""The pages tell the truth: links lead somewhere, and snippets run; ``make check`` compares what is generated."""

from __future__ import annotations

import ast
import gzip
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from test_registries import CHECKS

import augment.analyses
import augment.diagnosis.ranking
import augment.readers
from augment.analyses import ANALYSES, launch_outliers
from augment.core.findings import Skipped
from augment.diagnosis.rules import RULES
from augment.errors import MalformedTrace
from augment.facts.critical import longest_path
from augment.pipeline.request import option_values
from augment.readers import READERS, read
from augment.writers import WRITERS, metrics
from augment.writers.metrics import schema
from simulator import JobOptions, simulate
from tables import annotation, call, launched_kernel, trace_of

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "examples/README.md")),
    *(ROOT / "docs").glob("*.md"),
]
CODE = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def by_path(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.fixture(scope="module")
def generate() -> Iterator[ModuleType]:
    before = list(sys.path)
    yield module_from("docs_generate", ROOT / "docs" / "generate.py")
    sys.path[:] = before


def module_from(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with the traces that the snippets name."""
    ((path, _),) = simulate(JobOptions(ranks=1, steps=1, layers=1), tmp_path / "traces")
    shutil.copy(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", [*PAGES, ROOT / "tests" / "house" / "sentences.txt"], ids=by_path)
def test_no_sentence_begins_with_of(page: Path) -> None:
    """``Of several devices, the busiest is shown``: what a sentence is about comes first in English."""
    blocks = "" if page.name == "cli.md" else "```.*?```|"  # its blocks are the texts of --help
    text = re.sub(rf"{blocks}`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    early = re.findall(r"(?:^\s*|[.:;|!?] |^- |\*\* )Of [^.]{1,60}", text, re.MULTILINE)
    assert not early, f"begin these with their subject; a generated page has them from a docstring: {early}"


def test_check_names_the_file_that_differs(
    generate: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    page = docs / "page.md"
    page.write_text("before\n<!-- generated dialects -->\nold\n<!-- end dialects -->\nafter\n")
    monkeypatch.setattr(generate, "DOCS", docs)
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    assert generate.main(["--check"]) == 1
    output = capsys.readouterr().out
    assert "docs/page.md: not up to date" in output
    assert "docs/metrics.schema.json: not up to date" in output
    assert "old" in page.read_text()
    assert generate.main([]) == 0
    assert "old" not in page.read_text()
    assert page.read_text().startswith("before\n<!-- generated dialects -->\n\n| category in the file |")
    assert page.read_text().endswith("<!-- end dialects -->\nafter\n")
    assert generate.main(["--check"]) == 0


def test_every_member_of_the_sidecar_is_documented() -> None:
    page = (ROOT / "docs" / "sidecar.md").read_text()
    known = schema({})["properties"]
    missing = [name for name in known if f"`{name}" not in page]
    missing += [name for name in known["source"]["properties"] if f"`source.{name}`" not in page]
    assert not missing


def test_every_diagnostic_is_documented() -> None:
    page = (ROOT / "docs" / "sidecar.md").read_text()
    codes = {code for path in (ROOT / "augment").rglob("*.py") for code in diagnostics_in(path)}
    assert len(codes) > 10
    assert not [code for code in sorted(codes) if f"`{code}`" not in page]


def diagnostics_in(path: Path) -> Iterator[str]:
    """The codes of the diagnostics that a module makes."""
    text = path.read_text()
    for node in ast.walk(ast.parse(text)) if "Diagnostic(" in text else ():
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Diagnostic" and node.args:
            if isinstance(node.args[0], ast.Constant):
                yield str(node.args[0].value)


@pytest.mark.parametrize("page", PAGES, ids=by_path)
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        path, _, anchor = target.partition("#")
        if "://" in target:
            continue
        linked = (page.parent / path).resolve() if path else page
        if not linked.exists() or (anchor and anchor not in anchors(linked)):
            broken.append(target)
    assert not broken


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_files_that_are_named_are_there(page: str) -> None:
    named = set(re.findall(r"`((?:[a-z_.-]+/)+[\w.-]*|[a-z_]+\.py)`", (ROOT / page).read_text()))
    folders = (ROOT, ROOT / "augment", ROOT / "server")
    inside = {path.name for folder in folders[1:] for path in folder.rglob("*.py")}
    named -= {"changelog.d/NAME.KIND.md", "dist/"} | inside
    assert not [path for path in sorted(named) if not any((folder / path).exists() for folder in folders)]


def anchors(page: Path) -> set[str]:
    """What GitHub makes of the headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md", "docs/sidecar.md", "docs/python.md"])
def test_snippets_run(page: str, traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    snippets = [code for code in CODE.findall((ROOT / page).read_text()) if "torch" not in code]
    assert snippets
    augment.write(augment.augment(augment.read("rank0.pt.trace.json.gz")))
    names = {"open": open_text}
    for code in snippets:
        exec(compile(code, page, "exec"), names)
    assert capsys.readouterr().out
    if page in ("README.md", "docs/quickstart.md"):
        expected = {"rank0.augmented.pftrace", "rank0.metrics.json"}
        assert {path.name for path in (traces / "augmented").iterdir()} == expected


def open_text(path: str) -> Any:
    """``open`` for snippets, which leave closing to Python; warnings are errors here."""
    import io

    return io.StringIO(Path(path).read_text())


def test_the_example_of_an_analysis_runs(traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (traces / "step_time.py").write_text(example_of("NEEDS = "))
    example: Any = module_from("step_time", traces / "step_time.py")
    for check in CHECKS:
        check(example)
    monkeypatch.setattr(augment.analyses, "ANALYSES", (*ANALYSES, example))
    outcome = augment.augment(read("rank0.pt.trace.json.gz"), only=["step_time"])
    sidecar = json.loads(metrics.encode(metrics.document(outcome)))
    ((step,), status) = (sidecar["analyses"]["step_time"][name] for name in ("rows", "status"))
    assert (status, step["rank"], step["step"]) == ("ok", 0, "ProfilerStep#0")
    assert step["duration_ns"] > 0
    longer = augment.augment(outcome.trace, only=["step_time"], options=option_values(["step_time.shortest_ns=1e12"]))
    assert isinstance(longer.outcomes["step_time"], Skipped)


def example_of(what: str) -> str:
    """The module in CONTRIBUTING that has a constant of this name, or a function."""
    code, *_ = (each for each in CODE.findall((ROOT / "CONTRIBUTING.md").read_text()) if f"\n{what}" in each)
    return str(code)


def test_the_example_of_a_rule_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "timing_calls.py").write_text(example_of('NAME = "timing_calls"'))
    example: Any = module_from("timing_calls", tmp_path / "timing_calls.py")
    monkeypatch.setattr(augment.diagnosis.ranking, "RULES", (*RULES, example))
    rows = [
        annotation("ProfilerStep#0", 0, 100_000),
        call("cudaEventElapsedTime", 10_000, 60_000),
        *launched_kernel("gemm", (62_000, 70_000), (75_000, 95_000), correlation=1),
    ]
    outcome = augment.augment(trace_of(*rows), only=["diagnosis"]).outcomes["diagnosis"]
    (row,) = (row for row in outcome.rows if row.rule == "timing_calls")
    assert (row.status, row.severity, row.saved_ns, row.dur_ns) == ("found", "high", 50_000, 50_000)
    assert row.title.startswith(
        "Times are read from the GPU in 1 call per step. Avoiding that would save 50 µs per step"
    )
    well = augment.augment(trace_of(rows[0], *rows[2:]), only=["diagnosis"]).outcomes["diagnosis"]
    assert [row.status for row in well.rows if row.rule == "timing_calls"] == ["not_applicable"]


def test_the_example_of_a_reader_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "csv_events.py").write_text(example_of("HEADER = "))
    example: Any = module_from("csv_events", tmp_path / "csv_events.py")
    monkeypatch.setattr(augment.readers, "READERS", (*READERS, example))
    lines = ["cpu_op,aten::mm,1000,500,1,1,,first", "cuda_runtime,cudaLaunchKernel,1100,50,1,1,7,"]
    lines += ["kernel,gemm,2500,100,0,7,8,", "kernel,gemm,2000,300,0,7,7,tile 128", "kernel,gemm,soon,100,0,7,9,"]
    path = tmp_path / "rank3.csv.gz"
    path.write_bytes(gzip.compress(example.HEADER + "\n".join(lines).encode()))
    trace = read(str(path))
    assert (trace.rank, trace.source.format, trace.events.ts.tolist()) == (3, "csv", [1000, 1100, 2000, 2500])
    assert trace.args_of(np.array([0, 2])) == [{"note": "first"}, {"note": "tile 128"}]
    assert [(diagnostic.code, diagnostic.count) for diagnostic in trace.diagnostics] == [("event_without_time", 1)]
    augmented = augment.augment(trace)
    (row,) = augmented.outcomes["temporal_breakdown"].rows
    assert (row.device, row.busy_ns, row.idle_ns) == (0, 400, 200)
    (native, _) = augment.write(augmented, formats=["perfetto"])
    assert read(str(native)).events.ts.tolist() == [1000, 1100, 2000, 2500]

    path.write_bytes(gzip.compress(example.HEADER + b"kernel,gemm"))
    with pytest.raises(MalformedTrace, match="2 fields"):
        read(str(path))
    assert not any(reader.recognizes(example.HEADER) for reader in READERS)


def test_kinds_that_tables_name_are_in_the_glossary() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text("utf-8")
    assert [kind for kind in (*longest_path.KINDS, *launch_outliers.KINDS) if f"`{kind}`" not in text] == []


def test_the_demo_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    demo = module_from("demo", ROOT / "examples" / "demo.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "augment_command", lambda: [sys.executable, "-m", "augment"])
    assert demo.main() == 0
    output = capfd.readouterr().out
    assert "Temporal breakdown" in output
    (shown,) = re.findall(r'"Open trace file": (.+)', output)
    assert Path(shown).is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["demo-output"]
    report = ["report", "demo-output/augmented", "--markdown", "-o", "short.md"]
    subprocess.run([sys.executable, "-m", "augment", *report], check=True)
    short = (tmp_path / "short.md").read_text()
    assert (ROOT / "docs" / "demo.md").read_text().endswith(short), (
        "docs/demo.md ends with what `augment report demo-output/augmented --markdown` prints after `make demo`: is "
        "the change meant? Rows that fewer than 2 ranks have are of a table whose keys (columns without a unit) differ"
    )


def test_the_readme_names_what_is_there() -> None:
    readme = (ROOT / "README.md").read_text()
    assert WRITERS[0].SUFFIX in readme
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", readme + (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
