"""What can only be asked of a whole job: clocks, waits, who is late, the critical path. From summaries.

A rank's :mod:`summary` is made where its trace is converted. Its collectives are matched with the other ranks'
(:mod:`matching`), which gives the clocks (:mod:`alignment`), hence what was waiting (:mod:`waits`), hence the figures
and what decided when the job was done (:mod:`path`); :mod:`answer` puts them together, and :mod:`drawing` and
:mod:`path_drawing` draw them on a rank's timeline.
"""
