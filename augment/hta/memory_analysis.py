"""HTA's memory timeline, read from the raw files of ``export_memory_timeline``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from augment.hta import plots
from augment.readers.attachments.recorded_files import CATEGORIES, read_memory_timeline

if TYPE_CHECKING:
    import os


class MemoryAnalysis:
    """The memory timeline at ``path``; compressed or not."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = path

    def _process_raw_events(self) -> tuple[list[int], list[list[int]]]:
        """Times in ns, ascending, and the bytes of each category from that time on."""
        columns = read_memory_timeline(self.path)
        sizes = np.stack([columns[name] for name in CATEGORIES], axis=1)
        return columns["ts"].tolist(), sizes.tolist()

    def plot_memory_timeline(self, save_graph: bool = False) -> None:
        """Draw a stacked plot; ``save_graph`` writes ``images/memory_plot.png``, for which plotly needs kaleido."""
        if not plots.installed():
            return
        import os

        import plotly.graph_objects as go

        columns = read_memory_timeline(self.path)
        figure = go.Figure()
        ms = (columns["ts"] - columns["ts"][:1]) / 1e6
        for name in CATEGORIES:
            figure.add_scatter(x=ms, y=columns[name] / 1024**3, name=name, stackgroup="memory", line_shape="hv")
        figure.update_xaxes(title="Time (ms)")
        figure.update_yaxes(title="Memory (GiB)")
        figure.update_layout(title_text="Memory timeline", title_x=0.5, width=1200, height=800)
        if save_graph:
            os.makedirs("images", exist_ok=True)
            figure.write_image("images/memory_plot.png")
        else:
            plots.show(lambda _: figure)
