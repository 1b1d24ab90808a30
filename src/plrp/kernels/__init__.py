"""Fast code behind small functions."""

from .selection import threshold, thresholds

__all__ = ["threshold", "thresholds"]
