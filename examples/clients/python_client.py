"""Have a server augment a trace; print how far it is, the files, and how idle each device was.

python python_client.py HOST:PORT TRACE [OUT]
"""

from __future__ import annotations

import sys

from augment import AugmentError
from augment.client import Client


def main(address: str, trace: str, out: str = ".") -> int:
    """Augment ``trace`` through the server at ``address``; the exit code."""
    try:
        with Client(address) as client:
            augmented = client.augment(trace, formats=["chrome", "perfetto"], out=out, progress=tell)
    except AugmentError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    for path in augmented.files:
        print(path)
    for row in augmented.metrics["analyses"]["temporal_breakdown"]["rows"]:
        print(f"device {row['device']}: idle {row['idle_ns'] / row['span_ns']:.1%}")
    return 0


def tell(stage: str, done: int, of: int) -> None:
    """A line of progress."""
    print(f"{stage}: {done} of {of}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
