"""Coverage simulations: replicates of one trial, and the law they should follow."""

from collections.abc import Callable, Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from jaxcp import _checks
from jaxcp._types import PyTree
from jaxcp.ranks import conformal_rank


def simulate(
    trial: Callable[[Array], PyTree],
    key: Array,
    num_trials: int,
    *,
    batch_size: int | None = None,
    progress: bool = False,
) -> PyTree:
    """Returns the results of independent replicates of a trial, from outside of jit.

    Replicate i gets the key `fold_in(key, i)`, so that the results do not depend on the
    batch size. Batches run as one jitted, vmapped program each; define `trial` once and
    a second call compiles nothing.

    Args:
      trial: Pure function of a key that returns a pytree of arrays.
      key: Random key, from `jax.random.key`.
      num_trials: Number of replicates r.
      batch_size: Replicates in one program, a matter of memory and speed only. Defaults
        to 1000, or `num_trials` if that is less.
      progress: Whether to show a progress bar (needs tqdm).

    Returns:
      The results of `trial` with a leading axis r.

    Raises:
      ValueError: if `num_trials` is negative or `batch_size` is not positive.

    Example:
      >>> trial = lambda key: {"mean": jnp.mean(jax.random.normal(key, (10,)))}
      >>> simulate(trial, jax.random.key(0), num_trials=500)["mean"].shape
      (500,)
    """
    _checks.check_count("num_trials", num_trials, 0)
    if batch_size is not None:
        _checks.check_count("batch_size", batch_size, 1)
    size = max(min(batch_size or 1000, num_trials), 1)
    if num_trials == 0:
        shapes = jax.eval_shape(partial(_run, trial), key, jnp.arange(1))
        return jax.tree.map(lambda s: jnp.zeros((0, *s.shape[1:]), s.dtype), shapes)
    batches = [
        jax.device_get(_run(trial, key, start + jnp.arange(size)))
        for start in _starts(num_trials, size, progress)
    ]
    # On the host: a program that joins a thousand arrays would take long to compile.
    return jax.tree.map(
        lambda *parts: jnp.asarray(np.concatenate(parts)[:num_trials]), *batches
    )


def coverage_law(n: int, alpha: ArrayLike) -> tuple[int, int]:
    """Returns the Beta law of split coverage given the calibration set, for any n.

    With continuous scores P(Y in set | calibration set) ~ Beta(k, n + 1 - k), k the
    conformal rank; its mean k / (n + 1) is the exact coverage.

    Args:
      n: Number of calibration scores.
      alpha: Miscoverage level in (0, 1), a number.

    Returns:
      (a, b) of the Beta law. b = 0 means that sets are infinite: coverage is 1.

    Raises:
      ValueError: if `alpha` is outside (0, 1) or n is negative.

    References:
      Vovk, Conditional Validity of Inductive Conformal Predictors, 2012.

    Example:
      >>> coverage_law(99, 0.1)
      (90, 10)
    """
    _checks.check_count("n", n, 0)
    if np.ndim(alpha):
        raise ValueError(f"expected alpha of shape (), got {np.shape(alpha)}")
    k = int(conformal_rank(n, alpha))
    return k, n + 1 - k


def _starts(num_trials: int, size: int, progress: bool) -> Iterator[int]:
    if not progress:
        yield from range(0, num_trials, size)
        return
    from tqdm.auto import tqdm

    with tqdm(total=num_trials, unit="trial", unit_scale=True) as bar:
        for start in range(0, num_trials, size):
            yield start
            bar.update(min(size, num_trials - start))


@partial(jax.jit, static_argnums=0)
def _run(trial, key, indices):
    return jax.vmap(lambda i: trial(jax.random.fold_in(key, i)))(indices)
