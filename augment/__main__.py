"""``python -m augment``: the command line."""

from __future__ import annotations

if __name__ == "__main__":  # worker processes import this file, too
    from augment.cli import program

    program()
