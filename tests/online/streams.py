"""The table of streams: a method with its past, and rows of one length."""

from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np

import jaxcp
from jaxcp import online, scores

ABSOLUTE, SIGNED = scores.Absolute(), scores.Signed()
T, D = 24, 5  # one length and one delay for all, so that programs are shared
PAST = np.random.default_rng(0).exponential(size=50).astype("f")
NOISE = np.random.default_rng(1).normal(size=(2, T)).astype("f")
PREDS, Y = NOISE[0], NOISE.sum(axis=0)
NAMES = np.array(["one", "two"])
CODES = (np.arange(T) % 3 == 0).astype(int)
SIDES = np.stack([PAST - 1, 1 - PAST], axis=1)


@jaxcp.pytree
class FadingSteps(online.Stream):
    """Quantile tracking whose steps fade: Angelopoulos, Barber, Bates, 2024."""

    score: jaxcp.typing.Score
    step_size: float = 1.0
    power: float = 0.6

    def init(self, scores, alpha, *, mask=None):
        return jnp.max(scores, axis=0), jnp.zeros((), int)

    def threshold(self, state, alpha):
        return state[0]

    def learn(self, state, pred, y, alpha, q):
        _, steps = state
        step = self.step_size * (steps + 1.0) ** -self.power
        moved = q + step * ((self.score(pred, y) > q) - alpha)
        return moved.astype(q.dtype), steps + 1


@jaxcp._tree.pytree
class LastScore:
    """Forecasts that the next score is the last one."""

    def init(self, scores, alpha):
        return scores[-1], scores[-1]

    def step(self, state, score):
        return score, score


METHODS = {
    "window": online.SlidingWindow(ABSOLUTE),
    "window, every 7": online.SlidingWindow(ABSOLUTE, every=7, empirical=True),
    "nexcp": online.NexCP(ABSOLUTE, 0.97),
    "aci": online.ACI(ABSOLUTE, 0.05),
    "frozen aci": online.ACI(ABSOLUTE, 0.05, window=30, rolling=False),
    "dtaci": online.DtACI(ABSOLUTE, jnp.array([0.01, 0.05, 0.2]), interval=50),
    "tracking": online.PID(ABSOLUTE, 0.3),
    "pid": online.PID(ABSOLUTE, 0.1, 0.5, 2.0),
    "falling": online.PID(ABSOLUTE, 1.0, decay=0.3),
    "similar": online.Similar(ABSOLUTE, 5.0, lags=2, window=150),
    "sf-ogd": online.SFOGD(ABSOLUTE, 3.0),
}


@dataclass(frozen=True)
class Case:
    """A method with the scores before it; its predictions have groups or none."""

    method: Any
    past: np.ndarray = field(default_factory=lambda: PAST)
    groups: np.ndarray | None = None  # by code, or by name

    def start(self, method=None):
        codes = np.arange(len(PAST)) % 2
        options = {} if self.groups is None else {"groups": self.groups[codes]}
        return (method or self.method).init(self.past, 0.1, **options)

    def preds(self, at=slice(None)):
        if self.groups is None:
            return PREDS[at]
        return self.groups[CODES[at]], PREDS[at]

    def run(self, state, first=0, last=T, y=Y, method=None, **delay):
        rows, method = slice(first, last), method or self.method
        return online.run(method, state, self.preds(rows), y[rows], 0.1, **delay)

    def threshold(self, q, t):
        """Returns which of the thresholds of now is that of row t."""
        return q if self.groups is None else q[CODES[t]]


STREAMS = {name: Case(method) for name, method in METHODS.items()} | {
    "components": Case(online.ACI(SIGNED, 0.05), SIDES),
    "scorecaster": Case(online.PID(ABSOLUTE, 0.2, scorecaster=LastScore())),
    "own": Case(FadingSteps(ABSOLUTE)),
    "groups": Case(online.ByGroup(METHODS["aci"], 2), groups=np.arange(2)),
    "names": Case(online.ByGroup(METHODS["aci"], group_names=NAMES), groups=NAMES),
}
