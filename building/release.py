"""Cut a release: ``make release VERSION=0.2.0``.

What is in ``changelog.d/`` and under ``Unreleased`` becomes the section of that version in ``CHANGELOG.md``, and the
version is set in both distributions, which name each other with it. A fragment is a file ``changelog.d/NAME.KIND.md``;
its lines that begin with ``- `` are entries, and one without is a single entry.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Sequence
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KINDS = ("breaking", "added", "changed", "removed", "fixed", "security")
WIDTH = 140
_PLACES = {
    "augment/version.py": r'(__version__ = ")[^"]+',
    "server/pyproject.toml": r'(?m)(^version = "|"kineto-augment\[client\]==)[^"]+',
    "pyproject.toml": r"(kineto-augment-server(?:\[\w+\])?==)[^\"]+",
}


def main(arguments: Sequence[str]) -> int:
    """Write the changelog and the version; the exit code is 2 for what is no version."""
    if len(arguments) != 1 or not re.fullmatch(r"\d+\.\d+\.\d+", arguments[0]):
        sys.stderr.write("make release VERSION=MAJOR.MINOR.PATCH\n")
        return 2
    (version,) = arguments
    fragments = sorted((ROOT / "changelog.d").glob("*.md"))
    changelog = ROOT / "CHANGELOG.md"
    changelog.write_text(released(changelog.read_text("utf-8"), fragments, version, date.today()), "utf-8")
    for fragment in fragments:
        fragment.unlink()
    for name, place in _PLACES.items():
        path = ROOT / name
        path.write_text(re.sub(place, rf"\g<1>{version}", path.read_text("utf-8")), "utf-8")
    sys.stderr.write(f"{len(fragments)} fragments are in CHANGELOG.md under {version}; now `make docs`, and commit\n")
    return 0


def released(changelog: str, fragments: Sequence[Path], version: str, day: date) -> str:
    """The changelog with a section for ``version`` in the place of ``Unreleased``.

    Raises:
        ValueError: there is such a section, or a fragment's name has no kind.
    """
    if f"\n## {version}" in changelog:
        raise ValueError(f"CHANGELOG.md has a section {version} already")
    head, _, rest = changelog.partition("\n## ")
    before, older = "", f"## {rest}"
    if rest.startswith("Unreleased\n"):
        before, _, rest = rest.removeprefix("Unreleased\n").partition("\n## ")
        older = f"## {rest}"
    entries: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for part in re.split(r"(?m)^### ", before)[1:]:
        title, _, text = part.partition("\n")
        entries[title.strip().lower()].append(text.strip())
    for fragment in fragments:
        entries[kind_of(fragment)] += entries_of(fragment.read_text("utf-8"))
    sections = [f"### {kind.capitalize()}\n\n" + "\n".join(texts) + "\n" for kind, texts in entries.items() if texts]
    return f"{head}\n## {version}, {day.isoformat()}\n\n" + "\n".join(sections) + f"\n{older}"


def kind_of(fragment: Path) -> str:
    """The kind in a fragment's name; raises ValueError for one that is no kind."""
    kind = fragment.name.split(".")[-2]
    if kind not in KINDS:
        raise ValueError(f"{fragment.name}: the name of a fragment is NAME.KIND.md, KIND one of {', '.join(KINDS)}")
    return kind


def entries_of(text: str) -> list[str]:
    """The entries of a fragment, each a list item of lines up to :data:`WIDTH`."""
    entries = re.split(r"(?m)^- ", text)
    words = [" ".join(entry.split()) for entry in entries]
    fill = textwrap.TextWrapper(
        WIDTH, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False, break_long_words=False
    )
    return [fill.fill(entry) for entry in words if entry]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
