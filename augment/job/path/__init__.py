"""The critical path through the ranks, their progress from wait to wait, and its replay with something changed."""

from __future__ import annotations

# fmt: off
from augment.job.path.path import Path, is_handover, path_of
from augment.job.path.progress import LAST, CommonSteps, Stretches, WorkProgress, beside_peers, progress_of, stretches
from augment.job.path.replay import Fixed, Replay, Scale, Shift, replay_of
from augment.job.path.step_parts import exposed_parts
# fmt: on
