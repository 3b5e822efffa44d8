"""Memory snapshots as PyTorch writes them, of a simulated allocator; and what they say, counted one by one."""

from __future__ import annotations

import json
import pickle
from base64 import b64encode
from pathlib import Path
from typing import Any

MIB = 1 << 20
SEGMENT = 20 * MIB
Frame = dict[str, Any]


def frame(file: str, line: int, name: str = "step") -> Frame:
    return {"filename": file, "line": line, "name": name}


class Allocator:
    """One device's caching allocator: first fit, blocks rounded up to 512 bytes, segments of 20 MiB or more. What is
    left of a hole is part of the block if it is at most ``unsplit``. ``most``: the most that was allocated."""

    def __init__(self, start_us: int, device: int = 0, address: int = 0x7F00_0000_0000, unsplit: int = 0) -> None:
        self.now_us, self.device, self._next, self.unsplit, self.most = start_us, device, address, unsplit, 0
        self.segments: dict[int, int] = {}
        self.blocks: dict[int, tuple[int, int, list[Frame]]] = {}
        self.actions: list[dict[str, Any]] = []
        self.marks: list[dict[str, Any]] = []

    def _act(self, action: str, addr: int, size: int, frames: list[Frame]) -> None:
        self.now_us += 10
        entry = {"action": action, "addr": addr, "size": size, "stream": 0, "time_us": self.now_us}
        self.actions.append({**entry, "compile_context": "N/A", "frames": frames})

    def alloc(self, size: int, *frames: Frame) -> int:
        rounded = -(-size // 512) * 512
        for start, length in self.segments.items():
            at = start
            for block in [*sorted(block for block in self.blocks if start <= block < start + length), start + length]:
                if (hole := block - at) >= rounded or block == start + length:
                    break
                at = block + self.blocks[block][1]
            if at + rounded <= start + length:
                break
        else:
            at, length = self._next, max(SEGMENT, -(-rounded // (2 * MIB)) * 2 * MIB)
            self.segments[at] = length
            self._next += 2 * length
            hole = length
            self._act("segment_alloc", at, length, [])
        self.blocks[at] = size, hole if hole - rounded <= self.unsplit else rounded, list(frames)
        self.most = max(self.most, sum(rounded for _, rounded, _ in self.blocks.values()))
        self._act("alloc", at, size, list(frames))
        return at

    def free(self, addr: int) -> None:
        size, _, _ = self.blocks.pop(addr)
        self._act("free_requested", addr, size, [])
        self._act("free_completed", addr, size, [])

    def release(self) -> None:
        """Give back the segments without blocks."""
        for start, length in [*self.segments.items()]:
            if not any(start <= block < start + length for block in self.blocks):
                del self.segments[start]
                self._act("segment_free", start, length, [])

    def oom(self, size: int, device_free: int, *frames: dict[str, Any]) -> None:
        self._act("oom", 0, size, list(frames))
        del self.actions[-1]["addr"]
        self.actions[-1]["device_free"] = device_free

    def mark(self, name: str) -> None:
        self.now_us += 10
        for stage in ("START", "END"):
            self.marks.append({"stage": stage, "name": name, "device": self.device, "time_us": self.now_us})

    def snapshot(self, newest: int | None = None) -> dict[str, Any]:
        """What ``_dump_snapshot`` writes; of the actions the ``newest``."""
        segments = [self._segment(start, length) for start, length in self.segments.items()]
        actions = self.actions if newest is None else self.actions[len(self.actions) - newest :]
        settings = {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False, "garbage_collection_threshold": 0.0}
        traces = [[] for _ in range(self.device)] + [actions]
        return {"segments": segments, "device_traces": traces, "allocator_settings": settings,
                "external_annotations": self.marks}  # fmt: skip

    def _segment(self, start: int, length: int) -> dict[str, Any]:
        blocks, at = [], start
        for addr in [*sorted(each for each in self.blocks if start <= each < start + length), start + length]:
            if addr > at:
                hole = {"size": addr - at, "requested_size": 0, "state": "inactive", "frames": []}
                blocks.append({"address": at, **hole})
            if addr < start + length:
                size, rounded, frames = self.blocks[addr]
                held = {"size": rounded, "requested_size": size, "state": "active_allocated", "frames": frames}
                blocks.append({"address": addr, **held})
                at = addr + rounded
        used = [block for block in blocks if block["state"] != "inactive"]
        return {
            "device": self.device, "address": start, "total_size": length, "stream": 0, "segment_type": "large",
            "allocated_size": sum(block["size"] for block in used), "segment_pool_id": (0, 0), "is_expandable": False,
            "active_size": sum(block["size"] for block in used), "frames": [], "blocks": blocks,
            "requested_size": sum(block["requested_size"] for block in used),
        }  # fmt: skip


def training(start_us: int, steps: int = 6, leak: int = MIB, device: int = 0) -> Allocator:
    """Steps that allocate parameters, activations and gradients, and a loss that a list keeps."""
    made = Allocator(start_us, device)
    module = [frame("/venv/site-packages/torch/nn/modules/module.py", 900, "_apply"), frame("/home/me/run/train.py", 9)]
    call = frame("/venv/site-packages/torch/nn/modules/module.py", 1500, "_call_impl")
    for _ in range(2):
        made.alloc(5 * MIB, *module)
    for number in range(steps):
        made.mark(f"ProfilerStep#{number}")
        held = [made.alloc(3 * MIB, frame("/home/me/run/model.py", 217, "forward"), call) for _ in range(4)]
        made.alloc(leak, frame("/home/me/run/train.py", 40))
        grads = [made.alloc(2 * MIB) for _ in range(2)]
        for addr in (*held, *grads):
            made.free(addr)
    return made


def write_snapshot(path: Path, content: Any, protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(content, protocol))
    return path


def page_of(pickled: bytes) -> bytes:
    """The page of PyTorch's ``_memory_viz`` with such a pickle."""
    file = {"name": "snapshot.pickle", "base64": b64encode(pickled + bytes(3 - len(pickled) % 3)).decode()}
    return f"""
<!DOCTYPE html>
<html>
<head>
</head>
<body>
<script type="module">
import {{add_local_files}} from "https://cdn.jsdelivr.net/gh/pytorch/pytorch@main/torch/utils/viz/MemoryViz.js"
const local_files = {json.dumps([file])}
add_local_files(local_files, "Active Memory Timeline")
</script>
</body>
""".encode()


def peaks_of(content: Any) -> dict[int, int]:
    """The most that was allocated on each device, from the end backwards, in plain Python."""
    segments = content if isinstance(content, list) else content["segments"]
    traces = [] if isinstance(content, list) else content["device_traces"]
    peaks = {}
    for device in {segment["device"] for segment in segments} | {at for at, trace in enumerate(traces) if trace}:
        blocks = [block for segment in segments if segment["device"] == device for block in segment["blocks"]]
        held = sum(block["size"] for block in blocks if block["state"] == "active_allocated")
        peaks[device] = held
        known = {block.get("address"): block["size"] for block in blocks if block["state"] != "inactive"}
        for entry in reversed(traces[device] if device < len(traces) else []):
            change = {"alloc": -1, "free_requested": 1}.get(entry["action"], 0)
            if change:  # of what is there at the end the size of the block is known
                size = -(-entry["size"] // 512) * 512
                size = known.get(entry["addr"], size)
                held += change * size
            if entry["action"] == "alloc" or (change and entry["addr"] not in known):
                known.pop(entry.get("addr"), None)
            peaks[device] = max(peaks[device], held)
    return peaks
