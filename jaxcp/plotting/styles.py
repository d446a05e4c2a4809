"""The look of pictures, as matplotlib's settings."""

from __future__ import annotations

from typing import Any

from jaxcp.plotting._axes import PALETTE, pyplot

_INK = "#757575"  # contrast 4.6 with white and 4.6 with black
_LOOK = {
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "axes.formatter.use_mathtext": False,  # numbers in the font of the words
    "axes.labelsize": 9,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "figure.constrained_layout.use": True,
    "figure.dpi": 110,
    "figure.facecolor": "none",
    "figure.figsize": (5.5, 3.6),
    "font.family": "sans-serif",
    "font.sans-serif": ["Helvetica", "Arial", "Liberation Sans", "DejaVu Sans"],
    "font.size": 9,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "legend.handlelength": 1.5,
    "lines.linewidth": 1.4,
    "pdf.fonttype": 42,  # text in PDF stays text, its fonts come along
    "ps.fonttype": 42,
    "savefig.bbox": "tight",
    "savefig.dpi": 200,
    "savefig.facecolor": "auto",
    "svg.fonttype": "none",  # text in SVG stays text
    "svg.hashsalt": "jaxcp",  # names in SVG are the same each time
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
}
_INKED = (
    "axes.edgecolor",
    "axes.labelcolor",
    "boxplot.boxprops.color",
    "boxplot.capprops.color",
    "boxplot.flierprops.color",
    "boxplot.flierprops.markeredgecolor",
    "boxplot.whiskerprops.color",
    "grid.color",
    "text.color",
    "xtick.color",
    "ytick.color",
)


def style(*, ink: str | None = None, **overrides: Any) -> dict[str, Any]:
    """Returns matplotlib's settings for pictures in papers and on pages.

    Colors of Okabe and Ito, which color-blind readers tell apart; no frame on top and
    on the right; a transparent background, and an ink of text, axes and dashed lines.
    The default ink is a gray that reads on white and on black pages. Text stays text in
    SVG and PDF. Nothing is set: hand the dict to `plt.rcParams.update`,
    `plt.style.use` or `plt.rc_context`.

    Args:
      ink: A color of matplotlib. Defaults to a gray; "black" is for paper.
      overrides: Settings of your own, by matplotlib's name with underscores for dots
        (`font_size=11`), or as `**{"font.size": 11}`.

    Returns:
      A dict of rcParams.

    Raises:
      ValueError: for a setting that matplotlib does not have.

    References:
      Okabe, Ito, Color Universal Design, 2008.

    See also:
      plotting.plot_intervals

    Example:
      >>> import matplotlib.pyplot as plt
      >>> with plt.rc_context(style(ink="black", font_size=11)):
      ...     figure, ax = plt.subplots()
      >>> style()["svg.fonttype"]
      'none'
    """
    from cycler import cycler

    look: dict[str, Any] = _LOOK | dict.fromkeys(_INKED, ink or _INK)
    look["axes.prop_cycle"] = cycler(color=PALETTE)
    names = {name.replace(".", "_"): name for name in pyplot().rcParams}
    for key, value in overrides.items():
        name = names.get(key.replace(".", "_"))
        if name is None:
            raise ValueError(
                f"expected settings that matplotlib has, got {key!r}; "
                "matplotlib.rcParams lists them"
            )
        look[name] = value
    return look
