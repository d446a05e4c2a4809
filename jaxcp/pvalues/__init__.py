"""p-values: one after the other, tested together, and bets against them."""

from jaxcp.pvalues.evalues import e_benjamini_hochberg, e_values
from jaxcp.pvalues.familywise import bonferroni, fixed_sequence, holm
from jaxcp.pvalues.graphs import graphical
from jaxcp.pvalues.martingales import MixtureMartingale, PowerMartingale, SimpleJumper
from jaxcp.pvalues.multiple import (
    benjamini_hochberg,
    fisher_test,
    simes_test,
    storey_benjamini_hochberg,
)
from jaxcp.pvalues.selecting import selection_p_values
from jaxcp.pvalues.sequential import sequential_p_values
from jaxcp.pvalues.watching import alarm_level, watch
from jaxcp.pvalues.weighted_selecting import weighted_selection

__all__ = [
    "MixtureMartingale",
    "PowerMartingale",
    "SimpleJumper",
    "alarm_level",
    "benjamini_hochberg",
    "bonferroni",
    "e_benjamini_hochberg",
    "e_values",
    "fisher_test",
    "fixed_sequence",
    "graphical",
    "holm",
    "selection_p_values",
    "sequential_p_values",
    "simes_test",
    "storey_benjamini_hochberg",
    "watch",
    "weighted_selection",
]
__dir__ = __all__.copy
