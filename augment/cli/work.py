"""``augment work``: a worker of the service, as :mod:`augment.cli.serve`."""

from __future__ import annotations

from augment.cli.serve import Served

command = Served("work", short_help="Do the jobs of servers that share a catalog.")
