"""Conversion of many files: find the inputs (:mod:`inputs`), convert each (:mod:`convert`), run all (:mod:`pool`).

Nothing here prints, and nothing heavy is loaded before the first conversion.
"""
