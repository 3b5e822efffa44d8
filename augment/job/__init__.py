"""Analyses of a whole job, from the summaries of its ranks: clocks, waits, stragglers, the critical path.

A rank's :mod:`ranks.summary` is made during its conversion. :mod:`matching` matches collectives across ranks, and fits
the clocks to them; :mod:`collectives` splits each collective into wait and transfer; :mod:`path` finds the critical
path; :mod:`verdict` says who is late. :mod:`answer` combines the results, :mod:`rank_answers` tells them to each rank,
:mod:`timeline` draws them.
"""
