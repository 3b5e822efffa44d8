"""``augment list``, and ``augment`` itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
from running import Augment, environment

import augment as package
from augment.analyses import ANALYSES, options_of
from augment.readers import READERS
from augment.writers import WRITERS


def test_everything_registered_is_listed(augment: Augment) -> None:
    shown, listed = augment("list"), json.loads(augment("list", "--json").out)
    assert shown.code == 0
    for kind, registry in (("analyses", ANALYSES), ("readers", READERS), ("writers", WRITERS)):
        assert [each["name"] for each in listed[kind]] == [each.NAME for each in registry]
        for each in listed[kind]:
            assert f"  {each['name']}" in shown.out
            assert each["about"] in shown.out
            assert len(each["about"]) > 10
    for analysis, output in zip(ANALYSES, listed["analyses"], strict=True):
        assert output["options"] == options_of(analysis)
        assert all(column["doc"] for column in output["columns"])


def test_schema_is_one(augment: Augment) -> None:
    jsonschema.Draft202012Validator.check_schema(json.loads(augment("list", "--schema").out))


def test_without_arguments_comes_help(augment: Augment) -> None:
    bare = augment()
    assert bare.code == 0
    assert bare.out == augment("--help").out
    for name in ("run", "show", "doctor", "list"):
        assert f"\n  {name} " in bare.out
        assert augment(name, "--help").code == 0
    assert bare.out.index("\n  diagnose ") < bare.out.index("\n  open ") < bare.out.index("\n  report ")
    assert "..." not in bare.out.partition("]...")[2]  # no sentence is cut
    assert "\n  merge " not in bare.out
    assert augment("merge", "--help").code == 0


def test_version(augment: Augment) -> None:
    assert package.__version__ in augment("--version").out


def test_the_shell_completes_names(tmp_path: Path) -> None:
    asked = {
        "augment show x.json temp": "temporal_breakdown",
        "augment run --only steps,crit": "steps,critical_path",
        "augment run --to per": "perfetto",
    }
    for words, wanted in asked.items():
        more = {"_AUGMENT_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
        command = [sys.executable, "-m", "augment"]
        ended = subprocess.run(
            command, env=environment(**more), capture_output=True, text=True, cwd=tmp_path, check=False
        )
        assert f"plain,{wanted}\n" in ended.stdout
