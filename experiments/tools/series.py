"""Hourly series for the stream methods: solar radiation, or a generated one."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

SOLAR_FEATURES = [
    "DNI",
    "Dew Point",
    "Surface Albedo",
    "Wind Speed",
    "Relative Humidity",
    "Temperature",
    "Pressure",
]


def solar(folder: Path) -> tuple[Array, Array]:
    """Returns a year of weather in Atlanta, (8760, 7), and diffuse radiation, W/m2."""
    path = folder / "solar_atlanta.csv"
    if not path.exists():
        raise FileNotFoundError(f"expected {path}, hourly rows from the NSRDB")
    rows = np.genfromtxt(path, delimiter=",", skip_header=2, names=True)
    columns = [rows[name.replace(" ", "_")] for name in SOLAR_FEATURES]
    return jnp.asarray(np.stack(columns, axis=1), float), jnp.asarray(rows["DHI"])


def autoregression(key: Array, n: int) -> tuple[Array, Array]:
    """Returns lagged values (n, 2) and values of a series whose noise doubles half way.

    y_t = 0.7 y_{t-1} + 0.2 sin(2 pi t / 24) + e_t.
    """
    hours = jnp.arange(n + 1)
    noise = jax.random.normal(key, (n + 1,)) * jnp.where(hours < n / 2, 0.5, 1.0)
    daily = jnp.sin(2 * jnp.pi * hours / 24)

    def step(last, now):
        y = 0.7 * last + 0.2 * now[0] + now[1]
        return y, y

    y = jax.lax.scan(step, jnp.zeros(()), (daily, noise))[1]
    return jnp.stack([y[:-1], daily[1:]], axis=1), y[1:]
