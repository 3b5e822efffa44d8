"""Conversion of many files: find inputs (:mod:`inputs`), convert each (:mod:`conversion`), run all (:mod:`execution`).

Nothing here prints, and nothing heavy is loaded before the first conversion.
"""
