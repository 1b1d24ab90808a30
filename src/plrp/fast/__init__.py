"""Fast code behind small functions. `reference()` switches it off."""

from .selection import threshold, thresholds
from .switch import reference

__all__ = ["reference", "threshold", "thresholds"]
