"""What scores of labels share: labels in range, and predictions that fit them."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _checks
from jaxcp._arrays import is_concrete
from jaxcp._numbers import as_float


def in_range(score: Array, y: Array, k: int) -> Array:
    """Returns the score of label `y`, +inf if it is none of 0, ..., k - 1."""
    y = y.astype(int) if hasattr(y, "astype") else y  # narrow types cannot hold k
    return jnp.where((y >= 0) & (y < k), score, jnp.inf)


def check_probabilities(p: Array, mask: Array | None) -> None:
    """Raises ValueError unless concrete rows are probabilities."""
    check_matrix(p)
    expected = "probabilities >= 0 (of logits: jax.nn.softmax)"
    _checks.check_values(lambda v: v >= 0, expected, p, mask)
    if is_concrete(p):
        rounding = max(1e-3, 8 * float(jnp.finfo(as_float(p).dtype).eps))
        sums = np.asarray(p).sum(axis=1, dtype=float)
        expected = "probabilities that sum to 1 in each row"
        _checks.check_values(lambda s: abs(s - 1) <= rounding, expected, sums, mask)


def check_targets(p: Array, y: Array | None, mask: Array | None) -> None:
    """Raises ValueError unless labels, if given, are in range of the columns."""
    check_matrix(p)
    if y is not None:
        _checks.check_vectors(y=y)
        _checks.check_labels("y", y, p.shape[1], mask)


def check_matrix(p: Array) -> None:
    """Raises ValueError unless there is a column for each of at least one label."""
    shape = jax.tree.map(jnp.shape, p)
    if not isinstance(p, jax.Array | np.ndarray) or p.ndim != 2 or p.shape[1] == 0:
        raise ValueError(
            f"expected preds of shape (n, k), one column a label, got {shape}"
        )
