"""Pages of reports in a real browser without a network: charts, no error, nothing that axe-core finds serious.

KINETO_AUGMENT_PICTURES=docs/pictures saves the pictures of pages that docs show there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_report import history_of, metrics, outputs, run  # noqa: F401

import demo
from augment.results.report.page import document_of, page
from augment.results.report.sections import Document
from augment.results.report.trend import document_of_history as of_history
from machine import chromium

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, headless."""
    playwright, path = chromium()
    vl_convert = pytest.importorskip("vl_convert", reason="no script of charts: pip install vl-convert-python")
    assert vl_convert
    from building.charts import build

    build()
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, headless=True, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


PICTURES = Path(os.environ["KINETO_AUGMENT_PICTURES"]).absolute() if "KINETO_AUGMENT_PICTURES" in os.environ else None
KINDS = [("trace", "light"), ("job", "dark"), ("comparison", "light"), ("trend", "light")]


@pytest.mark.parametrize(("kind", "scheme"), KINDS)
def test_page(browser: Any, outputs: Path, tmp_path: Path, kind: str, scheme: str) -> None:  # noqa: F811
    path = tmp_path / "report.html"
    path.write_text(page(_document(kind, outputs, tmp_path)), encoding="utf-8")
    assert path.stat().st_size < 2_000_000
    context = browser.new_context(offline=True, color_scheme=scheme, viewport={"width": 1200, "height": 900})
    seen = context.new_page()
    said: list[str] = []
    seen.on("console", lambda message: said.append(message.text))
    seen.on("pageerror", lambda error: said.append(str(error)))
    seen.goto(path.as_uri())
    seen.wait_for_selector("body[data-charts=drawn]", timeout=90_000)
    charts, drawn = (seen.locator(selector).count() for selector in (".chart", ".chart svg.marks"))
    assert (drawn, said) == (charts, [])
    assert charts > 0
    if kind == "trace":
        _sorts_and_filters(seen)
    assert _serious(seen) == []
    if kind == "comparison":
        _fits_a_phone(seen)
    if kind == "trend":
        seen.screenshot(path=(PICTURES or tmp_path) / "trend.png")
    context.close()


@pytest.mark.skipif(not PICTURES, reason="pictures for docs are made on request: KINETO_AUGMENT_PICTURES")
def test_picture_of_the_demo(browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page that ``make demo`` writes, as README shows it."""
    assert PICTURES
    monkeypatch.chdir(tmp_path)
    demo.main()
    seen = browser.new_page(viewport={"width": 1100, "height": 1020})
    seen.goto((tmp_path / demo.OUTPUT / "job.report.html").as_uri())
    seen.wait_for_selector("body[data-charts=drawn]", timeout=90_000)
    seen.screenshot(path=PICTURES / "report.png")


def _document(kind: str, outputs: Path, scratch: Path) -> Document:  # noqa: F811
    if kind == "trend":
        return of_history([*history_of(30, 18), *history_of(12, 99, branch="fp8", faster_ns=9e6)], "runs")
    source = outputs / "job.metrics.json" if kind == "job" else metrics(outputs)
    if kind == "comparison":
        first, second = sorted((outputs.parent / "traces").glob("*.json.gz"))[:2]
        run("diff", first, second, "-o", scratch, "--quiet")
        (source,) = scratch.glob("*.diff.metrics.json")
    return document_of(str(source), lambda path: pytest.fail(path))


def _sorts_and_filters(seen: Any) -> None:
    table = seen.locator("#table-kernel_breakdown")
    table.locator("th button", has_text="name").first.click()
    names = table.locator("tbody tr td:first-child").all_inner_texts()
    assert names == sorted(names)
    table.locator("input").fill("nccl")
    assert 0 < table.locator("tbody tr").count() < len(names)


def _fits_a_phone(seen: Any) -> None:
    """Nothing is wider than the screen, and each chart with bars has room for them."""
    seen.set_viewport_size({"width": 390, "height": 844})
    seen.reload()
    seen.wait_for_selector("body[data-charts=drawn]", timeout=90_000)
    assert seen.evaluate("document.documentElement.scrollWidth") <= 390
    widest = seen.evaluate(
        """() => [...document.querySelectorAll('.chart svg')].map(svg => Math.max(-1, ...
        [...svg.querySelectorAll('.mark-rect path')].map(bar => bar.getBoundingClientRect().width)))"""
    )
    assert [width for width in widest if 0 <= width < 100] == []
    assert max(widest) > 200
    assert "columns to the right" in seen.locator(".tools .small").first.inner_text()


def _serious(seen: Any) -> list[str]:
    """What axe-core finds serious or critical."""
    axe = pytest.importorskip("axe_core_python.sync_playwright", reason="no axe-core: pip install axe-core-python")
    violations = axe.Axe().run(seen)["violations"]
    return [
        f"{each['id']}: {[node['html'][:200] for node in each['nodes'][:3]]}"
        for each in violations
        if each["impact"] in ("serious", "critical")
    ]
