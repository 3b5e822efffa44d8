"""Comparison of a test with a control: what differs, where it comes from, and whether it exceeds the noise."""

from augment.compare.core import Diff, diff

__all__ = ["Diff", "diff"]
