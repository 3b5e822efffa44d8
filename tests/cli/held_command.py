"""``augment ARGS…`` that touches the file HELD and goes no further when it comes to an input called ``held.json``.

python held_command.py HELD ARGS…
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

from augment import cli, readers

HELD = "HELD_COMMAND_HELD"
_read = readers.read


def held(path: str | os.PathLike[str], **options: Any) -> Any:
    if Path(path).name == "held.json":
        Path(os.environ[HELD]).touch()
        threading.Event().wait()
    return _read(path, **options)


readers.read = held  # in each process that is started, too: they begin with this file

if __name__ == "__main__":
    os.environ[HELD] = sys.argv.pop(1)
    sys.exit(cli.main())
