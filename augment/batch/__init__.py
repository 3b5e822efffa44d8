"""Many files at once: what to convert (:mod:`inputs`), one of them (:mod:`convert`), all of them (:mod:`pool`).

Nothing here prints; nothing heavy is loaded before the first file is converted.
"""
