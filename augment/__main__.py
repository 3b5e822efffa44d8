"""``python -m augment``: the command line."""

from __future__ import annotations

import sys

if __name__ == "__main__":  # worker processes import this file, too
    from augment.cli import main

    sys.exit(main())
