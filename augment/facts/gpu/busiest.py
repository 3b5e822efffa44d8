"""Which devices and which stream work longest."""

from __future__ import annotations

from augment.core.trace import Identity, Trace
from augment.facts.gpu.gpu_work import Stream, gpu_work


def busiest_devices(trace: Trace) -> list[Identity]:
    """The devices, those that work longest first."""
    work = gpu_work(trace)
    ns = {device.device: int((work.end - work.ts)[device.places].sum()) for device in work.devices}
    return sorted(ns, key=lambda device: -ns[device])


def busiest_stream(trace: Trace) -> Stream | None:
    """The stream of the busiest device that works longest; None without GPU work."""
    work, devices = gpu_work(trace), busiest_devices(trace)
    streams = [stream for stream in work.streams if stream.device == devices[0]]
    ns = (work.end - work.ts).clip(min=0)
    return max(streams, key=lambda stream: int(ns[stream.places].sum())) if streams else None
