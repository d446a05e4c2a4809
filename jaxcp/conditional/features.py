"""Features of inputs for conditional calibration: flags of groups, and functions."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from itertools import combinations_with_replacement
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _arrays, _checks, _names
from jaxcp._numbers import as_float, at_least_single
from jaxcp.typing import ArrayLike, Number


def indicators(
    columns: Any,
    groups: Mapping[Hashable, Iterable[Any]] | None = None,
    *,
    intercept: bool = True,
) -> Array:
    """Returns flags of groups that may overlap, one for each value of each column.

    Args:
      columns: A data frame, or a dict of columns with m values each. What a mask of
        numpy hides is missing, as None is.
      groups: Values by column that are groups, in order: `{"site": ["north", "south"],
        "sex": ["f", "m"]}`, the same for calibration and test rows. Defaults to one
        for each column, which then are flags.
      intercept: Whether the first flag is true in all rows.

    Returns:
      Flags, bool, shape (m, 1 + g) or (m, g): features for `calibrate_conditional`, and
      groups for `metrics.group_coverage`. A value that is none of them, or missing, has
      no flag of its column: with an intercept such rows have the promise for all rows,
      and without one, and no other flag, sets of everything.

    Raises:
      ValueError: if there is no such column, no group, or lengths differ.

    Guarantee:
      With `calibrate_conditional` coverage of 1 - alpha in every group.

    Cost:
      O(m g), on the host.

    See also:
      calibrate_conditional, metrics.group_coverage, conditional.polynomial

    Example:
      >>> rows = {"site": ["north", "south", "north"], "age": [30, 60, 70]}
      >>> rows["old"] = [age > 50 for age in rows["age"]]
      >>> indicators(rows, {"site": ["north", "south"], "old": [True]}).astype(int)
      Array([[1, 1, 0, 0],
             [1, 0, 1, 1],
             [1, 1, 0, 1]], dtype=int32)
      >>> indicators({"old": rows["old"]}).astype(int).tolist()
      [[1, 0], [1, 1], [1, 1]]
    """
    if groups is None:
        columns = {str(k): _checks.flags(str(k), columns[k]) for k in columns}
        groups = {name: [True] for name in columns}
    lists = groups.values() if isinstance(groups, Mapping) else [""]
    is_text = any(isinstance(v, str) for v in lists)
    values = {} if is_text else {name: [*groups[name]] for name in groups}
    if not any(values.values()):
        raise ValueError(
            'expected groups as lists of values by column, {"site": ["north"]}, got '
            f"{groups!r}"
        )
    if missing := [name for name in groups if name not in columns]:
        raise ValueError(f"expected columns {[*groups]}, got none named {missing[0]!r}")
    flags = [_flags(str(name), columns[name], values[name]) for name in values]
    num_rows = _checks.num_rows(**dict(zip(map(str, values), flags, strict=True)))
    first = np.ones((num_rows, int(intercept)), bool)
    return jnp.asarray(np.concatenate([first, *flags], axis=1))


def _flags(name: str, column: Any, values: list[Any]) -> np.ndarray:
    """Returns which of the values each row of a column has; none where it is masked."""
    hidden = np.ma.getmask(column) if np.ma.is_masked(column) else None
    read = _names.on_host if isinstance(column, list | tuple) else _arrays.as_host_array
    column = read(name, column if hidden is None else column.data)
    _checks.check_vectors(**{name: column})
    listed, places = _names.distinct(np.fromiter(values, object, len(values)))
    codes = _names.equal_places(listed, column)
    if hidden is not None:
        codes[hidden] = -1
    return (places[:, None] == codes).T


def fourier(key: Array, x: ArrayLike, num: int, bandwidth: Number) -> Array:
    """Returns random Fourier features: 1, and sqrt(2) cos(x'w + b) of random w and b.

    Products of those of two inputs have the mean of a Gaussian kernel, exp(-|x - z|^2 /
    (2 bandwidth^2)): their span is near the functions that are smooth on this scale.
    Scale x first.

    Args:
      key: Random key: the same one, for x of one width, gives the same functions.
      x: Inputs, shape (m, d), or (m,).
      num: Number of random features, beside the 1.
      bandwidth: Scale of the functions, > 0, in units of x, shape ().

    Returns:
      Features, shape (m, 1 + num).

    Raises:
      ValueError: if x has other axes, `num` is below 1 or `bandwidth` not above 0.

    Cost:
      O(m d num).

    References:
      Rahimi, Recht, Random Features for Large-Scale Kernel Machines, NeurIPS, 2007.

    See also:
      calibrate_conditional, conditional.polynomial, conditional.Gaussian

    Example:
      >>> fourier(jax.random.key(0), jnp.zeros((5, 2)), 3, 1.0).shape
      (5, 4)
    """
    _checks.check_key(key)
    _checks.check_count("num", num, 1)
    bandwidth = _checks.check_number("bandwidth", bandwidth, lambda v: v > 0, "> 0")
    x, (key_w, key_b) = _matrix(x), jax.random.split(key)
    w = jax.random.normal(key_w, (x.shape[1], num), x.dtype) / bandwidth
    b = jax.random.uniform(key_b, (1, num), x.dtype, maxval=2 * np.pi)
    waves = 2**0.5 * jnp.cos(jnp.matmul(x, w, precision="highest") + b)
    return jnp.concatenate([jnp.ones((len(x), 1), x.dtype), waves], axis=1)


def polynomial(x: ArrayLike, degree: int) -> Array:
    """Returns all products of at most `degree` columns, the empty one first.

    1, x_1, ..., x_d, x_1^2, x_1 x_2, ... Subtract the means of x, and scale it, first.

    Args:
      x: Inputs, shape (m, d), or (m,).
      degree: Most factors of a product, >= 0.

    Returns:
      Features, shape (m, p), p = (d + degree)! / (d! degree!).

    Raises:
      ValueError: if x has other axes, or `degree` is below 0.

    Cost:
      O(m p degree).

    See also:
      calibrate_conditional, conditional.fourier

    Example:
      >>> polynomial(jnp.array([2.0, 3.0]), 2)
      Array([[1., 2., 4.],
             [1., 3., 9.]], dtype=float32)
    """
    _checks.check_count("degree", degree, 0)
    x, found = _matrix(x), []
    for count in range(degree + 1):
        for factors in combinations_with_replacement(range(x.shape[1]), count):
            product = jnp.ones(len(x), x.dtype)
            for j in factors:
                product = product * x[:, j]
            found.append(product)
    return jnp.stack(found, axis=1)


def _matrix(x: ArrayLike) -> Array:
    x = at_least_single(as_float(_arrays.as_array("x", x)))
    if x.ndim not in (1, 2):
        raise ValueError(f"expected x of shape (m, d) or (m,), got {x.shape}")
    return x[:, None] if x.ndim == 1 else x
