"""Which devices and which stream work longest."""

from __future__ import annotations

from augment.derived.gpu.gpu_work import Stream, gpu_work
from augment.trace import Identity, Trace


def busiest_devices(trace: Trace) -> list[Identity]:
    """The devices, those that work longest first."""
    work = gpu_work(trace)
    ns = {one.device: int((work.end - work.ts)[one.places].sum()) for one in work.devices}
    return sorted(ns, key=lambda device: -ns[device])


def busiest_stream(trace: Trace) -> Stream | None:
    """The stream of the busiest device that works longest; None without GPU work."""
    work, devices = gpu_work(trace), busiest_devices(trace)
    streams = [one for one in work.streams if one.device == devices[0]]
    ns = (work.end - work.ts).clip(min=0)
    return max(streams, key=lambda one: int(ns[one.places].sum())) if streams else None
