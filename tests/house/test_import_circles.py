"""No module needs itself: imports run in one direction, those of functions and for types alone too."""

from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

grimp = pytest.importorskip("grimp", reason="comes with import-linter")


@pytest.mark.parametrize("package", ["augment", "augment_server", "building"])
def test_the_package_has_no_circle_of_imports(package: str) -> None:
    graph = grimp.build_graph(package, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(f"{package}: " + " <- ".join(error.args[1]))


def test_imports_for_types_alone_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "circular"
    home.mkdir()
    home.joinpath("__init__.py").touch()
    home.joinpath("one.py").write_text("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import circular.two\n")
    home.joinpath("two.py").write_text("def f():\n    import circular.one\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(pytest.fail.Exception, match=r"circular\.(one <- circular\.two|two <- circular\.one)"):
        test_the_package_has_no_circle_of_imports("circular")
