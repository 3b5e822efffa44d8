"""A zip of the untouched source and the annotations, which Perfetto opens as one timeline.

Not a byte of the source is read as a trace or compressed anew: the quickest way, and the source can be taken out again.
The annotations are in Perfetto's native format. What they cannot do here is to link the source's slices by flows, or
to be more exact than Perfetto reads a Chrome file's times. Nothing else may be in the zip: Perfetto refuses one with a
file that is no trace.
"""

from __future__ import annotations

import os
import shutil
import zipfile
from pathlib import Path

from augment.errors import InputError, OutputError
from augment.findings import AugmentedTrace
from augment.trace import Diagnostic
from augment.writers import perfetto
from augment.writers.files import replacing

NAME = "bundle"
SUFFIX = ".augmented.zip"
ANNOTATIONS = "annotations.pftrace"
_MOST_BYTES = zipfile.ZIP64_LIMIT  #: of a member; larger ones need a form of zip that Perfetto does not read


def write(augmented: AugmentedTrace, path: Path) -> list[Diagnostic]:
    """Write the bundle to ``path``; equal traces give equal files.

    Raises:
        InputError: the source cannot be read again.
        OutputError: ``path`` cannot be written, or the source is too large for a zip that Perfetto reads.
    """
    source = augmented.trace.source
    if os.path.exists(source.path) and os.path.getsize(source.path) > _MOST_BYTES:
        raise OutputError(f"{path}: Perfetto reads no zip with more than 2 GiB; compress {source.name} first")
    with replacing(path, source.path) as file, zipfile.ZipFile(file, "w") as archive:
        _copy(archive, source.path, source.name)
        member = zipfile.ZipInfo(ANNOTATIONS)  # whose date is 1980, always
        member.compress_type = zipfile.ZIP_DEFLATED
        member._compresslevel = 1  # type: ignore[attr-defined] # the only way before Python 3.13
        with archive.open(member, "w") as out:
            arrows = perfetto.write_annotations(augmented, out)
    message = "added flows link slices of the source, which a bundle cannot: not drawn"
    return [Diagnostic("bundle_flow_left_out", arrows, message)] if arrows else []


def _copy(archive: zipfile.ZipFile, path: str, name: str) -> None:
    """The source as it is, under its own name."""
    try:
        with open(path, "rb") as source:
            member = zipfile.ZipInfo(name)
            member.file_size = source.seek(0, 2)
            source.seek(0)
            with archive.open(member, "w") as out:
                shutil.copyfileobj(source, out, 1 << 20)
    except FileNotFoundError as error:
        raise InputError(path, "is no longer there") from error
