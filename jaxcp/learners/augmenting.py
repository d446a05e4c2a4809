"""What fits on n rows say about fits on n + 1, the last one a test point."""

from __future__ import annotations

from jax import Array

from jaxcp._pytree import pytree


@pytree
class Augmented:
    """Fits on n rows and a test point each, as functions of the test point's target y.

    For learners whose predictions are linear in the targets. Let d = (y - preds) /
    spread. The fit on all n + 1 rows has the residual d at the test point, and
    residuals_i - shares_i d at row i. Made by `augmented` of a learner.

    Args:
      preds: Predictions of the fit on n rows, f, shape (m,) or (m, d).
      spread: 1 + g >= 1, shape (m,); one over what the test point's own leverage leaves
        of its residual. +inf where the fit interpolates the test point.
      residuals: y_i - f(x_i) of the fit on n rows, shape (n,) or (n, d); (m, n) or
        (m, n, d) where they depend on the test point.
      shares: v, by how much d moves the residual of each row, shape (m, n).
      rest: 1 minus the leverages of the n rows in the fits on n + 1, shape (m, n) or
        (), or None where they are not known.

    See also:
      full_conformal, typing.Augments, learners.Ridge

    Example:
      >>> from jaxcp.learners import Ridge
      >>> learner = Ridge(0.0)
      >>> x, y = jnp.zeros((3, 0)), jnp.array([1.0, 2.0, 9.0])  # the mean of targets
      >>> of = learner.augmented(learner.prepare(x, y, None), x[:1])
      >>> round(of.preds.item(), 3), round(of.spread.item(), 3)
      (4.0, 1.333)
    """

    preds: Array
    spread: Array
    residuals: Array
    shares: Array
    rest: Array | None = None
