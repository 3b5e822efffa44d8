"""Analyses of a whole job, from the summaries of its ranks: clocks, waits, stragglers, the critical path.

A rank's :mod:`summary` is made during its conversion. :mod:`matching` matches collectives across ranks;
:mod:`alignment` fits the clocks to them; :mod:`waits` splits each collective into wait and transfer; :mod:`path` finds
the critical path. :mod:`answer` combines the results; :mod:`tracks` and :mod:`path_drawing` draw them on a rank's
timeline.
"""
