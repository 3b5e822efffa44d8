"""A simulated training job that writes Kineto traces and their true figures.

``simulate(JobOptions(ranks=2, steps=3), directory)`` writes ``rankN.pt.trace.json.gz`` and ``rankN.truth.json``. Put
``examples/`` on the path to import it (``python examples/simulate.py`` does so by itself).
"""

from simulator.job import simulate
from simulator.options import GPUS, Gpu, JobOptions

__all__ = ["GPUS", "Gpu", "JobOptions", "simulate"]
