"""Parallel dimensions of a job: which process groups are data, tensor, pipeline or expert parallel; what each costs.

:mod:`names` reads what programs call their groups, :mod:`behaviour` judges groups by what they do, and
:mod:`dimensions` decides. The other modules sum figures up by dimension.
"""
