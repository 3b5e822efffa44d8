"""The limits, and what follows from the machine."""

from __future__ import annotations

import dataclasses

import pytest

from augment.readers import limits as readers
from augment_server.base import limits
from augment_server.base.errors import REASONS, Refusal
from augment_server.base.limits import GIB, Limits


def test_every_limit_says_what_it_is() -> None:
    for limit in dataclasses.fields(Limits):
        assert limit.metadata["doc"].endswith(".")
        assert limit.metadata["unit"] in ("bytes", "s", "count", "ratio")
        assert limit.name.endswith("_bytes") == (limit.metadata["unit"] == "bytes")
        assert limit.name.endswith("_s") == (limit.metadata["unit"] == "s")


@pytest.mark.parametrize(
    ("processors", "memory", "given", "jobs"),
    [
        (8, 64 * GIB, {}, 8),
        (64, 16 * GIB, {}, 7),
        (1, GIB, {}, 1),
        (8, 64 * GIB, {"max_job_memory_bytes": 16 * GIB}, 3),
        (8, 64 * GIB, {"max_running_jobs": 20}, 20),
    ],
)
def test_jobs_at_once(
    monkeypatch: pytest.MonkeyPatch, processors: int, memory: int, given: dict[str, int], jobs: int
) -> None:
    monkeypatch.setattr(limits, "processors", lambda: processors)
    monkeypatch.setattr(limits, "memory_bytes", lambda: memory)
    assert Limits(**given).running_jobs() == jobs
    assert Limits().job_memory_bytes() == memory * 3 // 4


def test_nesting_is_the_readers_own() -> None:
    """Otherwise the service would make other files than the command."""
    assert (limits.NESTING, limits.LEAST_NESTING) == (readers.NESTING, readers.LEAST_NESTING)
    assert Limits().max_nesting == readers.Limits().nesting


def test_every_reason_has_a_code() -> None:
    for reason in REASONS:
        status = Refusal(reason, "what to do", {"a": "b"}, retry_s=1.5).status()
        assert status.code == REASONS[reason][0].value[0]
        names = [detail.TypeName().removeprefix("google.rpc.") for detail in status.details]
        assert names[:2] == ["ErrorInfo", "RetryInfo"]
        assert names[2:] in ([], ["QuotaFailure"])
