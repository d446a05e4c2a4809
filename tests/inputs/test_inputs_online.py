"""Wrong calls of online methods."""

import jax
import jax.numpy as jnp
import numpy as np

import jaxcp
from jaxcp import online, scores
from rows import ABSOLUTE, RIDGE, P, X, refuses


def stream(method, past=X, preds=X, y=X, alpha=0.1, **options):
    def run():
        state = method.init(past, alpha, **options)
        return online.run(method, state, preds, y, alpha)

    return run


ACI = online.ACI(ABSOLUTE, 0.1)
RISK = online.RiskMonitor(0.1, 0.05)
DTACI = online.DtACI(ABSOLUTE, jnp.array([0.1, 0.2]))
WINDOW = online.SlidingWindow(ABSOLUTE)
_RANK = r"rank as method.rank\(state, alpha\) returns it, got "


@jaxcp.pytree
class NoScore(online.Stream):
    """A method that forgot its score."""

    def init(self, scores, alpha, *, mask=None):
        return jnp.max(scores)

    def threshold(self, state, rank):
        return state

    def learn(self, state, pred, y, rank, q):
        return state


WRONG = {
    "a target that never came": (
        stream(ACI, y=X.at[5].set(jnp.nan)),
        r"y without NaN, got nan at 5; .* predict\(state, pred, alpha\) gives the set",
    ),
    "one target that never came": (
        lambda: ACI.update(ACI.init(X, 0.1), 0.0, np.nan, 0.1),
        r"y without NaN, got nan at 0; a target that never came teaches nothing",
    ),
    "labels by name": (
        stream(online.ACI(scores.LAC(), 0.1), X / 10, P, list("abc") * 3),
        r"y as numbers, got text \(a\); .*online.run, \[\*model.classes_\].index\(",
    ),
    "complex losses": (
        lambda: RISK.run(np.array([1j])),
        "losses as real numbers, got complex",
    ),
    "one complex loss": (
        lambda: RISK.update(RISK.init(), 1j),
        "losses as real numbers, got complex",
    ),
    "alpha for a rank": (
        lambda: ACI.learn(ACI.init(X, 0.1), X[0], X[1], 0.1, X[2]),
        _RANK + "0.1",
    ),
    "alpha for a rank, of a program": (
        lambda: jax.jit(DTACI.threshold)(DTACI.init(X, 0.1), 0.1),
        _RANK,
    ),
    "alpha for the rank of a window": (
        lambda: WINDOW.threshold(WINDOW.init(X, 0.1), 0.1),
        _RANK + "0.1",
    ),
    "a method without a score": (
        stream(NoScore()),
        "a method with a score, got NoScore without; write score: jaxcp.typing.Score",
    ),
    "method as a class": (
        lambda: online.run(online.ACI, None, X, X, 0.1),
        "method as a value, got the class",
    ),
    "state of another method": (
        lambda: online.run(
            online.ACI(ABSOLUTE, 0.1), online.PID(ABSOLUTE, 0.1).init(X, 0.1), X, X, 0.1
        ),
        "a state of ACI, ACIState, got PIDState",
    ),
    "several steps": (
        stream(online.PID(ABSOLUTE, X)),
        r"step_size of shape \(\), got \(9,\); use jax.vmap",
    ),
    "several alphas": (
        stream(online.SlidingWindow(ABSOLUTE), alpha=[0.1, 0.2]),
        r"alpha of shape \(\), got \(2,\)",
    ),
    "scorecaster with a mask": (
        stream(online.PID(ABSOLUTE, 0.1, scorecaster=RIDGE), mask=X > 2),
        "no mask with a scorecaster",
    ),
    "no past scores": (
        stream(online.ACI(ABSOLUTE, 0.1), past=X[:0]),
        r"past scores of shape \(n,\) or \(n, c\), at least one, got \(0,\)",
    ),
    "past scores of another score": (
        stream(online.ACI(scores.Signed(), 0.1)),
        r"past scores with components \(2,\), as from one example, got \(\)",
    ),
    "long window": (
        stream(online.ACI(ABSOLUTE, 0.1, window=10)),
        "at least window = 10 past scores, got 9",
    ),
    "mask of another length": (
        stream(online.ACI(ABSOLUTE, 0.1), mask=jnp.ones(8, bool)),
        "mask with 9 rows like scores, got 8",
    ),
    "negative step": (stream(online.ACI(ABSOLUTE, -0.1)), "step_size >= 0"),
    "no step of SF-OGD": (stream(online.SFOGD(ABSOLUTE, 0.0)), "step_size > 0"),
    "still": (
        stream(online.SlidingWindow(ABSOLUTE, every=0)),
        "every as an int >= 1, got 0",
    ),
    "growing": (stream(online.NexCP(ABSOLUTE, 1.1)), r"decay in \(0, 1\], got 1.1"),
    "rising": (stream(online.PID(ABSOLUTE, 1, decay=-1)), r"decay in \[0, 1\), got -1"),
    "too fast": (stream(online.PID(ABSOLUTE, 1, decay=1)), r"decay in \[0, 1\), got 1"),
    "no width": (stream(online.Similar(ABSOLUTE, 0.0)), "bandwidth > 0, got 0"),
    "no lags": (stream(online.Similar(ABSOLUTE, 1, 0)), "lags as an int >= 1, got 0"),
    "no window": (stream(online.SPCI(1, 0)), "window as an int >= 1, got 0"),
    "never": (stream(online.SPCI(1, every=0)), "every as an int >= 1, got 0"),
    "one level": (
        stream(online.SPCI(1, num_levels=1)),
        "num_levels as an int >= 2, got 1",
    ),
    "alpha of each side": (
        stream(online.SPCI(1), alpha=[0.1, 0.1]),
        r"alpha of shape \(\), got \(2,\)",
    ),
    "three components": (
        lambda: online.SPCI(1).init(jnp.ones((9, 3)), 0.1),
        r"past scores of shape \(9, 2\), got \(9, 3\)",
    ),
    "unequal lengths": (
        stream(online.PID(ABSOLUTE, 0.1), y=X[:8]),
        "y with 9 rows like preds, got 8",
    ),
    "NaN": (
        stream(online.PID(ABSOLUTE, 0.1), y=X.at[1].set(jnp.nan)),
        "y without NaN, got nan at 1",
    ),
    "alpha": (stream(online.PID(ABSOLUTE, 0.1), alpha=1), r"alpha in \(0, 1\), got 1"),
    "a loss that is none": (
        lambda: online.PID(ABSOLUTE, 0.1, loss=0.5),
        "loss as a function, got 0.5",
    ),
    "a bound of 0": (
        lambda: online.PID(ABSOLUTE, 0.1, loss=jnp.sum, bound=0),
        "finite bound > 0, got 0",
    ),
    "alpha beyond the bound": (
        stream(online.PID(ABSOLUTE, 0.1, loss=jnp.sum, bound=3.0), alpha=3),
        r"alpha in \(0, 3\), below the bound of the loss, got 3",
    ),
    "step size and score swapped": (
        lambda: online.ACI(0.1, ABSOLUTE).init(X, 0.1),
        r"step_size as a number, got Absolute\(\)",
    ),
}

test_wrong_calls_say_what_was_expected = refuses(WRONG)
