"""Data with two outputs: real ones from a folder, and generated ones like them."""

import csv
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

NAMES = ["energy", "house"]


def energy(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Returns 768 simulated buildings: 8 properties, and heating and cooling load."""
    table = _read(folder, "energy.csv", "energy efficiency of buildings, UCI")
    x = _columns(table, [f"X{i}" for i in range(1, 9)])
    return x, _columns(table, ["Y1", "Y2"])


def house(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Returns 21,613 sales in King County: 17 properties, and latitude and price."""
    table = _read(folder, "house.csv", "house sales in King County")
    outputs = ["lat", "price"]
    inputs = [name for name in table[0] if name not in ("id", "date", *outputs)]
    return _columns(table, inputs), _columns(table, outputs)


def like_energy(key: Array, n: int) -> tuple[Array, Array]:
    """Returns generated buildings: two loads that vary together, more when larger."""
    key_x, key_y = jax.random.split(key)
    x = jax.random.uniform(key_x, (n, 8))
    base = 10 + 15 * x[:, 4] + 10 * x[:, 0] * x[:, 4] + 5 * x[:, 6]
    shared, own = jax.random.normal(key_y, (2, n))
    spread = 0.05 * base
    heating = base + spread * shared
    cooling = base + 4 * jnp.sin(6 * x[:, 0]) + spread * (0.8 * shared + 0.6 * own)
    return x, jnp.stack([heating, cooling], axis=1)


def _read(folder, name, what):
    path = Path(folder) / name
    if not path.exists():
        raise FileNotFoundError(f"expected {path}, {what}")
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _columns(table, names):
    return np.array([[float(row[name]) for name in names] for row in table])
