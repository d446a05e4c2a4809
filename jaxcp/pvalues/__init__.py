"""p-values: one after the other, tested together, and bets against them."""

from jaxcp.pvalues.familywise import (
    bonferroni,
    fixed_sequence,
    graphical,
    holm,
)
from jaxcp.pvalues.martingales import (
    MixtureMartingale,
    PowerMartingale,
    SimpleJumper,
)
from jaxcp.pvalues.multiple import (
    benjamini_hochberg,
    fisher_test,
    simes_test,
    storey_benjamini_hochberg,
)
from jaxcp.pvalues.sequential import sequential_p_values
from jaxcp.pvalues.watching import alarm_level, watch

__all__ = [
    "MixtureMartingale",
    "PowerMartingale",
    "SimpleJumper",
    "alarm_level",
    "benjamini_hochberg",
    "bonferroni",
    "fisher_test",
    "fixed_sequence",
    "graphical",
    "holm",
    "sequential_p_values",
    "simes_test",
    "storey_benjamini_hochberg",
    "watch",
]
__dir__ = __all__.copy
