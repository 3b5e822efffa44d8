"""Names of resources, which the server chooses, and names of files, which clients choose and which are not trusted."""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path
from urllib.parse import quote

from google.protobuf.message import Message

from augment_server.base.errors import Refusal, invalid

MOST_FOLDERS = 8  #: maximum folders in the name of a job's trace
MOST_VALUES = 100_000  #: of a request, in all of its messages: beyond those of 30 jobs with 1,000 traces each
MOST_TEXT = 4096  #: characters of any text in a request; most fields take fewer
MOST_FILE_NAME_BYTES = 180  #: names of outputs are up to 40 bytes longer, and file systems allow 255
_ID = re.compile(r"[0-9a-z]{1,40}")
#: control characters, line separators, and marks that change the direction of text
NOT_IN_FILE_NAMES = r"\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
_NOT_IN_FILE_NAMES = re.compile(f"[{NOT_IN_FILE_NAMES}]")


def expect_plain(message: Message, within: str = "", most: int = MOST_VALUES) -> int:
    """Refuse texts that no field takes, wherever they stand in a request: control characters, or too long.

    Args:
        within: the path of ``message`` in the request, with a dot at its end.
        most: how many values it may have, with those of the messages in it.

    Returns:
        How many more it might have had.

    Raises:
        Refusal: it names the field.
    """
    for field, value in message.ListFields():
        path = f"{within}{field.name}"
        most -= 1 if isinstance(value, Message | str | bytes | int | float) else len(value)
        if most < 0:
            raise invalid(path, "the request has too many values; send several requests")
        if field.message_type and field.message_type.GetOptions().map_entry:
            for key, item in value.items():
                _expect_plain(key, path)
                if isinstance(item, str):
                    _expect_plain(item, f"{path}.{key}")
        elif field.message_type:
            if isinstance(value, Message):
                most = expect_plain(value, f"{path}.", most)
            else:
                for at, item in enumerate(value):
                    most = expect_plain(item, f"{path}[{at}].", most)
        elif isinstance(value, str):
            _expect_plain(value, path)
        elif field.type == field.TYPE_STRING:
            for at, text in enumerate(value):
                _expect_plain(text, f"{path}[{at}]")
    return most


def _expect_plain(text: str, path: str) -> None:
    if len(text) > MOST_TEXT:
        raise invalid(path, f"at most {MOST_TEXT} characters")
    if _NOT_IN_FILE_NAMES.search(text):
        raise invalid(path, "has control characters or marks of direction; leave them out")


def new_id() -> str:
    """An id that nobody can guess."""
    return secrets.token_hex(10)


def id_of(name: str, kind: str, field: str = "name") -> str:
    """``x`` of ``jobs/x`` or ``projects/P/jobs/x``, where ``kind`` is ``jobs``; ``field`` is the field with the name.

    Raises:
        Refusal: ``name`` is no such name.
    """
    head, _, id_ = re.sub(r"^projects/[^/]*/", "", name).partition("/")
    if head != kind or not _ID.fullmatch(id_):
        raise Refusal("INVALID_REQUEST", f"{name[:80]!r} is not a name of the form {kind}/ID", field_path=field)
    return id_


def artifact_of(name: str) -> tuple[str, str]:
    """Job id and file name of ``jobs/x/artifacts/FILE``.

    Raises:
        Refusal: ``name`` is no such name.
    """
    job, separator, file_name = name.partition("/artifacts/")
    if not separator or not file_name:
        what = f"{name[:80]!r} is not a name of the form jobs/ID/artifacts/FILE"
        raise Refusal("INVALID_REQUEST", what, field_path="name")
    return id_of(job, "jobs"), file_name


def safe_file_name(given: str, field: str = "file_name") -> str:
    """The last part of ``given``, the value of ``field``, after which outputs are named.

    Raises:
        Refusal: the name is empty, or not a valid file name.
    """
    base = re.split(r"[/\\]", given)[-1]
    if base in ("", ".", ".."):
        raise invalid(field, "give the trace's file name, such as rank0.pt.trace.json.gz")
    if _NOT_IN_FILE_NAMES.search(base):
        raise invalid(field, "has control characters or marks of direction; rename the file")
    if len(base.encode()) > MOST_FILE_NAME_BYTES:
        raise invalid(field, f"longer than {MOST_FILE_NAME_BYTES} bytes; rename the file")
    return base


def safe_path(given: str, field: str = "file_name") -> str:
    """``given``, the value of ``field``: the name of a job's trace with its folders, such as ``rank0/trace.json``.

    Raises:
        Refusal: the name is empty, or leads outside.
    """
    parts = given.split("/")
    if len(parts) > MOST_FOLDERS:
        raise invalid(field, f"at most {MOST_FOLDERS} folders")
    if any(safe_file_name(part, field) != part for part in parts):
        raise invalid(field, "must be a relative path, such as rank0/trace.json.gz")
    return given


def attachment(file_name: str) -> str:
    """The ``Content-Disposition`` that saves a file under this name (RFC 6266)."""
    file_name = file_name.rpartition("/")[2]
    plain = re.sub(r'[^ -~]|["\\\\]', "_", file_name)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(file_name, safe='')}"


def sha256_of(text: str) -> str:
    """``text``, in lower case.

    Raises:
        Refusal: it is neither empty nor a SHA-256.
    """
    if text and not re.fullmatch(r"[0-9a-fA-F]{64}", text):
        raise invalid("sha256", "must be 64 hexadecimal digits")
    return text.lower()


def file_version(path: Path) -> object:
    """A value that changes with the file, or with the target of a link."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino, status.st_dev
