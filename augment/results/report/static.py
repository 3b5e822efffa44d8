"""Charts of a report as SVG and PNG files, for papers and slides."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from augment.errors import UsageError
from augment.results.report.document import Document
from augment.writers.files import replacing

_WIDTH = 800


def write_charts(document: Document, folder: Path) -> Iterator[Path]:
    """Write each chart of ``document`` twice; the paths.

    Raises:
        UsageError: vl-convert is not installed.
    """
    try:
        import vl_convert
    except ImportError as error:
        raise UsageError("--static needs vl-convert: pip install 'kineto-augment[charts]'") from error
    folder.mkdir(parents=True, exist_ok=True)
    for chart in (chart for section in document.sections for chart in section.charts):
        spec = dict(chart.spec)
        if "vega-lite" in spec["$schema"]:
            svg = vl_convert.vegalite_to_svg({**spec, "width": _WIDTH, "background": "white"})
        else:
            svg = vl_convert.vega_to_svg({**spec, "width": _WIDTH, "signals": [], "background": "white"})
        for path, content in ((".svg", svg.encode()), (".png", vl_convert.svg_to_png(svg, scale=2))):
            target = folder / f"{chart.name}{path}"
            with replacing(target) as file:
                file.write(content)
            yield target
