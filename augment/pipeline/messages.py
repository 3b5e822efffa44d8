"""Conversion between requests and messages of the service."""

from __future__ import annotations

from augment.errors import UsageError
from augment.pipeline.request import Request, option_values
from augment.v1 import resources_pb2


def spec_of(request: Request, *, summaries: bool) -> resources_pb2.AugmentSpec:
    """The message for ``request``, without its input.

    Raises:
        UsageError: the request has what a server does not take.
    """
    if request.tables or request.peaks:
        raise UsageError("tables and peaks: a server takes none; convert the trace here")
    steps = request.steps
    return resources_pb2.AugmentSpec(
        formats=request.formats,
        only=request.only,
        skip=request.skip,
        options=request.option_texts(),
        steps=resources_pb2.StepRange(first=steps[0], last=steps[1]) if steps else None,
        summaries=summaries,
    )


def request_of(spec: resources_pb2.AugmentSpec) -> Request:
    """The request in a message.

    Raises:
        UsageError: an option has another form or type, or the steps are in the wrong order.
    """
    steps = spec.steps if spec.HasField("steps") else None
    if steps and not 0 <= steps.first <= steps.last:
        raise UsageError("steps: must be from 0 on, and the first not greater than the last")
    return Request(
        formats=tuple(spec.formats),
        only=tuple(spec.only),
        skip=tuple(spec.skip),
        options=option_values(spec.options),
        steps=(steps.first, steps.last) if steps else None,
    )
