"""What is wrong with a run: rules look at the derived facts of a trace, and a verdict says it in sentences.

:mod:`~augment.diagnosis.rules` holds a module per rule, :mod:`~augment.diagnosis.rule` their interface.
"""
