"""Operations and bytes of operators, what devices can do at most, and what a step achieved of it."""
