"""The version, in a place that everything may import: what is installed is named after it."""

__version__ = "0.1.0"
