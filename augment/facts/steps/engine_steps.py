"""The steps of inference engines, whose annotations have another name each time: what each says of its batch.

:data:`FORMS` is a table of names. The user's own rows (``[[step]]`` in a file of tables, or ``--region``) come before
it. Of an engine that drafts tokens, the step is the verification of the drafts: the passes of the draft model are none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from augment.arrays import EventRow, EventRows
from augment.core import Category, Trace, derived, tables_of
from augment.errors import UsageError
from augment.facts.names import LOOKED_AT

Phase = Literal["prefill", "decode", "mixed", "idle", "denoise", "step"]
PHASES: tuple[Phase, ...] = ("prefill", "decode", "mixed", "idle", "denoise", "step")
UNKNOWN = -1  #: a count that the name does not tell
TABLE = "step"  #: key of the user's own rows
REGION = "region"  #: of such a row: a name, or a pattern with ``*`` and ``?``


class Batch(Struct, frozen=True):
    """What the name of a step says: counts, or :data:`UNKNOWN`. Contexts include the new tokens."""

    phase: Phase  #: what the batch does
    engine: str = ""  #: which wrote the name
    requests: int = UNKNOWN  #: sequences in the batch
    prefill_requests: int = UNKNOWN  #: sequences with new tokens of prompts
    prefill_tokens: int = UNKNOWN  #: new tokens of prompts
    prefill_context: int = UNKNOWN  #: sum of the lengths of their sequences
    prefill_squares: int = UNKNOWN  #: sum over sequences of new tokens squared
    prefill_pairs: int = UNKNOWN  #: sum over sequences of new tokens times length
    decode_requests: int = UNKNOWN  #: running sequences
    decode_tokens: int = UNKNOWN  #: new tokens of running sequences; more than the requests where drafts are verified
    decode_context: int = UNKNOWN  #: as of ``prefill``
    decode_pairs: int = UNKNOWN  #: as of ``prefill``
    graph_requests: int = UNKNOWN  #: batch size of the graph that runs it; padding is what it has more

    @property
    def new_tokens(self) -> int:
        """Tokens that the step computes."""
        return _sum(self.prefill_tokens, self.decode_tokens)

    @property
    def cached_tokens(self) -> int:
        """Tokens that the step reads from the cache: the lengths of the sequences less what is new."""
        context, new = _sum(self.prefill_context, self.decode_context), self.new_tokens
        return UNKNOWN if UNKNOWN in (context, new) else max(context - new, 0)


def _sum(first: int, second: int) -> int:
    return UNKNOWN if UNKNOWN in (first, second) else first + second


def _phase(prefills: int, decodes: int) -> Phase:
    if prefills:
        return "mixed" if decodes else "prefill"
    return "decode" if decodes else "idle"


def _by_counts(engine: str, match: re.Match[str]) -> Batch:
    """Of a name with a count of requests of each phase (``c``, ``g``) and, in the longer forms, of tokens."""
    counts = {key: UNKNOWN if text is None else int(text) for key, text in match.groupdict().items()}
    prefills, decodes = counts["c"], counts["g"]

    def count(key: str, requests: int) -> int:
        return 0 if not requests else counts.get(key, UNKNOWN)

    return Batch(
        phase=_phase(prefills, decodes),
        engine=engine,
        requests=prefills + decodes,
        prefill_requests=prefills,
        prefill_tokens=count("c_sq", prefills),
        prefill_context=count("c_sk", prefills),
        prefill_squares=count("c_sqsq", prefills),
        prefill_pairs=count("c_sqsk", prefills),
        decode_requests=decodes,
        decode_tokens=count("g_sq", decodes),
        decode_context=count("g_sk", decodes),
        decode_pairs=count("g_sqsk", decodes),
    )


_PAIR = re.compile(r"(\w+)=(\d+)(?:/(\d+))?")
_MODES: Mapping[str, Phase] = {
    "extend": "prefill", "prefill": "prefill", "split_prefill": "prefill", "decode": "decode",
    "target_verify": "decode", "mixed": "mixed", "idle": "idle", "prebuilt": "idle",
}  # fmt: skip


def _by_keys(engine: str, match: re.Match[str]) -> Batch | None:
    """Of a name with a mode and ``key=value``: SGLang's and ATOM's."""
    mode = match["mode"].lower()
    phase = _MODES.get(mode)
    if phase is None:
        return None
    pairs = {key: (int(value), int(of) if of else UNKNOWN) for key, value, of in _PAIR.findall(match["rest"])}
    counts = {key: value for key, (value, _) in pairs.items()}
    requests = counts.get("bs", UNKNOWN)
    tokens = counts.get("toks", counts.get("tok", UNKNOWN))
    if phase == "mixed":
        prefills, decodes = counts.get("c", UNKNOWN), counts.get("g", UNKNOWN)
    else:
        prefills, decodes = (requests, 0) if phase == "prefill" else (0, requests if phase == "decode" else 0)
    plain = phase == "decode" and mode == "decode" and tokens == UNKNOWN

    def count(key: str, owner: str, alone: int = UNKNOWN) -> int:
        if (prefills if owner == "c" else decodes) == 0:
            return 0
        return counts.get(f"{owner}_{key}", counts.get(key, alone) if phase != "mixed" else UNKNOWN)

    return Batch(
        phase=phase,
        engine=engine,
        requests=requests,
        prefill_requests=prefills,
        prefill_tokens=count("sq", "c", tokens),
        prefill_context=count("sk", "c"),
        prefill_squares=count("sqsq", "c"),
        prefill_pairs=count("sqsk", "c"),
        decode_requests=decodes,
        decode_tokens=count("sq", "g", requests if plain else tokens),
        decode_context=count("sk", "g"),
        decode_pairs=count("sqsk", "g"),
        graph_requests=pairs.get("bs", (0, UNKNOWN))[1],
    )


def _by_new_requests(engine: str, match: re.Match[str]) -> Batch:
    """Of a name that parts requests into those that begin and those that go on, be it with their prompt or after it."""
    begin, more = int(match["new"]), int(match["cached"])
    return Batch(phase=_phase(begin, more), engine=engine, requests=begin + more)


_Reading = Callable[[str, re.Match[str]], Batch | None]
#: engine, its names of steps, and what reads them
FORMS: tuple[tuple[str, re.Pattern[str], _Reading], ...] = (
    (
        "vLLM",
        re.compile(
            r"execute_\d+_context_(?P<c>\d+)\(sq(?P<c_sq>\d+)sk(?P<c_sk>\d+)sqsq(?P<c_sqsq>\d+)sqsk(?P<c_sqsk>\d+)\)"
            r"_generation_(?P<g>\d+)\(sq(?P<g_sq>\d+)sk(?P<g_sk>\d+)sqsq\d+sqsk(?P<g_sqsk>\d+)\)"
        ),
        _by_counts,
    ),
    (
        "vLLM",
        re.compile(
            r"execute_context_(?P<c>\d+)\((?P<c_sq>\d+)(?:_\d+)?\)_generation_(?P<g>\d+)\((?P<g_sq>\d+)(?:_\d+)?\)"
        ),
        _by_counts,
    ),
    ("vLLM", re.compile(r"execute_new_(?P<new>\d+)_cached_(?P<cached>\d+)"), _by_new_requests),
    ("SGLang", re.compile(r"step\[(?P<mode>\w+)(?P<rest>(?:\s[^\]]*)?)\]"), _by_keys),
    ("ATOM", re.compile(r"(?P<mode>prefill|decode)\[(?P<rest>bs=.*)\]"), _by_keys),
    (
        "TensorRT-LLM",
        re.compile(
            r"(?:\[Executor\] )?_forward_step(?: \d+)?: (?P<c>\d+) ctx reqs(?:, (?P<c_sq>\d+) ctx tokens)?, "
            r"(?P<g>\d+) gen reqs"
        ),
        _by_counts,
    ),
    (
        "diffusion",
        re.compile(r"denois(?:e|ing)[ _]?step[ _#]?\d+", re.IGNORECASE),
        lambda engine, _: Batch(phase="denoise", engine=engine),
    ),
)
_BEGINS = re.compile(r"execute_|step\[|prefill\[|decode\[|(?:\[Executor\] )?_forward_step|denois", re.IGNORECASE)
_FIELDS = {*Batch.__struct_fields__} - {"phase", "engine"}
_VERIFIES = re.compile(r"step\[TARGET_VERIFY\b")
_MAY_DRAFT = re.compile(r"step\[DECODE\b")


def batch_of(name: str) -> Batch | None:
    """What a name says by :data:`FORMS`; None if it is no step of an engine."""
    if not _BEGINS.match(name):
        return None
    for engine, pattern, reading in FORMS:
        if match := pattern.fullmatch(name, 0, LOOKED_AT):
            return reading(engine, match)
    return None


def step_rows(rows: Sequence[Mapping[str, Any]]) -> list[tuple[re.Pattern[str], Phase]]:
    """The user's own names of steps: each a pattern, whose groups are called as the fields of :class:`Batch`, and a
    phase.

    Raises:
        UsageError: a row has another form.
    """
    patterns = []
    for row in rows:
        if REGION in row and len(row) == 1:
            text = re.escape(str(row[REGION])).replace(r"\*", ".*").replace(r"\?", ".")
            patterns.append((re.compile(text, re.DOTALL), PHASES[-1]))
            continue
        if not isinstance(row.get("pattern"), str) or row.keys() - {"pattern", "phase"}:
            raise UsageError(f"[[{TABLE}]] needs pattern = '…', and may have phase = '…'")
        phase = next((each for each in PHASES if each == row.get("phase", PHASES[-1])), None)
        if phase is None:
            raise UsageError(f"[[{TABLE}]] phase {row['phase']!r}: must be one of {', '.join(PHASES)}")
        try:
            pattern = re.compile(row["pattern"])
        except re.error as error:
            raise UsageError(f"[[{TABLE}]] {row['pattern']}: {error}") from error
        if unknown := pattern.groupindex.keys() - _FIELDS:
            raise UsageError(f"[[{TABLE}]] {row['pattern']}: no such count: {', '.join(sorted(unknown))}")
        patterns.append((pattern, phase))
    return patterns


class EngineSteps(Struct, frozen=True):
    """The annotations of an engine's steps, in the order of time; those of two threads may overlap."""

    row: EventRows
    batch_of: Mapping[int, Batch]  #: by the code of the name
    by_user: bool  #: whether the user's own rows name them
    is_region: bool  #: whether they are as long as the annotations, and do not last until the next


@derived
def engine_steps(trace: Trace) -> EngineSteps:
    """The steps of an engine, on the host, or on devices where the host has none. There may be none."""
    rules, strings = step_rows(tables_of(trace).get(TABLE, ())), trace.strings
    batches: dict[int, Batch] = {}
    for pattern, phase in rules:
        for code, name in enumerate(strings):
            if code not in batches and (match := pattern.fullmatch(name, 0, LOOKED_AT)):
                groups = match.groupdict().items()
                counts: dict[str, Any] = {key: int(text) for key, text in groups if text and text.isdecimal()}
                is_mixed = phase == PHASES[-1] and {"prefill_requests", "decode_requests"} <= counts.keys()
                of_counts = _phase(counts["prefill_requests"], counts["decode_requests"]) if is_mixed else phase
                batches[code] = Batch(phase=of_counts, **counts)
    by_user = bool(batches)
    if not by_user:
        batches = {code: batch for code, name in enumerate(strings) if (batch := batch_of(name)) is not None}
        if any(_VERIFIES.match(strings[code]) for code in batches):
            batches = {code: batch for code, batch in batches.items() if not _MAY_DRAFT.match(strings[code])}
        engines = {batch.engine for batch in batches.values()}
        if len(engines) > 1:  # the annotation within another's form is the engine's own
            engine = next((name for name in ("SGLang", "ATOM") if name in engines), min(engines))
            batches = {code: replace(batch, engine=engine) for code, batch in batches.items()}
    rows = np.empty(0, EventRow)
    for categories in ((Category.USER_ANNOTATION, Category.CPU_OP), (Category.GPU_USER_ANNOTATION,)):
        if batches and not len(rows):
            rows = trace.events.slices_of(*categories)
            rows = rows[np.isin(trace.events.name[rows], list(batches))]
    is_region = any(REGION in row for row in tables_of(trace).get(TABLE, ()))
    return EngineSteps(rows, batches, by_user, is_region)
