"""A Ray cluster of one node with two CPUs; prints the address of its client server, and ends when its stdin does."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from machine import free_ports


def main() -> None:
    port, client = free_ports(2)
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--include-dashboard=false"]
    command += ["--node-ip-address=127.0.0.1", f"--port={port}", f"--ray-client-server-port={client}", "--num-cpus=2"]
    with tempfile.TemporaryDirectory(prefix="ray") as folder:
        command += [f"--temp-dir={folder}", "--object-store-memory=100000000"]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
            while process.poll() is None:
                try:
                    socket.create_connection(("127.0.0.1", client), 1).close()
                    break
                except OSError:
                    time.sleep(0.2)
            print(f"ray://127.0.0.1:{client}", flush=True)
            sys.stdin.read()
            process.terminate()  # which ends all processes of the node


if __name__ == "__main__":
    main()
