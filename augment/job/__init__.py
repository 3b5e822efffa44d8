"""What can only be asked of a whole job: clocks, waiting and moving, who is late. From summaries of ranks, no traces.

A rank's :mod:`summary` is made where its trace is converted. Its collectives are matched with the other ranks'
(:mod:`matching`), which gives the clocks (:mod:`alignment`), hence what was waiting (:mod:`waits`), hence the figures;
:mod:`answer` puts them together, and :mod:`drawing` draws them on a rank's timeline.
"""
