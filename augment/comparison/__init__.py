"""A test beside a control: what differs, where it comes from, and whether it is more than noise."""

from augment.comparison.core import Diff, diff

__all__ = ["Diff", "diff"]
