"""Who holds the job up, or hangs, and why."""

from __future__ import annotations

# fmt: off
from augment.job.verdict.excess import Excess
from augment.job.verdict.hangs import report_on_dumps
from augment.job.verdict.job_verdict import Judgement
from augment.job.verdict.late_ranks import lead_parts, tally
from augment.job.verdict.verdict_text import MOST_PEERS, Row, WhatIfRow, may_be_loading, unrelated
# fmt: on
