"""What sets keep to and what that assumes: words that classes carry, completed here.

A class has `promise` and `assumption`, text with places: {alpha} for the level, {rows}
for how rows of calibration compare with new ones. What is read from the rows of a value
(weights, clusters, groups) and from a call (delta, test weights) is added here.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple

COVERED = "P(Y in set) >= 1 - {alpha}"
HELD_OUT = "rows of calibration and new ones are {rows}, and the model saw neither"
ALL_ROWS = "all rows are {rows}, and the learner takes them in any order"
NO_PROMISE = (
    "expected a rule with words for its promise and its assumption, got none; write "
    'them in its class, as promise = "P(Y in set) >= 1 - {alpha}" and assumption = '
    '"rows are exchangeable"'
)
_UNNAMED = {  # of labels in no group, by their threshold
    None: "",
    "all": ", and for the labels in no group nothing",
    "infinite": ", and always for the labels in no group",
}


class Promise(NamedTuple):
    """What sets keep to, with a place for {alpha}, and if what; "" where nothing is."""

    promise: str
    assumption: str


class Promised:
    """What carries words for what its sets keep to, and prints them."""

    _over = "calibration sets"  # what the promise is an average over
    _distance = "less the weighted distance in total variation"  # with fixed weights

    @property
    def promise(self) -> str:
        """What sets keep to, in words with a place for {alpha}; "" where nothing is.

        How surely, and for which groups, `at(alpha).promise` and `report` add.
        """
        return ""

    @property
    def assumption(self) -> str:
        """What that assumes, in words."""
        return ""

    def _described(self) -> dict[str, str]:
        """Returns what `repr` shows beside the fields."""
        found = Promise("", "")
        with suppress(AttributeError, TypeError):  # parts that are no values
            found = promised(self)
        words = found._asdict() if found.promise else {}
        return {name: text.replace("{alpha}", "alpha") for name, text in words.items()}


def promised(cp: Any, delta: Any = None, ratios: bool | None = None) -> Promise:
    """Returns the promise of what is called with alpha, and its assumption.

    `ratios` says whether weights are likelihood ratios, with those of test points, or
    fixed ones; None where that is not known.
    """
    while not hasattr(cp, "promise") and hasattr(cp, "calibration"):
        cp = cp.calibration
    words, assumption = (getattr(cp, name, "") for name in Promise._fields)
    if not (words and assumption):
        return Promise("", "")
    held = getattr(cp, "calibration", cp)  # cross conformal holds another calibration
    groups, compared = _groups(held), "exchangeable" if delta is None else "i.i.d."
    # Fields of a rule that does not say how rows compare may mean something else.
    weights, clusters = (
        getattr(held, name, None) if "{rows}" in assumption else None
        for name in ("weights", "clusters")
    )
    if clusters is not None:
        words += " for a row of a new cluster"
        words += ", drawn at random among its rows in the group" * bool(groups)
        compared = "those of exchangeable clusters, exchangeable within each"
    elif isinstance(weights, tuple):
        words += " for every true ratio within the bounds"
        compared = "independent, with true ratios within bounds from other rows"
    elif weights is not None:
        fixed = "compared by weights fixed before the data"
        independent = "independent, with true likelihood ratios for weights"
        compared = independent if ratios else fixed
        if ratios is None:
            words += " with true ratios and their test_weights, or with fixed weights"
            compared = f"{independent}, or {fixed}"
        words += f" {cp._distance}" * (not ratios)
    if over := getattr(cp, "_over", Promised._over):
        how = "on average" if delta is None else f"with probability 1 - {delta}"
        words += f", {how} over {over}"
    return Promise(words + groups, assumption.replace("{rows}", compared))


def _groups(cp: Any) -> str:
    """Returns in which groups a promise holds, in words; "" without groups."""
    names = "num_groups", "min_size", "label_groups", "rare"
    count, least, label_groups, rare = (getattr(cp, name, None) for name in names)
    if count is None:
        return ""
    if least is not None:
        return f", in each group of at least {least} rows, and in the others together"
    if label_groups is None:
        return f", in each of {_counted(count)}"
    named = _counted(count - (rare is not None))
    return f", in each of {named} of labels{_UNNAMED[rare]}"


def _counted(count: int) -> str:
    return f"{count} group{'s' * (count != 1)}"
