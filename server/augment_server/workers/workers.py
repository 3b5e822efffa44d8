"""The pool of worker processes: started in advance, reused for many jobs of one client, and killed when necessary."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

import augment
from augment_server.base.errors import REASONS
from augment_server.base.interception import LARGE
from augment_server.base.limits import Limits
from augment_server.base.names import NOT_IN_FILE_NAMES, new_id
from augment_server.base.threads import Apart, relay
from augment_server.storage.folder import empty, remove
from augment_server.storage.storage import Storage

JOBS_OF_ONE = 1000  #: a worker is replaced after this number of jobs, because it may leak memory
KEPT_BYTES = 512 << 20  #: a worker that used more is replaced as well, because allocators return little memory
MOST_THREADS = 1000  #: of a worker, which needs a few: the system has only so many for all
_STDERR_BYTES_S = 64 << 10  #: what a worker may write to stderr a second; it waits with more
_WATCH_S, _LOOK_S = 0.1, 0.002
_LINE_BYTES = 4 << 20
_MOST_LINES, _MOST_BYTES = 1000, 2 * _LINE_BYTES  #: that a worker says about one order
_STOP_S, _EMPTY_S = 2.0, 2.0  #: how long to wait until an idle process stands still, and until its folder is empty
MOST_OUTPUTS = 20_000  #: of an order: more than those of a whole job with as many traces as a server takes
_ROOT = Path(__file__).resolve().parents[2]
_OURS = (Path(__file__).resolve().parents[1], Path(augment.__file__).resolve().parent)  #: packages
_LIBRARIES = ("lib", "lib32", "lib64", "share/zoneinfo")  #: below a prefix
_OF_SYSTEM = (
    "/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/local/lib", "/nix/store", "/gnu/store",
    "/usr/share/zoneinfo", "/etc/ld.so.cache", "/etc/ld.so.preload", "/etc/localtime", "/dev/urandom", "/dev/zero",
    "/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/sys/vm", "/sys/devices/system/cpu", "/sys/fs/cgroup",
)  # fmt: skip
_BEGIN = """
import json, sys
sys.path += json.loads(sys.argv.pop())
from augment_server.workers.worker import main
main()
"""
#: what a worker gets of the environment; the settings of OpenBLAS decide about the last bit of a mean
_HANDED_ON = re.compile("PATH|LANG|LC_ALL|LC_CTYPE|TZ|LD_LIBRARY_PATH|DYLD_LIBRARY_PATH|MALLOC_ARENA_MAX|OPENBLAS_.*")

_Text = Annotated[str, Meta(max_length=1 << 12)]
_Particulars = Annotated[dict[Annotated[str, Meta(max_length=100)], _Text], Meta(max_length=16)]
_Reason = Annotated[str, Meta(max_length=100)]
_Number = Annotated[int, Meta(ge=0, le=1 << 20)]
_Rank = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_FileName = Annotated[str, Meta(max_length=1 << 13)]
_Sha256 = Annotated[str, Meta(max_length=64)]
_IS_NAME, _IS_SHA256 = re.compile(f"[^{NOT_IN_FILE_NAMES}]+").fullmatch, re.compile("[0-9a-f]{64}").fullmatch


class Said(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message of a worker: that it is ready; a stage; or, for each order, ``made`` or ``failed`` with the rest."""

    ready: bool = False
    stage: Annotated[str, Meta(min_length=1, max_length=100)] | None = None
    done: _Number = 0
    of: _Number = 0
    made: Annotated[tuple[tuple[_FileName, _Sha256], ...], Meta(max_length=MOST_OUTPUTS)] | None = None
    rank: _Rank | None = None
    world_size: _Rank | None = None
    failures: Annotated[tuple[tuple[_Number, _Reason, _Text, _Particulars], ...], Meta(max_length=MOST_OUTPUTS)] = ()
    notes: Annotated[tuple[_Text, ...], Meta(max_length=100)] = ()
    failed: tuple[_Reason, _Text, _Particulars] | None = None
    traceback: Annotated[str, Meta(max_length=1 << 16)] = ""
    peak_bytes: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0

    def __post_init__(self) -> None:
        """Check texts: other threads run meanwhile, as they do not during ``Meta(pattern=…)``."""
        reasons = [reason for _, reason, *_ in self.failures]
        if any(reason not in REASONS for reason in (*reasons, *(self.failed or ())[:1])):
            raise ValueError("a reason that is none")
        if not all(_IS_NAME(name) and _IS_SHA256(sha256) for name, sha256 in self.made or ()):
            raise ValueError("an output that is none")


_SAID = msgspec.json.Decoder(Said)
_SIZE = re.compile(r"^(Vm\w+|HugetlbPages):\s*(\d+) kB$", re.MULTILINE)


class Misbehaved(Exception):
    """The process said what no worker says. It may run a stranger's code."""


class WorkerDied(Exception):
    """The process ended before its work; the text says how."""


class TookTooMuch(Exception):
    """The process exceeded its memory limit and was killed."""


class Worker:
    """A worker process. :meth:`start` makes it."""

    def __init__(self, process: asyncio.subprocess.Process, memory: int, folder: Path) -> None:
        self._process, self._memory = process, memory
        self.folder = folder
        self.given = given_beside(folder)  #: the folder in which it finds the inputs of its orders, and writes nothing
        self.client: str | None = None  #: whose jobs it does; none before the first
        self.jobs = 0
        self.stands_still = False  #: between two jobs
        self.busy = False  #: stays true after work was cancelled
        self.peak_bytes = 0
        self._cpu_s = 0.0  #: of the process, as last seen
        self.spent_s = 0.0  #: CPU time of the last order; 0 where the system does not tell

    @classmethod
    async def start(cls, memory: int, folder: Path, readable: Iterable[str]) -> Worker:
        """Start a process, which gets ready in the background.

        It sees no site packages but those of this process, no ``.pth`` file, and little of the environment.

        Args:
            memory: its limit, bytes.
            folder: made for it: the folders of its orders lie below it, and it writes nowhere else.
            readable: what else it may read.
        """
        for each in (folder, given_beside(folder)):
            each.mkdir(mode=0o700)
        paths = [str(_ROOT), *(path for path in sys.path if os.path.isabs(path))]
        environment = {name: text for name, text in os.environ.items() if _HANDED_ON.fullmatch(name)}
        # one thread for each worker: the number of jobs is chosen for the number of CPUs
        environment |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)}
        pipe = asyncio.subprocess.PIPE
        stderr, _ = relay(_pass_on)  # a process could empty the file that stderr itself may be
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                "-S",
                "-c",
                _BEGIN,
                str(memory),
                str(folder),
                json.dumps([str(given_beside(folder)), *readable]),
                json.dumps(paths),
                stdin=pipe,
                stdout=pipe,
                stderr=stderr,
                limit=_LINE_BYTES,
                env=environment,
                start_new_session=True,
            )
        finally:
            os.close(stderr)
        return cls(process, memory, folder)

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.returncode is None

    @property
    def fit(self) -> bool:
        """Whether the process may take another job."""
        return self.alive and not self.busy and self.jobs < JOBS_OF_ONE and self.peak_bytes < KEPT_BYTES

    async def do(self, order: dict[str, Any], stage: Callable[[Said], None]) -> Said:
        """Do one job; returns the worker's last message.

        Raises:
            WorkerDied: the process died.
            TookTooMuch: the process exceeded its memory limit.
            Misbehaved: its messages are none of a worker, or it begins too many threads.
        """
        self.jobs += 1
        self.busy = True
        before = self._look()
        watch = asyncio.create_task(self._watch())
        work = asyncio.create_task(self._converse(order, stage))
        try:
            await asyncio.wait((work, watch), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                await self.end()
                raise watch.result()
            return await work
        finally:
            self.spent_s = self._look() - before
            for task in (watch, work):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, WorkerDied, Misbehaved):
                    await task

    async def _converse(self, order: dict[str, Any], stage: Callable[[Said], None]) -> Said:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin
        assert stdout
        try:
            stdin.write(json.dumps({**order, "memory": self._memory}).encode() + b"\n")
            await stdin.drain()
        except ConnectionError:
            pass  # the process died: its exit code says more
        left = _MOST_BYTES
        for _ in range(_MOST_LINES):
            try:
                line = await stdout.readline()
                left -= len(line)
                if left < 0:
                    raise Misbehaved(f"more than {_MOST_BYTES} bytes of messages")
                if not line:
                    break
                said = await asyncio.to_thread(_SAID.decode, line) if len(line) > LARGE else _SAID.decode(line)
            except ValueError as error:  # too long, or no message
                raise Misbehaved(str(error)) from error
            if said.stage is not None:
                stage(said)
            elif said.made is not None or said.failed is not None:
                inputs = len(order["inputs"]) if order["kind"] == "diagnose" else 0
                if any(number >= inputs for number, *_ in said.failures):
                    raise Misbehaved("an input failed that is none")
                self.peak_bytes = said.peak_bytes
                self.busy = False
                return said
        else:
            raise Misbehaved(f"more than {_MOST_LINES} messages")
        code = await self._process.wait()
        raise WorkerDied(f"signal {-code}" if code < 0 else f"exit code {code}")

    def memory_bytes(self) -> int | None:
        """The memory in use, bytes, with what is swapped out, huge pages and page tables; None if the system does not
        report it. All of it is mapped: other memory, and what children could share, is refused to the process."""
        with contextlib.suppress(OSError), os.scandir(f"/proc/{self.pid}/task") as threads:
            for thread in threads:  # one that has ended says nothing, even the first
                with open(f"{thread.path}/status", encoding="utf-8", errors="replace") as file:
                    sizes = {name: int(size) << 10 for name, size in _SIZE.findall(file.read())}
                if "VmRSS" in sizes:
                    return sum(sizes.get(name, 0) for name in ("VmRSS", "VmSwap", "HugetlbPages", "VmPTE"))
        return None

    def _look(self) -> float:
        """The CPU time of the process; as last seen if it has ended. It can start no others."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open(f"/proc/{self.pid}/stat", "rb") as file:
                ticks = file.read().rpartition(b")")[2].split()[11:13]
            self._cpu_s = sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
        return self._cpu_s

    async def stand_still(self) -> bool:
        """Stop the process with all of its threads, so that nothing of it goes on between two jobs; False if it does.

        Only on Linux, where it ends with the server even so.
        """
        if sys.platform != "linux":
            return True
        if not self.stands_still:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGSTOP)
            until = time.monotonic() + _STOP_S
            while self.alive and not self.stands_still and time.monotonic() < until:
                with contextlib.suppress(ChildProcessError):  # it has just ended
                    stopped = os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
                    self.stands_still = stopped is not None
                await asyncio.sleep(0 if self.stands_still else _LOOK_S)
        return self.stands_still

    async def has_more_to_say(self) -> bool:
        """Whether it has said more than what ended its work. It would be taken for the end of the next work."""
        assert self._process.stdout
        with contextlib.suppress(asyncio.TimeoutError, ValueError):
            await asyncio.wait_for(self._process.stdout.read(1), _LOOK_S)
            return True
        return False

    def go_on(self) -> None:
        """Let the process work again."""
        if self.stands_still:
            self.stands_still = False
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGCONT)

    async def _watch(self) -> TookTooMuch | Misbehaved:
        """Returns when the process exceeds its memory limit, or begins too many threads. Works only on Linux."""
        while self._memory:
            await asyncio.sleep(_WATCH_S)
            self._look()
            taken = await asyncio.to_thread(self.memory_bytes)
            if taken is None:
                break
            if taken > self._memory:
                return TookTooMuch()
            with contextlib.suppress(OSError):  # it has just ended
                if (threads := os.stat(f"/proc/{self.pid}/task").st_nlink - 2) > MOST_THREADS:
                    return Misbehaved(f"{threads} threads")
        never: asyncio.Future[TookTooMuch | Misbehaved] = asyncio.get_running_loop().create_future()
        return await never

    async def end(self) -> None:
        """Kill the process, and those that it may have started in its session."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        await self._process.wait()


def given_beside(folder: Path) -> Path:
    """The folder of a worker's inputs, beside the one in which it writes."""
    return folder.with_name(f"{folder.name}.given")


def readable_beside(state: Path) -> list[str]:
    """What a worker needs to read besides its inputs: libraries, and what the system says of itself.

    Of the folders in which Python looks for modules neither the one in which the server was started, nor one around the
    state directory: ours are named by themselves.
    """
    here = os.path.realpath(os.getcwd())
    paths = [os.path.realpath(path) for path in sys.path if os.path.isabs(path)]
    modules = [path for path in paths if path != here and not state.resolve().is_relative_to(path)]
    prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    libraries = [os.path.join(prefix, name) for prefix in sorted(prefixes) for name in _LIBRARIES]
    more = [path for path in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if os.path.isabs(path)]
    return [*map(str, _OURS), *modules, *libraries, *more, *_OF_SYSTEM]


def _pass_on(line: bytes) -> None:
    """Write what a worker has written to stderr. Blocks, so that a flood of it makes the worker wait."""
    os.write(2, line)
    time.sleep(len(line) / _STDERR_BYTES_S)


class Workers:
    """The pool: as many processes as jobs may run at once. None works for two clients: one may take it over."""

    def __init__(self, limits: Limits, storage: Storage, apart: Apart, roots: Iterable[str]) -> None:
        self._storage, self._apart = storage, apart
        self._readable = [*readable_beside(storage.root), *roots]
        self.size = limits.running_jobs()
        self._memory = limits.job_memory_bytes()
        self._idle: list[Worker] = []  # the one that was used last at the end
        self._all: set[Worker] = set()
        self._preparing = asyncio.Lock()
        self._remover = ThreadPoolExecutor(1, thread_name_prefix="augment-remover")  # of folders of ended processes
        self._is_closed = False

    def memory_bytes(self) -> int:
        """The memory of all processes, bytes. May be called from any thread."""
        return sum(worker.memory_bytes() or 0 for worker in self._all.copy() if worker.alive)

    async def prepare(self) -> None:
        """Start the missing processes, so that the next jobs need not wait."""
        async with self._preparing:
            for worker in [worker for worker in self._idle if not worker.alive]:
                self._idle.remove(worker)
                await self._end(worker)
            while len(self._all) < self.size:
                self._idle.insert(0, await self._start())

    async def take(self, client: str) -> Worker:
        """A process for a job of a client: its own idle one, else one that has done nothing yet, else a new one.

        If there are enough, the one that was idle longest ends for the new one.
        """
        for whose in (client, None):
            for worker in reversed(self._idle):
                if worker.alive and worker.client == whose:
                    self._idle.remove(worker)
                    worker.client = client
                    worker.go_on()
                    return worker
        while self._idle and len(self._all) >= self.size:
            await self._end(self._idle.pop(0))
        worker = await self._start()
        worker.client = client
        return worker

    async def _start(self) -> Worker:
        worker = await Worker.start(self._memory, self._storage.work(new_id()), self._readable)
        self._all.add(worker)
        return worker

    async def give_back(self, worker: Worker) -> None:
        """Return a process after its job, with nothing left in its folder: it stands still, or is replaced.

        Code of a client may have taken it over, go on, and say of its memory what it likes.
        """
        if worker.fit and await worker.stand_still() and not await worker.has_more_to_say():
            until, taken = time.monotonic() + _EMPTY_S, await self._apart(worker.memory_bytes)
            is_small = (taken or 0) < KEPT_BYTES
            if is_small and await self._apart(empty, worker.folder, lambda: time.monotonic() >= until):
                await self._apart(empty, worker.given, lambda: False)
                self._idle.append(worker)
                return
        await self._end(worker)
        await self.prepare()

    async def _end(self, worker: Worker) -> None:
        """End a process, which may be dead and have left children. Nobody waits until its folder is removed."""
        self._all.discard(worker)
        await worker.end()
        for folder in (worker.given, worker.folder):
            self._remover.submit(remove, folder, lambda: self._is_closed)

    async def close(self) -> None:
        """End all processes."""
        workers, self._all, self._idle = self._all, set(), []
        await asyncio.gather(*(worker.end() for worker in workers if worker.alive))
        self._is_closed = True  # what is left in folders, the next start removes
        self._remover.shutdown(cancel_futures=True)
