"""Writes the files of a comparison: annotated traces of the test's ranks, overlays, and the sidecar."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct

from augment.compare import sidecar
from augment.compare.core import Diff, Pair
from augment.compare.diff_timeline import drawn
from augment.compare.overlay import ARROW_COUNT, write_overlay
from augment.compare.overlay import SUFFIX as OVERLAY_SUFFIX
from augment.core.trace import Diagnostic
from augment.errors import OutputError
from augment.writers import DEFAULT, writer_named
from augment.writers.files import output_path, stem


class Drawing(Struct, frozen=True):
    """What to draw, and how.

    ``formats`` are names of writers; empty means Perfetto's own. ``label`` names the control; empty means its
    STEM. Differences below ``min_delta_ns`` are not drawn; if it is None, only those that make up 1 % of a step are.
    ``arrow_count`` limits the arrows between the traces of an ``overlay``.
    """

    formats: Sequence[str] = ()
    label: str = ""
    min_delta_ns: int | None = None
    overlay: bool = False
    arrow_count: int = ARROW_COUNT


def write_all(
    diff: Diff, folder: Path, name: str, drawing: Drawing, stage: Callable[[str], None] = lambda _: None
) -> list[Path]:
    """Write the comparison into ``folder``.

    Args:
        diff: the comparison.
        folder: the output folder; it is created if necessary.
        name: the name of the test, and so of the sidecar.
        drawing: what else to write.
        stage: called before each long operation.

    Returns:
        The files written, the sidecar last.

    Raises:
        OutputError: a file cannot be written, or two ranks have files of the same name.
    """
    _expect_names(diff)
    written: list[Path] = []
    diagnostics: list[Diagnostic] = []
    stage("writing")
    for pair in diff.pairs:
        for path, problems in _write_pair(pair, folder, drawing, diff.verdict.text):
            written.append(path)
            diagnostics += problems
    path = folder / (name + sidecar.SUFFIX)
    diagnostics = list(dict.fromkeys(diagnostics))  # several files, one trace
    sidecar.write(diff, path, diagnostics)
    return [*written, path]


def suffix_of(format_name: str) -> str:
    """The suffix of an annotated trace of the test in this format."""
    return writer_named(format_name).SUFFIX.replace(".augmented", ".diff")


def _write_pair(
    pair: Pair, folder: Path, drawing: Drawing, verdict: Sequence[str]
) -> list[tuple[Path, list[Diagnostic]]]:
    source = pair.test.trace.source
    label = drawing.label or stem(pair.control.trace.source.label)
    augmented = drawn(pair, label, drawing.min_delta_ns, verdict)
    written = []
    for name in drawing.formats or (DEFAULT,):
        path = output_path(source.name, folder, suffix_of(name))
        written.append((path, writer_named(name).write(augmented, path)))
    if drawing.overlay:
        path = output_path(source.name, folder, OVERLAY_SUFFIX)
        labels = label, stem(source.label)
        written.append((path, write_overlay(pair, augmented, labels, path, drawing.arrow_count)))
    return written


def _expect_names(diff: Diff) -> None:
    """Refuse ranks that would overwrite each other's files."""
    taken: dict[str, str] = {}
    for pair in diff.pairs:
        source = pair.test.trace.source
        other = taken.setdefault(stem(source.name), source.path)
        if other != source.path:
            advice = "compare them separately, with --test-rank"
            raise OutputError(f"{source.path}: would write the same outputs as {other}; {advice}")
