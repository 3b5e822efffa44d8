"""Metrics are read from files that a stranger's trace, or its worker, has written: of any size, and damaged."""

from __future__ import annotations

import contextlib
import json
import os
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from augment.v1 import service_pb2 as calls
from augment.writers.metrics import encode
from augment_server.base.errors import Refusal
from augment_server.base.names import MOST_TEXT
from augment_server.jobs import catalog
from augment_server.jobs.metrics_query import query


def sidecar(path: Path, **rows: Sequence[Any]) -> catalog.MetricsFile:
    analyses = {name: {"status": "ok", "rows": each} for name, each in rows.items()}
    path.write_bytes(encode({"source": {}, "analyses": analyses, "diagnostics": []}))
    return catalog.MetricsFile(path.open("rb"))


def read(path: Path) -> list[Any]:
    with contextlib.closing(catalog.MetricsFile(path.open("rb"))) as file:
        return list(file.messages("diagnosis"))


def test_metrics_that_a_worker_truncates_while_they_are_read(tmp_path: Path) -> None:
    """A mapped file that became shorter would end the server with SIGBUS."""
    path = tmp_path / "rank0.metrics.json"
    with contextlib.closing(sidecar(path, a=[{"x": 1}] * 10_000)) as file:
        os.truncate(path, 0)
        with pytest.raises(Refusal, match="the metrics are damaged"):
            list(file.messages("a"))


def test_metrics_of_any_size_take_little_memory(tmp_path: Path) -> None:
    """Of a row for each of a million names, a few thousand are in memory at a time."""
    rows = [{"name": f"kernel_{number}" * 20, "count": number} for number in range(50_000)]
    sidecar(path := tmp_path / "rank0.metrics.json", a=rows, b=[], c=rows[:2]).close()
    assert path.stat().st_size > 10 << 20
    count, texts = 0, [json.dumps(row, separators=(",", ":")) for row in rows]
    tracemalloc.start()
    try:
        with contextlib.closing(catalog.MetricsFile(path.open("rb"))) as file:
            assert list(file.names) == ["a", "b", "c"]
            for message in file.messages("a"):
                assert list(message.json_rows) == texts[count : count + len(message.json_rows)]
                count += len(message.json_rows)
            assert [list(message.json_rows) for name in "bc" for message in file.messages(name)] == [[], texts[:2]]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == len(rows)
    assert peak < 6 << 20


@pytest.mark.parametrize(("limit", "value"), [("BYTES", 5000), ("ROW_BYTES", 500), ("HEAD_BYTES", 100)])
def test_metrics_that_are_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int) -> None:
    sidecar(path := tmp_path / "rank0.metrics.json", a=["x" * 1000] * 20).close()
    monkeypatch.setattr(catalog, f"MOST_{limit}" if "_" in limit else "MOST_METRICS_BYTES", value)
    with pytest.raises(Refusal, match="read the artifact"):
        catalog.MetricsFile(path.open("rb"))


@pytest.mark.parametrize("member", ["told_by_job", "rows"])
def test_a_member_of_millions_of_values_is_not_decoded(tmp_path: Path, member: str) -> None:
    """5 MB of them took 110 MB."""
    values = '{"rows": [' + "[],\n0,\n{},\n" * 100_000 + "0]}"
    ours = {"told_by_job": '"told_by_job": null', "rows": '"rows": []'}
    text = '{"analyses": {"diagnosis": {"status": "ok", "rows": []}}, "told_by_job": null}'
    value = values if member == "told_by_job" else values.removeprefix('{"rows": ').removesuffix("}")
    (tmp_path / "a.metrics.json").write_text(text.replace(ours[member], f'"{member}": {value}'))
    tracemalloc.start()
    try:
        with pytest.raises(Refusal, match="read the artifact"):
            read(tmp_path / "a.metrics.json")
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()


def test_a_query_looks_through_no_millions_of_values(tmp_path: Path) -> None:
    row: dict[str, Any] = {"x": [[]] * 10_000}
    request = calls.QueryMetricsRequest(analysis="a")
    with contextlib.closing(sidecar(tmp_path / "a.metrics.json", a=[row] * 2)) as file:
        assert query(file, b"", "jobs/1", request).total_count == 2
    file = sidecar(tmp_path / "a.metrics.json", a=[row] * 200)
    with contextlib.closing(file), pytest.raises(Refusal, match="too many values"):
        query(file, b"", "jobs/1", request)


@pytest.mark.parametrize("text", ['{"rows": 1}', '{"rows": [{}]}', '{"verdict": 1}', "5", '{"rows": [{"rule": []}]}'])
def test_what_a_job_tells_is_no_verdict(tmp_path: Path, text: str) -> None:
    row = '{"rule": "a", "status": "found"}'
    path = tmp_path / "a.metrics.json"
    path.write_text(f'{{"analyses": {{"diagnosis": {{"status": "ok", "rows": [{row}]}}}}, "told_by_job": {text}}}')
    with pytest.raises(Refusal, match="damaged"):
        read(path)


@pytest.mark.parametrize("text", ["{}", "no JSON", '{"analyses": {"a": {"status": "ok"}}}', '{"analyses": {"\ud800'])
def test_metrics_that_are_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rank0.metrics.json"
    path.write_text(text, errors="surrogatepass")
    with pytest.raises(Refusal, match="damaged"):
        catalog.MetricsFile(path.open("rb"))


def of_row(path: Path, row: str, status: str = "ok") -> catalog.MetricsFile:
    """A sidecar with a row as a hostile worker may write it."""
    text = f'{{\n  "analyses": {{\n    "a": {{"status": "{status}", "rows": [\n      {row}\n    ]}}\n  }}\n}}\n'
    path.write_text(text, errors="surrogateescape")
    return catalog.MetricsFile(path.open("rb"))


@pytest.mark.parametrize("row", ["[1]", "7", "null", '"x"', '{"x": "\udcff"}', f'{{"x": {"[" * 5000}{"]" * 5000}}}',
                                 f'{{"x": 1{"0" * 5000}}}', '{"x": 1e999}'])  # fmt: skip
def test_rows_that_are_none_are_damage(tmp_path: Path, row: str) -> None:
    file = of_row(tmp_path / "a.metrics.json", row)
    with contextlib.closing(file), pytest.raises(Refusal, match="damaged"):
        query(file, b"", "jobs/1", calls.QueryMetricsRequest(analysis="a"))


def test_a_status_that_is_none_is_damage(tmp_path: Path) -> None:
    file = of_row(tmp_path / "a.metrics.json", "{}", "__class__")
    with contextlib.closing(file), pytest.raises(Refusal, match="damaged"):
        list(file.messages("a"))


@pytest.mark.parametrize("order", ["x", "x desc", "y desc, x"])
def test_pages_ordered_by_long_texts_go_on(tmp_path: Path, order: str) -> None:
    """Texts longer than a token may be."""
    texts = [letter * length for length in (9_000, 3_000, 2) for letter in "bca"]
    rows = [{"x": text, "y": at % 2} for at, text in enumerate(texts)]
    wanted = sorted(rows, key=lambda row: (-int(row["y"]) if "y" in order else 0, row["x"]), reverse=order == "x desc")
    shown, token = list[dict[str, Any]](), None
    while token != "":
        request = calls.QueryMetricsRequest(analysis="a", order_by=order, page_size=2, page_token=token or "")
        with contextlib.closing(sidecar(tmp_path / "a.metrics.json", a=rows)) as file:
            answer = query(file, b"", "jobs/1", request)
        shown += map(json.loads, answer.json_rows)
        token = answer.next_page_token
        assert len(token) <= MOST_TEXT
    assert shown == wanted


def test_integers_of_any_size_are_ordered(tmp_path: Path) -> None:
    rows = ", ".join(f'{{"x": {sign}1{"0" * zeros}}}' for sign, zeros in (("", 400), ("-", 400), ("", 5), ("", 30)))
    with contextlib.closing(of_row(tmp_path / "a.metrics.json", rows.replace("}, {", "},\n      {"))) as file:
        answer = query(file, b"", "jobs/1", calls.QueryMetricsRequest(analysis="a", order_by="x"))
        assert [json.loads(row)["x"] for row in answer.json_rows] == [-(10**400), 10**5, 10**30, 10**400]
        asked = calls.QueryMetricsRequest(analysis="a", format=calls.METRICS_FORMAT_ARROW)
        with pytest.raises(Refusal, match="METRICS_FORMAT_JSON"):  # which Arrow, if it is there, does not hold
            query(file, b"", "jobs/1", asked)
