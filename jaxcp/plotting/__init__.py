"""Pictures of sets, distributions, probabilities and coverage; they need matplotlib.

Helpers take axes (or None) and return axes. They take the color of text for dashed
lines, so that they look right in any style; `style` is one for papers and for light and
dark pages.
"""

from jaxcp._loading import lazily

with lazily(globals()):
    from jaxcp.plotting._axes import style
    from jaxcp.plotting.bands import plot_band
    from jaxcp.plotting.coverage import (
        plot_coverage,
        plot_coverage_curve,
        plot_group_coverage,
        plot_monitor,
        plot_p_values,
        plot_rolling_coverage,
        plot_size_stratified_coverage,
    )
    from jaxcp.plotting.distributions import (
        plot_cdf,
        plot_fan,
        plot_pit,
        plot_reliability,
    )
    from jaxcp.plotting.intervals import plot_intervals, plot_sensitivity, plot_widths
    from jaxcp.plotting.masks import plot_masks
    from jaxcp.plotting.regions import plot_boxes, plot_label_sets, plot_region
    from jaxcp.plotting.sizes import plot_comparison, plot_sizes

# fmt: off
__all__ = [
    "plot_band", "plot_boxes", "plot_cdf", "plot_comparison", "plot_coverage",
    "plot_coverage_curve", "plot_fan", "plot_group_coverage", "plot_intervals",
    "plot_label_sets", "plot_masks", "plot_monitor", "plot_p_values", "plot_pit",
    "plot_region", "plot_reliability", "plot_rolling_coverage", "plot_sensitivity",
    "plot_size_stratified_coverage", "plot_sizes", "plot_widths", "style",
]
# fmt: on
