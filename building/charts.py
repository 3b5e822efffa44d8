"""``augment/results/report/vega.js``: the script that draws a report's charts, from the pinned wheel of vl-convert.

vl-convert carries Vega, Vega-Lite and Vega-Embed (BSD 3-Clause), and bundles them without a network or Node.
"""

from __future__ import annotations

from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[1] / "augment" / "results" / "report" / "vega.js"
_PUBLISHED = "window.vegaEmbed = vegaEmbed;"


def build() -> Path:
    """The script; made if it is not there, or of another version of Vega-Embed."""
    import vl_convert

    stamp = f"// Vega-Embed {vl_convert.get_vega_embed_version()}, Vega {vl_convert.get_vega_version()}\n"
    if not SCRIPT.exists() or not SCRIPT.read_text(encoding="utf-8").startswith(stamp):
        draft = SCRIPT.with_suffix(".draft")
        draft.write_text(stamp + vl_convert.javascript_bundle(_PUBLISHED), encoding="utf-8")
        draft.replace(SCRIPT)
    return SCRIPT


if __name__ == "__main__":
    build()
