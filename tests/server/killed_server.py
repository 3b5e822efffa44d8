"""``augment ARGS…`` that kills itself at the COUNTth call of METHOD, ``before`` it does anything or ``after`` it.

python killed_server.py MODULE:METHOD before|after COUNT ARGS…
"""

from __future__ import annotations

import functools
import importlib
import itertools
import os
import signal
import sys
from typing import Any

from augment import cli
from augment_server.storage import uploads

SYNC_BYTES = 1 << 20


def die_at(place: str, moment: str, count: int) -> None:
    module, _, path = place.partition(":")
    *owners, name = path.split(".")
    owner = functools.reduce(getattr, owners, importlib.import_module(module))
    method, number = getattr(owner, name), itertools.count(1)

    @functools.wraps(method)
    def dying(*args: Any, **options: Any) -> Any:
        last = next(number) == count
        if last and moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = method(*args, **options)
        if last:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, dying)


if __name__ == "__main__":
    uploads.SYNC_BYTES = SYNC_BYTES  # so that small files are made safe more than once
    die_at(sys.argv.pop(1), sys.argv.pop(1), int(sys.argv.pop(1)))
    sys.exit(cli.main())
