"""``python building [TARGET]``: see ``__init__.py``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # of which Python made this folder
from building.build import main

main(sys.argv[1:])
