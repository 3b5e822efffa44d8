"""``augment serve --migrate-to``: from a state directory to PostgreSQL and an object store.

The directory is only read, but for a copy of its database beside it, and at the very end for the mark that keeps a
server from using it again. Bytes are copied first; what is there already, with as many bytes, is not copied again. Then
all rows are written in one transaction. So a migration that was ended at any moment is continued by the same command.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from augment.errors import AugmentError
from augment_server.storage.catalog import back_up
from augment_server.storage.storage import CATALOG, Storage, store_owner

if TYPE_CHECKING:
    from augment_server.storage.bucket import Bucket
    from augment_server.storage.postgres import Postgres

#: in an order in which each row comes after those that it names
_TABLES = (
    "uploads", "jobs", "controls", "attachments", "parts", "wholes", "leftovers", "artifacts", "requests", "served",
    "clock", "spent",
)  # fmt: skip
_THREADS, _ROWS = 8, 500
_PIECE = "000000000000-migrated"
Tell = Callable[[str], object]


def migrate(state: Path, catalog: str, store: str, tell: Tell) -> None:
    """Move what a state directory has; no server may use it, or the target.

    Args:
        state: the directory, with a database of its own.
        catalog: the URL of a PostgreSQL database without jobs and uploads.
        store: the URL of a new store, or that which has the directory's bytes already.
        tell: called with what is being done.

    Raises:
        AugmentError: one of them is used by a server or cannot be used, or the target has data of its own.
    """
    try:
        from augment_server.storage.bucket import Bucket
        from augment_server.storage.postgres import opened
    except ImportError as error:
        raise AugmentError(
            f"--migrate-to needs {error.name}: pip install 'kineto-augment-server[postgres,store]'"
        ) from error
    if not (state / "state.db").exists():
        raise AugmentError(f"--state-dir {state}: has no state.db, so there is nothing to migrate")
    with contextlib.closing(Storage(state)) as source, contextlib.closing(opened(catalog)) as target:
        backup = source.root / "state.db.before-migration"
        if not backup.exists():  # else that of an attempt before; a later one may follow changes by people
            back_up(source.root / "state.db", backup)
        tell(f"{backup}: a copy of the database")
        name = hashlib.sha256(b"migrated" + source.secret).digest()
        done = target.row("SELECT 1 FROM secrets WHERE name = 'migrated' AND value = ?", name)
        if not done and target.row("SELECT id FROM uploads UNION ALL SELECT id FROM jobs LIMIT 1"):
            raise AugmentError("--migrate-to: the database has data of its own; choose an empty one")
        there = source.row("SELECT value FROM secrets WHERE name = 'store'")
        if there and bytes(there["value"]).decode() != store:
            raise AugmentError(f"--migrate-to: the bytes lie in {bytes(there['value']).decode()}; name that store")
        owner = store_owner(source.secret)
        with contextlib.closing(Bucket(store, source.root / "work", owner, is_new=not there)) as bucket:
            if not (done or there):
                copied, of = _copy_bytes(source, bucket)
                tell(f"{store}: {copied} of {of} objects were copied, the others were there")
        if not done:
            count = _copy_rows(source, target, store, name, is_far=bool(there))
            tell(f"the database has {count} rows")
        (source.root / CATALOG).write_text(target.id, encoding="ascii")  # from now on no server without it starts here


def _copy_bytes(source: Storage, bucket: Bucket) -> tuple[int, int]:
    """Copy all files that the store lacks: how many these are, and how many there are."""
    there = bucket.sizes()
    wanted = dict(_files(source))
    missing = [key for key, (_, size) in wanted.items() if there.get(key) != size]

    def copy(key: str) -> None:
        path, size = wanted[key]
        if isinstance(path, bytes):
            bucket.put(key, path)
            return
        with open(path, "rb") as file:
            # of an unfinished upload only what is recorded counts
            bucket.put(key, file.read(size) if key.startswith("parts/") and path.stat().st_size != size else file)

    with ThreadPoolExecutor(_THREADS) as threads:
        list(threads.map(copy, missing))
    return len(missing), len(wanted)


def _files(source: Storage) -> Iterator[tuple[str, tuple[Path | bytes, int]]]:
    """The key of each object in a store, the file or the bytes that it is made of, and its size."""
    from augment_server.storage.bucket import Manifest

    root = source.root
    for kind in ("artifacts", "ranks"):
        for folder, _, names in os.walk(root / kind):
            for path in (Path(folder, name) for name in names):
                yield path.relative_to(root).as_posix(), (path, path.stat().st_size)
    for path in (root / "blobs").iterdir():
        size, upload = path.stat().st_size, f"m{path.name[:19]}"
        piece = f"parts/{upload}/{_PIECE}"
        manifest = msgspec.json.encode(Manifest(size, [piece]))
        yield piece, (path, size)
        yield f"blobs/{path.name}/{upload}", (manifest, len(manifest))
    for upload, size in _begun(source).items():
        yield f"parts/{upload}/{_PIECE}", (root / "parts" / upload, size)


def _begun(source: Storage) -> dict[str, int]:
    """The unfinished uploads of which there are all bytes that are recorded, and how many these are."""
    sizes = {}
    for row in source.rows("SELECT id, received FROM uploads WHERE NOT complete AND received > 0"):
        with contextlib.suppress(FileNotFoundError):
            if (source.root / "parts" / row["id"]).stat().st_size >= row["received"]:
                sizes[row["id"]] = row["received"]
    return sizes


def _copy_rows(source: Storage, target: Postgres, store: str, name: bytes, *, is_far: bool) -> int:
    """Write all rows at once; returns how many."""
    begun, count = _begun(source), 0
    with target.writing() as db:
        for table in _TABLES:
            columns = [row["name"] for row in source.rows(f"PRAGMA table_info({table})")]
            marks = ", ".join("?" * len(columns))
            insert = f"INSERT INTO {table} ({', '.join(columns)}) OVERRIDING SYSTEM VALUE VALUES ({marks})"  # noqa: S608
            rows = iter(source.rows(f"SELECT * FROM {table}"))  # noqa: S608
            while some := list(itertools.islice(rows, _ROWS)):
                values = [dict(zip(columns, row, strict=True)) for row in some]
                if table == "uploads":
                    for each in values:
                        each.update(_upload(each, begun, is_far=is_far))
                db.executemany(insert, [[*each.values()] for each in values])
                count += len(some)
        db.execute("SELECT setval(pg_get_serial_sequence('jobs', 'number'), MAX(number)) FROM jobs")
        known = "ON CONFLICT (name) DO UPDATE SET value = excluded.value"
        secrets = {"pages": source.secret, "store": store.encode(), "migrated": name}
        db.executemany(f"INSERT INTO secrets VALUES (?, ?) {known}", list(secrets.items()))  # noqa: S608
    return count


def _upload(row: dict[str, Any], begun: dict[str, int], *, is_far: bool) -> dict[str, Any]:
    """What is different of an upload's row: its bytes are in pieces."""
    changed: dict[str, Any] = {"complete": bool(row["complete"])}
    if not (is_far or row["complete"]):
        there = row["id"] in begun
        changed |= {"received": begun.get(row["id"], 0), "pieces": f'["{_PIECE}"]' if there else ""}
    return changed
