"""Pieces of the line that touch, as one."""

from __future__ import annotations

from jax import Array

from jaxcp.sets._sweeping import join
from jaxcp.sets.unions import Intervals


def joined(lower: Array, upper: Array) -> Intervals:
    """Returns closed pieces, each (l,), as a union of pieces that do not meet.

    Pieces come in increasing order of their lower ends; crossed ones are empty, and
    those left out come last, as (inf, -inf). A NaN end makes the whole line.
    """
    return Intervals(*join(lower, upper))
