"""``augment ARGS…`` that gives up soon: a lease after 3 s, a request to the store after one.

python hasty.py ARGS…
python hasty.py --worker CODE ARGS…   its workers run this Python code: the body of a function of ``order`` and ``out``
"""

from __future__ import annotations

import sys
from datetime import timedelta

from augment import cli
from augment_server.jobs import scheduler
from augment_server.storage import bucket, postgres
from augment_server.workers import workers

BEGIN = """
import json, os, sys
sys.path += json.loads(sys.argv.pop())
from augment_server.workers import worker
def made(order, say):
    return evil(order, order["folder"] + "/out")
worker._made = made
def evil(order, out):
{lines}
worker.main()
"""

if __name__ == "__main__":
    postgres.RENEW_S, postgres.STALE_S = 0.1, 3.0
    bucket._RETRY = {"max_retries": 0, "retry_timeout": timedelta(seconds=1)}
    scheduler._STORE_PAUSE_S = 0.1
    if sys.argv[1] == "--worker":
        _, code = sys.argv.pop(1), sys.argv.pop(1)
        workers._BEGIN = BEGIN.format(lines="".join(f"    {line}\n" for line in code.strip().splitlines()))
    sys.exit(cli.main())
