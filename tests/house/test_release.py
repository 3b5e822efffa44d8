"""Fragments of ``changelog.d/`` become the section of a version."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from building import release

ROOT = Path(__file__).parents[2]
OLD = "# Changelog\n\nHead.\n\n## Unreleased\n\n### Added\n\n- An old entry.\n\n### Fixed\n\n- A repair.\n\n"
OLD += "## 0.1.0\n\n### Added\n\n- All.\n"


def fragment(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_fragments_join_what_is_unreleased(tmp_path: Path) -> None:
    fragments = [fragment(tmp_path, "columns.breaking.md", "- A column is\n  renamed.\n- Another.\n")]
    fragments += [fragment(tmp_path, "flag.added.md", "A flag " + "with many words " * 10)]
    made = release.released(OLD, fragments, "0.2.0", date(2026, 11, 23))
    assert made.startswith(
        "# Changelog\n\nHead.\n\n## 0.2.0, 2026-11-23\n\n### Breaking\n\n- A column is renamed.\n- Another.\n\n"
    )
    assert "- An old entry.\n- A flag with many words" in made
    assert made.endswith("### Fixed\n\n- A repair.\n\n## 0.1.0\n\n### Added\n\n- All.\n")
    assert "Unreleased" not in made
    assert max(map(len, made.splitlines())) <= release.WIDTH
    later = release.released(made, [], "0.2.1", date(2026, 11, 24))
    assert later.count("## 0.2.0, 2026-11-23\n") == 1
    with pytest.raises(ValueError, match="already"):
        release.released(made, [], "0.2.0", date(2026, 11, 24))


def test_a_fragment_has_a_kind(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"NAME\.KIND\.md"):
        release.released(OLD, [fragment(tmp_path, "flag.new.md", "- A flag.")], "0.2.0", date(2026, 11, 23))


def test_every_fragment_of_the_tree_has_a_kind_and_text() -> None:
    for path in (ROOT / "changelog.d").glob("*.md"):
        assert release.kind_of(path)
        assert release.entries_of(path.read_text("utf-8")), path.name


def test_the_version_is_set_wherever_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*release._PLACES, "CHANGELOG.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text("utf-8"), "utf-8")
    (tmp_path / "changelog.d").mkdir()
    fragment(tmp_path / "changelog.d", "flag.added.md", "- A flag.")
    monkeypatch.setattr(release, "ROOT", tmp_path)
    assert release.main(["9.8.7"]) == 0
    assert release.main(["next"]) == 2
    texts = {name: (tmp_path / name).read_text("utf-8") for name in (*release._PLACES, "CHANGELOG.md")}
    assert [texts[name].count("9.8.7") for name in release._PLACES] == [1, 2, 6]
    assert "- A flag." in texts["CHANGELOG.md"]
    assert not list((tmp_path / "changelog.d").glob("*.md"))
