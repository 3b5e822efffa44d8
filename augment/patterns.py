"""Regular expressions that are compiled at their first use: most of those in the package are not needed in a run, and
compiling those of the modules that a small file loads took a tenth of the time.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from re import compile as regex
else:

    class regex:  # noqa: N801 - stands for a function
        """``re.compile``. Methods of the pattern are those of the compiled one; functions of ``re`` do not take it."""

        def __init__(self, pattern: str | bytes, flags: int = 0) -> None:
            self._pattern, self._flags = pattern, flags

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):  # protocols such as copying
                raise AttributeError(name)
            value = getattr(re.compile(self._pattern, self._flags), name)
            setattr(self, name, value)
            return value


__all__ = ["regex"]
