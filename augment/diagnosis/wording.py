"""How findings and answers become text, for whatever shows them: titles, advice and evidence, in the words of a run."""

from __future__ import annotations

from collections.abc import Sequence

from augment.core import ON_DEVICE, Trace
from augment.core.text import Words, words_of
from augment.diagnosis.devices import vendor
from augment.diagnosis.rule import Answer, Finding, Fine, Found


def title(words: Words, finding: Finding) -> str:
    """What was found, and what its cure would save: ``…; hiding it would save up to 3.8 ms per step (8.8 %)``."""
    answer = finding.found
    text = answer.seen.title(words)
    if answer.saved_ns is None:
        return text
    saving = words.saving(answer.saved_ns, "this fix alone" if finding.alone else "")
    bound = "up to " if answer.at_most else "at least " if answer.seen.at_least else ""
    limit = "" if finding.limit is None else f"; beyond that {_LIMITS[finding.limit]} the limit"
    return f"{text}; {answer.seen.cure(words)} would save {bound}{saving}{limit}"


_LIMITS = {
    "host": "the host is",
    "computing": "computing is",
    "communication": "communication is",
    "copies": "copies are",
}


def advice(words: Words, finding: Finding) -> str:
    """What to change."""
    return finding.found.seen.advice(words)


def evidence(words: Words, finding: Finding) -> Sequence[str]:
    """More that was seen."""
    return finding.found.seen.evidence(words)


def answer_text(words: Words, answer: Answer) -> str:
    """What a rule says that found nothing; of a finding its title without the saving."""
    if isinstance(answer, Found):
        return answer.seen.title(words)
    if not isinstance(answer, Fine):
        return words.fill(answer.why)
    return words.fill(answer.seen) if isinstance(answer.seen, str) else answer.seen.fine(words, answer.saved_ns)


def track_of(trace: Trace, row: int) -> str:
    """The name of the thread or stream of a row; empty for row -1."""
    if row < 0:
        return ""
    track = trace.tracks[trace.events.track[row]]
    if trace.events.category[row] in ON_DEVICE:
        return f"{words_of(vendor(trace)).gpu} {track.device} stream {track.stream}"
    return track.thread_name or f"thread {track.tid}"
