"""The operators that repeat work of the forward pass within the backward pass: checkpointing.

An operator is recomputation if it runs within a node of the autograd graph in one of two ways:

- directly within ``CheckpointFunctionBackward`` (reentrant checkpointing), in no node of the backward that runs there;
- with gradients recorded, as a ``Sequence number`` of its own or of an operator around it tells, though the node does
  its own work without (checkpointing by hooks). Where a node does all of its work with gradients recorded, that is a
  backward that will be differentiated itself (``create_graph=True``), and no recomputation.
"""

from __future__ import annotations

import re

import numpy as np

from augment.arrays.types import Bools, Places
from augment.core.context import derived
from augment.core.trace import Category, Trace
from augment.facts.host.call_stacks import call_stacks, places_of
from augment.facts.host.enclosing import enclosing
from augment.facts.operators.operator_work import operator_work
from augment.facts.source.arg_columns import arg_columns

_NODE = "autograd::engine::evaluate_function"
_CHECKPOINT = "CheckpointFunctionBackward"
_OF_ENGINE = re.compile(r"autograd::|torch::autograd|\w+Backward\d*$|.*CheckpointFunction")


@derived(until="operations")
def recomputed(trace: Trace) -> Bools:
    """Whether each operator of ``operator_work`` is recomputation."""
    operators = operator_work(trace)
    stacks, ops = call_stacks(trace), places_of(trace, Category.CPU_OP)
    called = stacks.place_of[operators.row].astype(np.intp)  # kernels of graphs: the graph's launch, in no operator
    nodes = ops.where(lambda name: name.startswith(_NODE))
    if not len(nodes) or not len(called):
        return np.zeros(len(called), np.bool_)
    node = enclosing(trace, nodes).astype(np.intp)
    inside = node[called] >= 0
    checkpoints = np.isin(nodes, ops.where(lambda name: name.startswith(_NODE) and _CHECKPOINT in name))
    again = inside & checkpoints[node[called]]
    work = ops.where(lambda name: not _OF_ENGINE.match(name))
    work = work[node[work] >= 0]  # an operator that records gradients within a node lies in the node itself
    recording = _with_gradients(trace, work)
    if len(recording):
        around = enclosing(trace, recording).astype(np.intp)
        plain = work[~_in_node(recording, nodes, around[work], node[work])]
        does_plain = np.zeros(len(nodes), np.bool_)
        does_plain[node[plain]] = True
        again |= inside & _in_node(recording, nodes, around[called], node[called]) & does_plain[node[called]]
    return again


def _with_gradients(trace: Trace, work: Places) -> Places:
    """Which of ``work`` have a sequence number and are not nodes themselves."""
    columns, stacks = arg_columns(trace), call_stacks(trace)
    rows = stacks.row[work]
    order = np.argsort(rows, kind="stable")
    number, forward_thread = np.empty((2, len(rows)), np.int64)
    number[order] = columns.ints("Sequence number").at(rows[order], -1)
    forward_thread[order] = columns.ints("Fwd thread id").at(rows[order], 0)
    with_gradients: Places = work[(number >= 0) & (forward_thread == 0)]
    return with_gradients


def _in_node(recording: Places, nodes: Places, around: Places, node: Places) -> Bools:
    """Whether the recording operator around each event lies inside the node around that event: it begins after the
    node.
    """
    matches: Bools = (around >= 0) & (recording[around] > nodes[node])
    return matches
