"""Parallel dimensions of a job: which process groups are data, tensor, pipeline or expert parallel; what each costs.

:mod:`group_roles` judges groups by what they do, and :mod:`dimensions` decides. The other modules sum figures up
by dimension.
"""

from __future__ import annotations

from augment.job.parallel.dimensions import CONTRADICTED, Dimensions, nodes
from augment.job.parallel.group_roles import chains
