"""What a rule's answer says, in the words of a trace."""

from __future__ import annotations

from augment.core.text import Words
from augment.core.trace import Trace
from augment.diagnosis.rule import Answer, Found
from augment.diagnosis.wording import words


def title_of(answer: Found, trace: Trace | None = None) -> str:
    return answer.seen.title(Words() if trace is None else words(trace))


def advice_of(answer: Found, trace: Trace | None = None) -> str:
    return answer.seen.advice(Words() if trace is None else words(trace))


def evidence_of(answer: Found, trace: Trace | None = None) -> list[str]:
    return [*answer.seen.evidence(Words() if trace is None else words(trace))]


def problem_of(answer: Answer) -> Found:
    assert isinstance(answer, Found), answer
    return answer
