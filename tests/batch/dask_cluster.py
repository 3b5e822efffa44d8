"""A Dask cluster of two processes; prints the scheduler's address, and ends when its stdin does.

A process that dies is replaced, whenever that is. Dask's nannies give up one that dies before they have heard that it
runs: on a busy machine both workers were gone for good once each had got a deadly input at once.
"""

from __future__ import annotations

import subprocess
import sys
import threading


def main() -> None:
    from distributed import LocalCluster

    with LocalCluster(n_workers=0, dashboard_address=None) as cluster:
        command = [sys.executable, "-m", "distributed.cli.dask_worker", cluster.scheduler_address]
        command += ["--no-nanny", "--nthreads=1", "--memory-limit=0", "--no-dashboard", "--death-timeout=60"]
        ended, processes = threading.Event(), dict[int, subprocess.Popen[bytes]]()

        def keep(place: int) -> None:
            while not ended.is_set():
                processes[place] = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                processes[place].wait()

        threads = [threading.Thread(target=keep, args=(place,)) for place in range(2)]
        for thread in threads:
            thread.start()
        cluster.wait_for_workers(2)
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()
        ended.set()
        for place, thread in enumerate(threads):
            while thread.is_alive():
                processes[place].kill()
                thread.join(0.1)


if __name__ == "__main__":
    main()
