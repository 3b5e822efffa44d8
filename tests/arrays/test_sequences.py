from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from augment.arrays.ordering import sequence_hashes

CODES = st.lists(st.integers(0, 2), max_size=24)
RUNS = st.lists(st.tuples(st.integers(0, 24), st.integers(0, 24)), min_size=1)


@given(CODES, RUNS)
def test_hashes_are_equal_where_sequences_are(codes: list[int], drawn: list[tuple[int, int]]) -> None:
    runs = [sorted((min(a, len(codes)), min(b, len(codes)))) for a, b in drawn]
    hashes = sequence_hashes(
        np.array(codes, np.int32), np.array([run[0] for run in runs]), np.array([run[1] for run in runs])
    )
    sequences = [tuple(codes[start:stop]) for start, stop in runs]
    assert len(set(zip(sequences, hashes.tolist(), strict=True))) == len(set(sequences)) == len(set(hashes.tolist()))
