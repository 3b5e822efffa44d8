"""Have buf judge the .proto files: their style, every comment, their layout, and that nothing is broken since BRANCH.

    python proto/judge.py [BRANCH]    main if not given; exit 1 and say what is wrong

buf comes from the package buf-bin, of the development environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROTO = Path(__file__).resolve().parent
ROOT = PROTO.parent


def main() -> int:
    """Judge."""
    branch = sys.argv[1] if len(sys.argv) > 1 else "main"
    buf("lint", "proto")
    buf("format", "--diff", "--exit-code", "--path", "proto/augment", "proto")
    known = output("git", "ls-tree", "-r", "--name-only", branch, "proto")
    if "service.proto" not in known:
        sys.stdout.write(f"no branch {branch} with an API to compare with\n")
        return 0
    # of a work tree, where the repository itself is
    repository = output("git", "rev-parse", "--path-format=absolute", "--git-common-dir").strip()
    buf("breaking", "proto", "--against", f"{repository}#branch={branch},subdir=proto")
    return 0


def buf(*args: str) -> None:
    """Run buf; end with what it says if it finds anything."""
    beside = Path(sys.executable).parent / "buf"
    ended = subprocess.run([str(beside) if beside.exists() else "buf", *args], cwd=ROOT, env=environment())
    if ended.returncode:
        raise SystemExit(1)


def environment() -> dict[str, str]:
    """Without what a hook of git sets, which would have buf look elsewhere."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}


def output(*command: str) -> str:
    """What a program prints; nothing if it fails."""
    return subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8").stdout


if __name__ == "__main__":
    sys.exit(main())
