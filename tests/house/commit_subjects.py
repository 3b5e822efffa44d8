"""Check that subjects of commits have at most 72 characters. ``make check`` runs this.

    python tests/house/commit_subjects.py [BASE]

Only commits after BASE are checked, by default after :data:`SINCE`: older ones stay as they are. Without git, and where
BASE is not in the history (an sdist, a shallow clone), only the last commit is checked, or none.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SINCE = "3f7e860c3e"
LONGEST = 72


def main(arguments: Sequence[str]) -> int:
    """Print each subject that is too long; the exit code is 1 if there is one."""
    base = arguments[0] if arguments else SINCE
    too_long = [subject for subject in subjects(ROOT, base) if len(subject) > LONGEST]
    for subject in too_long:
        print(f"the subject of a commit has {len(subject)} characters, at most {LONGEST} are allowed: {subject}")
    return 1 if too_long else 0


def subjects(root: Path, base: str) -> list[str]:
    """The subjects of the commits after ``base``, the last one's if ``base`` is unknown."""
    for revisions in (f"{base}..HEAD", "-1"):
        command = ["git", "-C", str(root), "log", "--no-merges", "--format=%s", revisions]
        try:
            done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", check=False)
        except OSError:
            return []
        if not done.returncode:
            return done.stdout.splitlines()
    return []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
