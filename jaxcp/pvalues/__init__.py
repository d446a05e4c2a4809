"""p-values: one after the other, tested together, and bets against them."""

from jaxcp._loading import lazily

with lazily(globals()):
    from jaxcp.pvalues.conformal import e_benjamini_hochberg, e_values
    from jaxcp.pvalues.martingales import (
        MixtureMartingale,
        PowerMartingale,
        SimpleJumper,
        alarm_level,
        permutation_test,
        sequential_p_values,
        watch,
    )
    from jaxcp.pvalues.multiple import (
        benjamini_hochberg,
        bonferroni,
        fisher_test,
        fixed_sequence,
        graphical,
        holm,
        simes_test,
        storey_benjamini_hochberg,
    )
    from jaxcp.pvalues.selecting import selection_p_values, weighted_selection

# fmt: off
__all__ = [
    "MixtureMartingale", "PowerMartingale", "SimpleJumper", "alarm_level",
    "benjamini_hochberg", "bonferroni", "e_benjamini_hochberg", "e_values",
    "fisher_test", "fixed_sequence", "graphical", "holm", "permutation_test",
    "selection_p_values", "sequential_p_values", "simes_test",
    "storey_benjamini_hochberg", "watch", "weighted_selection",
]
# fmt: on
