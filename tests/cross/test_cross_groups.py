"""Groups in the jackknife+: every fit is on all rows but one, those of a group vote."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.linear_model import LogisticRegression

import jaxcp
from helpers import cut, loaded, regression, same
from jaxcp import learners, scores

KEY, ABSOLUTE, RIDGE = jax.random.key(0), scores.Absolute(), learners.Ridge(1.0)
N, M, ALPHA = 24, 5, 0.3
GROUPS = np.arange(N) % 3 * (np.arange(N) % 5 > 0)  # 11, 7 and 6 rows
NEW = np.array([0, 1, 2, 0, 1])
ALONE = np.eye(N, dtype=bool)


def data():
    return *regression(N), regression(M, seed=1)[0]


def leave_one_out(x, y, x_new):
    """Errors of the rows without themselves, and predictions (n, m), by numpy."""
    design, at = (np.c_[np.ones(len(v)), v] for v in (x, x_new))
    fits = []
    for i in range(N):
        a, b = np.delete(design, i, 0), np.delete(y, i)
        fits.append(np.linalg.solve(a.T @ a + np.diag([0, 1, 1]), a.T @ b))
    fits = np.array(fits)
    return y - np.sum(design * fits, axis=1), fits @ at.T


def rank(own, alpha=ALPHA):
    return own.sum() + 1 - int(alpha * (own.sum() + 1) + 1e-9)


def test_votes_by_hand():
    x, y, x_new = data()
    errors, preds = leave_one_out(x, y, x_new)
    cp = jaxcp.jackknife_plus(KEY, RIDGE, ABSOLUTE, x, y, groups=GROUPS, num_groups=3)
    plus, hull = cp(x_new, ALPHA, groups=NEW), cp.minmax(x_new, ALPHA, groups=NEW)
    naive = cp.naive(x_new, ALPHA, groups=NEW)
    signed = jaxcp.jackknife_plus(
        KEY, RIDGE, scores.Residual(), x, y, groups=GROUPS, num_groups=3
    )
    atoms = signed.calibration.predictive(signed.fits.predict(x_new), groups=NEW)
    targets = x_new[:, 0] + np.linspace(-1, 1, M).astype("f")
    share = atoms.cdf(targets, u=0.5)
    center = cp.fits.predict_full(x_new)
    for j, group in enumerate(NEW):
        own = group == GROUPS
        k, f, r = rank(own), preds[own, j], abs(errors[own])
        q = np.sort(r)[k - 1]
        ends = -np.sort(r - f)[k - 1], np.sort(f + r)[k - 1]
        assert_allclose([plus.lower[j], plus.upper[j]], ends, rtol=1e-4)
        ends = f.min() - q, f.max() + q
        assert_allclose([hull.lower[j], hull.upper[j]], ends, rtol=1e-4)
        ends = center[j] - q, center[j] + q
        assert_allclose([naive.lower[j], naive.upper[j]], ends, rtol=1e-4)
        below = np.sum(f + errors[own] < targets[j])
        assert_allclose(share[j], (below + 0.5) / (own.sum() + 1), rtol=1e-5)
    q = cp.quantile(ALPHA)
    own = [np.sort(abs(errors[g == GROUPS]))[rank(g == GROUPS) - 1] for g in range(3)]
    assert_allclose(q, own, rtol=1e-4)


def rows_of_fits(seed=0):
    """Predictions of the rows and of new inputs by n fits, each without one row."""
    rng = np.random.default_rng(seed)
    preds, new = rng.normal(size=(N, N)), rng.normal(size=(N, M))
    return preds.astype("f"), rng.normal(size=N).astype("f"), new.astype("f")


def calibrated(score, preds, y, groups=GROUPS, **options):
    options |= {} if groups is None else {"groups": groups, "num_groups": 3}
    return jaxcp.cross_calibrate(score, preds, y, ALONE, **options)


def two_sided(pred, y):
    return jnp.abs(jnp.abs(y - pred) - 1)  # sets of two pieces


def pieces(pred, q):
    centers = pred + jnp.array([-1, 1])
    return jaxcp.sets.Intervals(centers - q, centers + q)


@pytest.mark.parametrize(
    "kind, weighted",
    [(kind, False) for kind in ("line", "sides", "pieces", "labels")]
    + [(kind, True) for kind in ("line", "box", "labels")],
)
def test_one_group_is_none_and_others_do_not_vote(kind, weighted):
    preds, y, new = rows_of_fits()
    score = {
        "line": ABSOLUTE,
        "sides": scores.Signed(),
        "box": ABSOLUTE,
        "pieces": scores.Custom(two_sided, pieces),
        "labels": scores.LAC(),
    }[kind]
    if kind == "box":
        preds, y, new = (np.stack([v, -v], axis=-1) for v in (preds, y, new))
    if kind == "labels":
        preds, new = (np.stack([v, 0 * v, -v], axis=-1) for v in (preds, new))
        preds, new = (np.asarray(jax.nn.softmax(v)) for v in (preds, new))
        y = np.digitize(y, [-0.5, 0.5])
    weights = (1 + np.arange(N) % 3).astype("f") if weighted else None
    given = {"test_weights": np.full(M, 2, "f")} if weighted else {}
    none = calibrated(score, preds, y, None, weights=weights)
    one = calibrated(score, preds, y, 0 * GROUPS, weights=weights)
    by_group = calibrated(score, preds, y, weights=weights)
    for way in ("__call__", "minmax"):
        found = getattr(one, way)(new, ALPHA, groups=0 * NEW, **given)
        same_sets(found, getattr(none, way)(new, ALPHA, **given))
        found = getattr(by_group, way)(new, 0.5, groups=NEW, **given)
        own, at = GROUPS == 1, NEW == 1  # fits without rows of this group alone
        alone = jaxcp.cross_calibrate(
            score, preds[own][:, own], y[own], ALONE[own][:, own],
            weights=None if weights is None else weights[own],
        )  # fmt: skip
        of_group = {k: v[at] for k, v in given.items()}
        expected = getattr(alone, way)(new[own][:, at], 0.5, **of_group)
        same_sets(found[at], expected)


def same_sets(found, expected):
    if hasattr(found, "num_pieces"):  # as many places as rows
        found, expected = found.trimmed(), expected.trimmed()
        k = min(found.lower.shape[-1], expected.lower.shape[-1])
        assert np.all(found.lower[..., k:] == np.inf)
        assert np.all(expected.lower[..., k:] == np.inf)
        found, expected = cut((found, expected), (..., slice(k)))
    same(found, expected)


def test_masked_rows_and_rows_that_train_in_every_fit_do_not_vote():
    preds, y, new = rows_of_fits()
    mask = np.arange(N) % 4 > 0
    masked = calibrated(ABSOLUTE, preds, y, mask=mask)
    of_some = {"groups": GROUPS[mask], "num_groups": 3}
    some = jaxcp.cross_calibrate(
        ABSOLUTE, preds[mask][:, mask], y[mask], ALONE[mask][:, mask], **of_some
    )
    for way in ("__call__", "minmax"):
        found = getattr(masked, way)(new, 0.5, groups=NEW)
        same(found, getattr(some, way)(new[mask], 0.5, groups=NEW))
    sizes = [proof.n for proof in masked.certificate(0.3)]
    assert sizes == np.bincount(GROUPS[mask]).tolist()


def test_votes_whose_sets_know_membership_alone():
    preds, y, new = rows_of_fits()
    score = scores.Custom(lambda pred, y: jnp.abs(y - pred), _Ball)
    found = calibrated(score, preds, y)(new, ALPHA, groups=NEW)
    errors = abs(y - np.diagonal(preds))
    for target in np.linspace(-2, 2, 9).astype("f"):
        inside = found.contains(np.full(M, target))
        for j, group in enumerate(NEW):
            own = group == GROUPS
            against = np.sum(errors[own] < abs(target - new[own, j]))
            assert inside[j] == (against < rank(own))


@jaxcp.pytree
class _Ball:
    pred: jax.Array
    q: jax.Array

    def contains(self, y):
        return jnp.abs(y - self.pred) <= self.q

    def size(self):
        return 2 * self.q


def test_names_permutations_levels_and_files(tmp_path):
    x, y, x_new = data()
    words, order = np.array(["a", "b", "c"]), np.array([2, 0, 1])
    fit = lambda **named: jaxcp.jackknife_plus(KEY, RIDGE, ABSOLUTE, x, y, **named)  # noqa: E731
    by_code = fit(groups=GROUPS, num_groups=3)
    expected = by_code(x_new, ALPHA, groups=NEW).to_numpy()
    swapped = fit(groups=order[GROUPS], num_groups=3)
    found = swapped(x_new, ALPHA, groups=order[NEW]).to_numpy()
    assert_array_equal(found, expected)
    by_name = loaded(fit(groups=words[GROUPS]), tmp_path)
    assert by_name.calibration.calibration.group_names == ("a", "b", "c")
    found = by_name(x_new, ALPHA, groups=words[NEW]).to_numpy()
    assert_array_equal(found, expected)
    alphas = np.array([0.3, 0.5, 0.2])
    for way in ("__call__", "minmax"):
        found = getattr(by_code, way)(x_new, alphas, groups=NEW)
        for j, group in enumerate(NEW):
            alpha, own = float(alphas[group]), {"groups": [group]}
            one = getattr(by_code, way)(x_new[j : j + 1], alpha, **own)
            assert_array_equal(found.upper[j], one.upper[0])
    assert [proof.n for proof in by_code.certificate(0.3)] == [11, 7, 6]
    assert [proof.num_folds for proof in by_code.certificate(0.3)] == [11, 7, 6]


def test_a_model_of_another_library_with_names():
    pd = pytest.importorskip("pandas")
    x, y, x_new = data()
    pets, sites = np.array(["cat", "dog"]), np.array(["farm", "zoo"])
    y, at = pets[(y > 0).astype(int)], sites[np.arange(N) % 2]
    model, lac = learners.Estimator(LogisticRegression()), scores.LAC()
    groups = pd.Series(at, dtype="category")
    cp = jaxcp.jackknife_plus(KEY, model, lac, x, y, groups=groups)
    plain = jaxcp.jackknife_plus(KEY, model, lac, x, y)
    found = cp(x_new, ALPHA, groups=sites[[0, 1, 0, 1, 0]])
    probs = np.asarray(plain.fits.predict(x_new))
    for j, site in enumerate(sites[[0, 1, 0, 1, 0]]):
        own = at == site
        low = np.asarray(plain.scores)[own, None] < 1 - probs[own, j]
        assert_array_equal(found.mask[j], low.sum(axis=0) < rank(own))
    assert found.labels()[0] == [pets[i] for i in np.flatnonzero(found.mask[0])]


def test_few_rows_and_unknown_groups_have_infinite_sets():
    x, y, x_new = data()
    groups = np.where(GROUPS == 2, 1, GROUPS)  # none in group 2
    cp = jaxcp.jackknife_plus(KEY, RIDGE, ABSOLUTE, x, y, groups=groups, num_groups=3)
    for way in (cp, cp.minmax, cp.naive):
        assert_array_equal(np.isinf(way(x_new, 0.08, groups=NEW).upper), NEW != 1)
        assert np.isinf(way(x_new, 0.9, groups=NEW).lower[2])
    proof = cp.certificate(0.3)[2]
    assert (proof.n, proof.coverage, proof.published) == (0, 1, 0.4)
    preds, y, new = rows_of_fits()
    probs, at = (np.stack([v, -v], axis=-1) for v in (preds, new))
    probs, at = (np.asarray(jax.nn.softmax(v)) for v in (probs, at))
    labels = (y > 0).astype(int)
    for weights in (None, np.ones(N)):
        of = calibrated(scores.LAC(), probs, labels, weights=weights)
        both = jax.jit(
            lambda g, of=of: (of(at, 0.9, groups=g), of.minmax(at, 0.9, groups=g))
        )
        for sets in both(np.array([3, -1, 99, 0, 0])):
            assert np.all(sets.mask[:3])


def test_what_is_refused():
    x, y, x_new = data()
    args = KEY, RIDGE, ABSOLUTE, x, y
    named = {"groups": GROUPS, "num_groups": 3}
    cp = jaxcp.jackknife_plus(*args, **named)
    for way in (cp, cp.minmax, cp.naive):
        with pytest.raises(
            ValueError, match="groups of the new inputs, one each, got N"
        ):
            way(x_new, ALPHA)
        with pytest.raises(ValueError, match=r"groups in 0, ..., 2, got 9 at 1"):
            way(x_new[:2], ALPHA, groups=[0, 9])
    with pytest.raises(ValueError, match="groups only of a calibration with groups"):
        jaxcp.jackknife_plus(*args)(x_new, ALPHA, groups=NEW)
    with pytest.raises(ValueError, match="expected num_groups with groups 0"):
        jaxcp.jackknife_plus(*args, groups=GROUPS)
    with pytest.raises(ValueError, match="groups with num_groups or group_names, got"):
        jaxcp.jackknife_plus(*args, group_names="abc")
    with pytest.raises(ValueError, match="calibration_weights or groups, which a wind"):
        cp.stream()
    thirds = np.arange(N) % 3 == np.arange(3)[:, None]
    verbs = (
        lambda: jaxcp.cv_plus(*args, num_folds=4, groups=GROUPS),
        lambda: jaxcp.cross_conformal(*args, 1.0 - thirds, groups=GROUPS),
        lambda: jaxcp.enbpi(*args, num_resamples=5, groups=GROUPS),
        lambda: jaxcp.jackknife_plus_after_bootstrap(
            *args, num_resamples=5, groups=GROUPS
        ),
        lambda: jaxcp.cross_calibrate(ABSOLUTE, np.zeros((3, N)), y, thirds, **named),
        jax.jit(
            lambda: jaxcp.cross_calibrate(ABSOLUTE, x @ x.T, y, jnp.eye(N) > 0, **named)
        ),
    )
    for verb in verbs:
        with pytest.raises(ValueError, match=r"jackknife_plus\(..., groups=\) covers"):
            verb()
