"""Known faults of real libraries, put in one by one: the certificates catch each.

Every setting returns what the right method covers, and what faulty ones do, on the same
data. A fault must be caught with p < 1e-6, the right method must not be at 1e-4.
"""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scipy import stats

import jaxcp
from jaxcp import certificates, learners, online, scores
from jaxcp.certificates import certificate
from jaxcp.predictive import calibrate_predictive
from jaxcp.quantiles import _regression
from jaxcp.sets import BoundingBox, Interval

pytestmark = pytest.mark.slow

ALPHA, CAUGHT, ALARM = 0.1, 1e-6, 1e-4
SPLIT_SIZE, NUM_TEST = 20, 20
SPLIT_ROWS = slice(SPLIT_SIZE), slice(SPLIT_SIZE, None)


def contains(sets, y):
    return jax.vmap(lambda s, v: s.contains(v))(sets, y)


def thresholds(s):
    """The threshold of n scores, as it is and as it is often computed."""
    n, ordered = len(s), jnp.sort(s)
    k = certificate(n, ALPHA).rank
    level = np.ceil((n + 1) * (1 - ALPHA)) / n
    return {
        "right": jaxcp.conformal_quantile(s, ALPHA),
        "rank + 1": ordered[k],
        "rank - 1": ordered[k - 2],
        "interpolation": jnp.quantile(s, level),
        "no finite-sample correction": ordered[int(np.ceil(n * (1 - ALPHA))) - 1],
        "wrong tail": ordered[n - k],
    }


def split(key):
    s = jnp.abs(jax.random.normal(key, (SPLIT_SIZE + NUM_TEST,)))
    q = thresholds(s[:SPLIT_SIZE])
    return {name: jnp.sum(s[SPLIT_SIZE:] <= v) for name, v in q.items()}


def few_scores(key):
    """Five scores are too few for this level: the threshold is infinite."""
    s = jnp.abs(jax.random.normal(key, (5 + NUM_TEST,)))
    right = jaxcp.conformal_quantile(s[:5], ALPHA)
    covered = {"right": right, "clipped to the largest score": jnp.max(s[:5])}
    return {name: jnp.sum(s[5:] <= q) for name, q in covered.items()}


def labels(key):
    """Sets of labels; the fault keeps the two most probable ones at most."""
    key_p, key_y = jax.random.split(key)
    p = jax.nn.softmax(2 * jax.random.normal(key_p, (SPLIT_SIZE + NUM_TEST, 6)))
    y = jax.random.categorical(key_y, 0.4 * jnp.log(p))
    cp = jaxcp.calibrate(scores.LAC(), p[:SPLIT_SIZE], y[:SPLIT_SIZE])
    new, y = p[SPLIT_SIZE:], y[SPLIT_SIZE:]
    covered = contains(cp(new, ALPHA), y)
    rank = jnp.sum(new > jnp.take_along_axis(new, y[:, None], axis=1), axis=1)
    return {
        "right": jnp.sum(covered),
        "set size capped": jnp.sum(covered & (rank < 2)),
    }


def boxes(key):
    """Boxes; the fault has one sign for all sides, so that two of them shrink."""
    e = jax.random.normal(key, (SPLIT_SIZE + NUM_TEST, 4))
    true = jnp.array([40.0, 40.0, 80.0, 80.0])[None] + e
    pred = jnp.broadcast_to(jnp.array([40.0, 40.0, 80.0, 80.0]), true.shape)
    score = scores.BoxOffset(maximum=True)
    cp = jaxcp.calibrate(score, pred[:SPLIT_SIZE], true[:SPLIT_SIZE])
    new, y, q = pred[SPLIT_SIZE:], true[SPLIT_SIZE:], cp.quantile(ALPHA)
    flipped = BoundingBox(new[:, :2] - q, new[:, 2:] - q)
    return {
        "right": jnp.sum(contains(cp(new, ALPHA), y)),
        "sign flipped on two box sides": jnp.sum(contains(flipped, y)),
    }


def paths(key):
    """A path of five independent points; the fault takes each at alpha / 5, clamped."""
    y = jax.random.normal(key, (SPLIT_SIZE + NUM_TEST, 5))
    pred = jnp.zeros_like(y), jnp.ones_like(y)
    old, new = (jax.tree.map(lambda v, at=at: v[at], (pred, y)) for at in SPLIT_ROWS)
    sets = jaxcp.calibrate(scores.Band(), *old)(new[0], ALPHA)
    each = jaxcp.conformal_quantile(jnp.abs(old[1]), ALPHA / 5)  # infinite
    q = jnp.minimum(each, jnp.max(jnp.abs(old[1]), axis=0))[None]
    inside = jnp.all(jnp.abs(new[1]) <= q, axis=1)
    covered = {"right": contains(sets, new[1]), "clamped Bonferroni": inside}
    return jax.tree.map(jnp.sum, covered)


def draws(key):
    """C-PCP; the fault predicts with draws that have two roles at once."""
    key_y, key_a, key_b = jax.random.split(key, 3)
    rows = SPLIT_SIZE + NUM_TEST
    y = jax.random.normal(key_y, (rows, 2))
    first, second = (jax.random.normal(k, (rows, 12, 2)) for k in (key_a, key_b))
    score = scores.CDF(scores.PCP(), extended=True)
    old, new = slice(SPLIT_SIZE), slice(SPLIT_SIZE, None)
    cp = jaxcp.calibrate(score, (first[old], second[old]), y[old])
    right, shared = (cp((first[new], v[new]), ALPHA) for v in (second, first))
    return {
        "right": jnp.sum(contains(right, y[new])),
        "draws shared between roles": jnp.sum(contains(shared, y[new])),
    }


def shift(key):
    """Weights under a covariate shift, one test point: at least 1 - alpha."""
    key_x, key_y = jax.random.split(key)
    n = 200
    x = jax.random.normal(key_x, (n + 1,)).at[n].add(1.0)
    y = jnp.abs(jnp.exp(x) * jax.random.normal(key_y, (n + 1,)))
    w = jnp.exp(x)
    s = y[:n]

    def threshold(weights, test_weight):
        return jaxcp.weighted_conformal_quantile(
            s, weights, ALPHA, test_weight=test_weight
        )

    few = slice(30)  # rows, of which the test point is one in weight
    atomless = jaxcp.weighted_select(s[few], w[few], (1 - ALPHA) * jnp.sum(w[few]))
    q = {
        "right": threshold(w[:n], w[n]),
        "misaligned weights": threshold(jnp.roll(w[:n], 1), w[n]),
        "test point's atom missing": atomless,
    }
    return {name: jnp.sum(y[n:] <= v) for name, v in q.items()}


def percentiles(key):
    """The interval between two percentiles, where 0.05 (n + 1) is a whole number."""
    y = jax.random.normal(key, (19 + NUM_TEST,))
    system = calibrate_predictive(scores.Residual(), jnp.zeros(19), y[:19])
    sets, y = system(jnp.zeros(NUM_TEST), ALPHA), y[19:]
    low = sets.with_ends(jnp.full_like(sets.lower, -jnp.inf), sets.upper)  # rank 0
    wrong = {"floor of a lower percentile": low}
    return {k: jnp.sum(contains(v, y)) for k, v in {"right": sets, **wrong}.items()}


def unseen(key):
    """A group that calibration has no row of, every other time."""
    y = jax.random.normal(key, (20,))
    old = scores.Residual(), jnp.zeros(19), y[:19], jnp.zeros(19, int)
    group = (y[:1] > 0).astype(int)
    system = calibrate_predictive(*old, num_groups=2)
    covered = contains(system(jnp.zeros(1), ALPHA, groups=group), y[19:])
    return {
        "right": jnp.sum(covered),
        "nothing for an unseen group": jnp.sum(covered & (group == 0)),
    }


def folds(key):
    """CV+ of a model that nearly interpolates: at least 1 - 2 alpha - slack."""
    key_x, key_y, key_fit = jax.random.split(key, 3)
    n, ridge, absolute = 40, learners.Ridge(1e-2), scores.Absolute()
    x = jax.random.normal(key_x, (n + 1, 28))
    y = jax.random.normal(key_y, (n + 1,))
    cp = jaxcp.cv_plus(key_fit, ridge, absolute, x[:n], y[:n], num_folds=5)
    fitted = ridge.predict(cp.fits.full, x)
    q = jaxcp.conformal_quantile(jnp.abs(y[:n] - fitted[:n]), ALPHA)
    wrong = Interval(fitted[n:] - q, fitted[n:] + q)  # of models that saw the row
    return {
        "right": jnp.sum(contains(cp(x[n:], ALPHA), y[n:])),
        "residuals of the wrong fold": jnp.sum(contains(wrong, y[n:])),
    }


def hidden_group(key):
    """Test points with a flag that no calibration row has: infinite sets."""
    s = jnp.abs(jax.random.normal(key, (SPLIT_SIZE + NUM_TEST,)))
    old, new = s[:SPLIT_SIZE], 3 * s[SPLIT_SIZE:]
    rows = jnp.stack([jnp.ones(SPLIT_SIZE), jnp.zeros(SPLIT_SIZE)], axis=1)
    cp = jaxcp.calibrate_conditional(scores.Absolute(), 0 * old, old, rows)
    right, flagless = (cp.quantile(ALPHA, features=jnp.array([1.0, v])) for v in (1, 0))
    return {
        "right": jnp.sum(new <= right),
        "features of no row dropped": jnp.sum(new <= flagless),
    }


def ranks_of_labels(key):
    """Sets without labels of high rank, one class: at least 1 - alpha."""
    logits = jax.random.normal(key, (SPLIT_SIZE + 1, 6)).at[:, 0].add(1.0)
    p, y = jax.nn.softmax(logits), jnp.zeros(SPLIT_SIZE + 1, int)
    s, rank = 1 - p[:, 0], jnp.sum(p > p[:, :1], axis=1) + 1
    old, new = slice(SPLIT_SIZE), slice(SPLIT_SIZE, None)
    score = scores.Truncated(scores.LAC(), jnp.full(6, 3))  # chosen without the rows
    right = contains(jaxcp.calibrate(score, p[old], y[old])(p[new], ALPHA), y[new])
    # RC3P: the least limit that leaves out a share of at most alpha, and the rest of
    # alpha for the threshold, from the same rows.
    errors = jnp.mean(rank[old, None] > jnp.arange(1, 7)[None], axis=0)
    limit = jnp.argmax(errors <= ALPHA)
    q = jaxcp.conformal_quantile(s[old], ALPHA - errors[limit])
    return {
        "right": jnp.sum(right),
        "limits from the calibration rows": jnp.sum(
            (s[new] <= q) & (rank[new] <= limit + 1)
        ),
    }


LATE, STEPS = 12, 600


def late_targets(key):
    """Scores in turns, small and large for as many steps as targets are late."""
    key_noise, key_time = jax.random.split(key)
    large = jnp.arange(STEPS) // (LATE + 1) % 2
    y = (large + jax.random.uniform(key_noise, (STEPS,))) / 2
    method = online.PID(scores.Absolute(), 0.5)
    state = method.init(jnp.ones(1), ALPHA)
    own = online.run(method, state, jnp.zeros(STEPS), y, ALPHA, delay=LATE)[1]

    def at_once(carry, row):  # a target that comes is charged to the set of now
        state, waiting = carry
        sets = method.predict(state, 0.0, ALPHA)
        later = method.update(state, 0.0, waiting[0], ALPHA)
        known = partial(jnp.where, row[0] >= LATE)
        state = jax.tree.map(known, later, state)
        return (state, jnp.append(waiting[1:], row[1])), sets.contains(row[1])

    begin = state, jnp.zeros(LATE)
    wrong = jax.lax.scan(at_once, begin, (jnp.arange(STEPS), y))[1]
    place = jax.random.randint(key_time, (), 0, STEPS - LATE)  # of those learned
    return {
        "right": (y <= own.upper)[place],
        "late targets charged to the set of now": wrong[place],
    }


EXACT = {split: SPLIT_SIZE, few_scores: 5, labels: SPLIT_SIZE, boxes: SPLIT_SIZE}
EXACT |= {draws: SPLIT_SIZE, paths: SPLIT_SIZE, hidden_group: 0, percentiles: 19}
AT_LEAST = {
    shift: 1 - ALPHA,
    unseen: 1 - ALPHA,
    folds: 1 - 2 * ALPHA - (1 - 5 / 40) / 6,
    ranks_of_labels: 1 - ALPHA,
    late_targets: 1 - ALPHA - (1 + (LATE + 1) * 0.5) / (0.5 * (STEPS - LATE)),
}
NUM_TRIALS = {split: 100_000, draws: 400, shift: 10_000, ranks_of_labels: 20_000}
FAULTS = {
    split: [
        "rank + 1",
        "rank - 1",
        "interpolation",
        "no finite-sample correction",
        "wrong tail",
    ],
    few_scores: ["clipped to the largest score"],
    labels: ["set size capped"],
    boxes: ["sign flipped on two box sides"],
    draws: ["draws shared between roles"],
    paths: ["clamped Bonferroni"],
    shift: ["misaligned weights", "test point's atom missing"],
    folds: ["residuals of the wrong fold"],
    hidden_group: ["features of no row dropped"],
    ranks_of_labels: ["limits from the calibration rows"],
    percentiles: ["floor of a lower percentile"],
    unseen: ["nothing for an unseen group"],
    late_targets: ["late targets charged to the set of now"],
}


@cache
def counts(setting):
    num_trials = NUM_TRIALS.get(setting, 2000)
    out = jaxcp.simulate(setting, jax.random.key(1), num_trials)
    return jax.tree.map(np.asarray, out)


def p_value(setting, name):
    """The certificate where there is an exact law, else the binomial bound."""
    covered = counts(setting)[name]
    if setting in EXACT:
        return certificates.coverage_test(
            covered, EXACT[setting], ALPHA, num_test=NUM_TEST
        ).p_value
    return stats.binom.cdf(covered.sum(), len(covered), AT_LEAST[setting])


@pytest.mark.parametrize("setting", FAULTS, ids=lambda s: s.__name__)
def test_faults_are_caught_and_the_right_method_is_not(setting):
    assert set(counts(setting)) == {"right", *FAULTS[setting]}
    assert p_value(setting, "right") > ALARM
    for fault in FAULTS[setting]:
        assert p_value(setting, fault) < CAUGHT, fault


def test_there_are_eighteen_faults():
    names = [name for faults in FAULTS.values() for name in faults]
    assert len(set(names)) == 18


def test_a_thousand_clean_runs_raise_no_alarm(key):
    """And their p-values are not too small, as those of an exact test are not."""

    def covered(key):
        s = jax.random.uniform(key, (200, SPLIT_SIZE + 5))
        q = jax.vmap(lambda row: jaxcp.conformal_quantile(row, ALPHA))(
            s[:, :SPLIT_SIZE]
        )
        return jnp.sum(s[:, SPLIT_SIZE:] <= q[:, None], axis=1)

    runs = np.asarray(jaxcp.simulate(covered, key, 1000, batch_size=1000))
    p = np.array(
        [
            certificates.coverage_test(run, SPLIT_SIZE, ALPHA, num_test=5).p_value
            for run in runs
        ]
    )
    assert p.min() > ALARM
    for level in (0.01, 0.05, 0.2, 0.5):
        assert np.mean(p <= level) < level + 4 * np.sqrt(level * (1 - level) / 1000)
    assert np.mean(p <= 0.2) > 0.1  # nor much too large


def test_faults_break_laws_that_need_no_simulation():
    """The rank of n scores, and the atom of the test point, by hand."""
    s = jnp.arange(1.0, SPLIT_SIZE + 1)
    k = certificate(SPLIT_SIZE, ALPHA).rank
    q = thresholds(s)
    assert q["right"] == k
    wrong = jnp.stack([v for name, v in q.items() if name != "right"])
    assert not jnp.any(wrong == k)
    assert_array_equal(
        jaxcp.weighted_conformal_quantile(s, jnp.ones(SPLIT_SIZE), ALPHA), q["right"]
    )


def test_signs_of_residuals_do_not_stand_for_bounds_of_duals(monkeypatch):
    """Scores that tie, and groups that overlap: thresholds are others, by a walk."""
    key_s, key_phi = jax.random.split(jax.random.key(3))
    rows = jax.random.randint(key_s, (50, 30), 0, 4).astype(float)
    flags = jax.random.bernoulli(key_phi, 0.4, (50, 30, 3)).astype(float)
    phi, pivot = flags.at[:, :, 0].set(1), _regression._pivot

    def by_sign(problem, walk, edge, long):
        walk, is_ray = pivot(problem, walk, edge, long)
        side = walk.vertex.side
        side = jnp.where(side == 0, 0, jnp.where(walk.r > 0, 1, -1)).astype(side.dtype)
        return walk._replace(vertex=walk.vertex._replace(side=side)), is_ray

    def found():
        def one(s, phi):
            fitted = _regression.fit(s, phi, jnp.asarray(0.3))
            return _regression.threshold(s, phi, fitted, jnp.ones(3))

        return jax.jit(jax.vmap(one))(rows, phi)

    right = found()
    monkeypatch.setattr(_regression, "_pivot", by_sign)
    assert jnp.sum(found() != right) > 5
