"""The recorded traces that ship with the project, and the scrubbing that they went through."""

from __future__ import annotations

import getpass
import gzip
import json
import re
import socket
import sysconfig
from pathlib import Path

import pytest

import record

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

RECORDED = sorted((EXAMPLES / "traces").rglob("*.json.gz"))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: str(path.relative_to(EXAMPLES / "traces")))
def test_recorded_file(path: Path) -> None:
    assert path.stat().st_size < 1_000_000
    text = gzip.decompress(path.read_bytes()).decode()
    assert not record.remains(text)
    assert not re.search(r"/(?:tmp|home|root|usr|Users)\b|host_?name|user_?name", text)
    categories = {event.get("cat") for event in json.loads(text)["traceEvents"]}
    assert {"cpu_op", "user_annotation"} <= categories
    if "stacks" in path.name:
        assert {"python_function", "cpu_instant_event", "fwdbwd"} <= categories


@pytest.mark.parametrize("folder", ["cpu_gloo", "cpu_fsdp", "cpu_pipeline"])
def test_recorded_ranks(folder: str) -> None:
    ranks = [
        json.loads(gzip.decompress(path.read_bytes()))["distributedInfo"]["rank"]
        for path in RECORDED
        if path.parent.name == folder
    ]
    assert ranks == [0, 1]


def test_scrubbing_leaves_nothing_of_the_machine() -> None:
    library = sysconfig.get_path("purelib")
    text = (
        f'{{"name": "{library}/torch/x.py(3): f", "a": "/opt/secret/place/model.py(1): g", "b": "aten::div/by",\n'
        f'"host_name": "{socket.gethostname()}",\n"c": "{EXAMPLES}/train.py(2): h", "d": "by {getpass.getuser()}"}}'
    )
    scrubbed = record.scrub(text)
    assert not record.remains(scrubbed)
    assert '"site-packages/torch/x.py(3): f", "a": "model.py(1): g", "b": "aten::div/by"' in scrubbed
    assert '"c": "examples/train.py(2): h", "d": "by somebody"' in scrubbed
    assert "secret" not in scrubbed
    assert "host_name" not in scrubbed
