"""Several rows of one source: each weighs 1 / N_k, and a new cluster is one more."""

from collections import Counter
from datetime import date
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

import jaxcp
from helpers import promised, reference
from jaxcp import risk, scores
from jaxcp.held.taking import clustered

ABSOLUTE, NEW = scores.Absolute(), jnp.zeros(1)
IDS = ["Ann", "Bo", "Ann", "Cy", "Bo", "Bo", "Di", "Cy"]
Y = np.array([3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0], "f")
FLOAT = jax.dtypes.canonicalize_dtype(float)
SHARES = 1 / np.array([2, 3, 2, 2, 3, 3, 1, 2])


def calibrated(y, ids, **options):
    return jaxcp.calibrate(ABSOLUTE, 0 * y, y, clusters=ids, **options)


def by_group(y, groups, ids, **options):
    known = {"num_groups": 2, "clusters": ids} | options
    return jaxcp.calibrate_groups(ABSOLUTE, 0 * y, y, groups, **known)


def controlled(y, ids, **options):
    loss = options.pop("loss", risk.miscoverage)
    return risk.calibrate_risk(loss, ABSOLUTE, 0 * y, y, clusters=ids, **options)


def by_loop(y, ids, alpha, counts):
    """min{v : sum_k #{i : S_ki > v} / N_k + 1 <= alpha (K + 1)} in fractions."""
    rows = np.flatnonzero(counts)
    size = Counter(ids[i] for i in rows)
    for v in sorted(y[i] for i in rows):
        above = sum(Fraction(1, size[ids[i]]) for i in rows if y[i] > v)
        if above + 1 <= Fraction(str(alpha)) * (len(size) + 1):
            return v
    return np.inf


def of_all(y, ids, alpha, counts):
    """The split threshold of the K largest scores."""
    most = {}
    for i in np.flatnonzero(counts):
        most[ids[i]] = max(most.get(ids[i], -np.inf), y[i])
    k = len(most) + 1 - int(Fraction(str(alpha)) * (len(most) + 1))
    return [*sorted(most.values()), np.inf][k - 1]


@pytest.mark.parametrize("case", range(4))
def test_vectors(case):
    found = reference("rows/clusters")
    own = {k[2:]: v for k, v in found.items() if k[0] == str(case)}
    y, ids, groups = (own[k] for k in ("scores", "clusters", "groups"))
    cp, losses = calibrated(y, ids), controlled(y, ids)
    each, eps = by_group(y, groups.astype(int), ids), np.finfo(cp.scores.dtype).eps
    for i, alpha in enumerate(map(float, own["alphas"])):
        assert cp.all_rows(NEW, alpha).upper == own["all_rows"][i]
        assert_array_equal(each.quantile(alpha), own["group_threshold"][:, i])
        if own["margin"][i] == 0 or own["margin"][i] > 10 * eps:
            assert cp.quantile(alpha) == own["threshold"][i]
            assert losses.quantile(alpha) == own["threshold"][i]


@pytest.mark.parametrize("seed", range(4))
def test_the_definition(seed):
    """Ties, infinite scores and NaN, masked rows, and clusters with no other ones."""
    rng = np.random.default_rng(seed)
    y = rng.choice([0.0, 1.0, 2.0, 3.0, 5.0, np.inf, np.nan], 24)
    ids, counts, groups = rng.integers(9, size=24), rng.random(24) < 0.7, np.arange(24)
    values = np.where(np.isnan(y), np.inf, y)
    rows = jaxcp.Calibration(ABSOLUTE, jnp.asarray(y, float), None, jnp.asarray(counts))
    cp, p_values = clustered(rows, ids), {}
    for alpha in (0.1, 0.25, 0.3, 0.5, 0.75):
        p_values[alpha] = q = by_loop(values, ids, alpha, counts)
        assert cp.quantile(alpha) == q
        assert cp.all_rows(NEW, alpha).upper == of_all(values, ids, alpha, counts)
    tested = np.array([0.5, 1.0, 2.5, 6.0])
    p = cp.p_values(jnp.zeros(4), tested)
    for alpha, q in p_values.items():
        assert_array_equal(tested <= q, p > np.asarray(alpha, p.dtype))
    each = by_group(np.nan_to_num(y, nan=7, posinf=7), groups % 2, ids, mask=counts)
    values = np.minimum(values, 7)
    own = [
        [by_loop(values, ids, alpha, counts & (groups % 2 == g)) for g in range(2)]
        for alpha in (0.25, 0.5)
    ]
    assert_array_equal([each.quantile(alpha) for alpha in (0.25, 0.5)], own)


def test_one_row_each_is_split_and_equal_sizes_are_the_weights():
    y = np.random.default_rng(0).normal(size=40).astype("f")
    new = jnp.linspace(-1, 1, 5)
    for ids, known in (
        (np.arange(40)[::-1], {}),
        (np.arange(40) % 10, {"weights": np.full(40, 0.25, "f")}),
    ):
        cp, like = calibrated(y, ids), jaxcp.calibrate(ABSOLUTE, 0 * y, y, **known)
        losses = risk.calibrate_risk(risk.miscoverage, ABSOLUTE, 0 * y, y, **known)
        for alpha in (0.05, 0.1, 0.2, 0.3, 0.5):
            assert cp.quantile(alpha) == like.quantile(alpha)
            assert controlled(y, ids).quantile(alpha) == losses.quantile(alpha)
            if not known:
                assert cp.all_rows(NEW, alpha).upper == like.quantile(alpha)
        assert_array_equal(cp.p_values(new, new), like.p_values(new, new))


@pytest.mark.double
def test_ids_of_any_kind_are_the_same_clusters():
    codes = np.array([0, 1, 0, 2, 1, 1, 3, 2])
    days = [date(2026, 1, 1 + v) for v in codes]
    frame = pd.DataFrame({"id": IDS, "day": pd.to_datetime(pd.Series(days))})
    kinds = [IDS, np.array(IDS), codes, codes * 1000 - 7, jnp.asarray(codes), days]
    kinds += [frame["id"], frame["id"].astype("category"), frame["day"], frame[["id"]]]
    kinds += [[("ward", v) for v in IDS], codes + 0.5, np.array(codes, "u1")]
    for ids in kinds[:9] + kinds[10:]:
        assert_array_equal(calibrated(Y, ids).weights, SHARES.astype(FLOAT))
    with pytest.raises(ValueError, match=r"expected clusters of shape \(n,\), got"):
        calibrated(Y, kinds[9])
    many = np.arange(150) % 5  # more rows than a byte counts
    of_bytes, known = (
        by_group(many * 1.0, many % 2, ids) for ids in (many.astype("i1"), many)
    )
    assert_array_equal(of_bytes.weights, known.weights)
    flags = calibrated(Y, codes > 0).weights  # two clusters
    assert_array_equal(flags, np.where(codes > 0, 1 / 6, 1 / 2).astype(FLOAT))


@pytest.mark.double
def test_clusters_without_rows_that_count_are_absent():
    mask = np.array(IDS) != "Bo"
    cp, few = calibrated(Y, IDS, mask=mask), calibrated(Y[mask], np.array(IDS)[mask])
    assert_array_equal(cp.weights, np.where(mask, SHARES, 0).astype(FLOAT))
    assert cp.effective_size() == few.effective_size() == 3
    for alpha in (0.25, 0.3, 0.5):  # K is 3
        assert cp.quantile(alpha) == few.quantile(alpha)
        assert cp.all_rows(NEW, alpha).upper == few.all_rows(NEW, alpha).upper
    assert cp.all_rows(NEW, 0.25).upper == 6 and cp.all_rows(NEW, 0.24).upper == np.inf
    missing = np.where(mask, IDS, None)  # of rows that do not count
    assert calibrated(Y, missing, mask=mask).quantile(0.5) == few.quantile(0.5)
    none = calibrated(Y, IDS, mask=np.zeros(8, bool))
    assert none.quantile(0.5) == none.all_rows(NEW, 0.5).upper == np.inf
    empty = calibrated(Y[:0], [])
    assert empty.quantile(0.5) == empty.all_rows(NEW, 0.5).upper == np.inf
    one = calibrated(Y, ["Ann"] * 8)  # K is 1: as one row
    assert one.quantile(0.4) == np.inf and one.quantile(0.5) == Y.max()


def test_traced_ids_are_numbers_and_others_do_not_count():
    codes = np.array([[0, 1, 0, 2, 1, 1, 3, 2], [0, 8, 0, 2, -1, 99, 3, 2]])

    def found(ids):
        cp = calibrated(Y, ids)
        grouped = by_group(Y, np.arange(8) % 2, ids)
        lost = controlled(Y, ids).quantile(0.4)
        q = cp.quantile(0.4), cp.all_rows(NEW, 0.4).upper[0], lost
        return cp, jnp.stack(q), grouped.quantile(0.4), cp.latest(4)

    every, few = calibrated(Y, IDS), calibrated(Y, IDS, mask=np.array(IDS) != "Bo")
    cp, q, of_groups, latest = jax.jit(jax.vmap(found))(codes)
    for i, known in enumerate((every, few)):
        own = known.quantile(0.4), known.all_rows(NEW, 0.4).upper[0]
        assert_array_equal(q[i], [*own, own[0]])
        assert_array_equal(cp.weights[i], known.weights)
        mask = np.ones(8, bool) if known.mask is None else known.mask
        named = by_group(Y, np.arange(8) % 2, IDS, mask=mask)
        assert_array_equal(of_groups[i], named.quantile(0.4))
        assert_array_equal(latest.weights[i], known.latest(4).weights)
    with pytest.raises(ValueError, match="expected clusters of an integer type"):
        jax.jit(found)(codes[0] + 0.5)


def test_the_newest_rows_are_counted_anew(tmp_path):
    mask = np.arange(8) != 6
    for n, known in ((3, {}), (5, {"mask": mask}), (20, {})):
        own = {k: v[-n:] for k, v in known.items()}
        found, expected = (
            calibrated(Y, IDS, **known),
            calibrated(Y[-n:], IDS[-n:], **own),
        )
        assert_array_equal(found.latest(n).weights, expected.weights)
        assert found.latest(n).quantile(0.5) == expected.quantile(0.5)
        all_rows = found.latest(n).all_rows(NEW, 0.4).upper
        assert all_rows == expected.all_rows(NEW, 0.4).upper
    own = by_group(Y, np.arange(8) % 2, IDS)
    expected = by_group(Y[-5:], np.arange(3, 8) % 2, IDS[-5:])
    assert_array_equal(own.latest(5).weights, expected.weights)
    jaxcp.save(tmp_path / "cp", calibrated(Y, IDS))
    again = jaxcp.load(tmp_path / "cp")
    assert again.all_rows(NEW, 0.4).upper == 6
    assert_array_equal(again.latest(3).weights, [1, 1, 1])


@pytest.mark.double
def test_batches_and_models_have_the_clusters_of_all_rows():
    """The rows of Ann, Bo and Cy are in both batches."""
    parts = [(0 * Y[:4], Y[:4]), {"preds": 0 * Y[4:], "y": Y[4:]}]
    cp = jaxcp.calibrate(ABSOLUTE, batches=parts, clusters=IDS)
    assert_array_equal(cp.weights, SHARES.astype(FLOAT))
    groups = np.arange(8) % 2
    parts = [{"preds": 0 * v, "y": v, "groups": g} for v, g in ((Y, groups),)]
    known = {"batches": parts, "num_groups": 2, "clusters": IDS}
    own = jaxcp.calibrate_groups(ABSOLUTE, **known)
    assert_array_equal(own.weights, by_group(Y, groups, IDS).weights)
    given = lambda params, x: params * x, 0.0, ABSOLUTE, Y, Y
    model = jaxcp.split_conformal(*given, clusters=IDS)
    assert_array_equal(model.calibration.weights, cp.weights)
    model = jaxcp.split_conformal(*given, groups=groups, num_groups=2, clusters=IDS)
    assert_array_equal(model.calibration.weights, own.weights)


def test_promises_say_so():
    least = " for a row of a new cluster, on average over calibration sets"
    assert calibrated(Y, IDS).at(0.4).promise == f"P(Y in set) >= 1 - 0.4{least}"
    each = by_group(Y, np.arange(8) % 2, IDS).at(0.4).promise
    drawn = "cluster, drawn at random among its rows in the group"
    least_of_groups = least.replace("cluster", drawn)
    assert each == f"P(Y in set) >= 1 - 0.4{least_of_groups}, in each of 2 groups"
    assert controlled(Y, IDS).at(0.4).promise == f"E loss <= 0.4{least}"
    page = jaxcp.report(calibrated(Y, IDS), 0 * Y, Y, 0.4)
    assert "those of exchangeable clusters" in page and least in page


CP, GROUPED = calibrated(Y, IDS), by_group(Y, np.arange(8) % 2, IDS)
LOST, TWO = controlled(Y, IDS), jnp.zeros(2)
HALF = {"groups": np.arange(2), "u": np.full(2, 0.5)}
KNOWN = {
    "certificate": lambda: CP.certificate(0.4),
    "certificate of groups": lambda: GROUPED.certificate(0.4),
    "certificate of a risk": lambda: LOST.certificate(0.4),
    "delta": lambda: CP(TWO, 0.4, delta=0.1),
    "delta of a threshold": lambda: CP.quantile(0.4, delta=0.1),
    "delta of one level": lambda: CP.at(0.4, delta=0.1),
    "delta of groups": lambda: GROUPED.quantile(0.4, delta=0.1),
    "delta of a risk": lambda: LOST.quantile(0.4, delta=0.1),
    "uniforms": lambda: CP(TWO, 0.4, u=HALF["u"]),
    "a uniform": lambda: CP.quantile(0.4, u=0.5),
    "uniforms of p-values": lambda: CP.p_values(TWO, TWO, u=HALF["u"]),
    "uniforms of groups": lambda: GROUPED(TWO, 0.4, **HALF),
    "uniforms of p-values of groups": lambda: GROUPED.p_values(TWO, TWO, **HALF),
    "test weights": lambda: CP(TWO, 0.4, test_weights=np.ones(2)),
    "a test weight": lambda: CP.quantile(0.4, test_weight=0.5),
    "test weights of p-values": lambda: CP.p_values(TWO, TWO, test_weights=np.ones(2)),
    "test weights of a risk": lambda: LOST(TWO, 0.4, test_weights=np.ones(2)),
    "shards of a risk": lambda: LOST.quantile(0.4, axis_name="rows"),
}


@pytest.mark.parametrize("name", KNOWN)
def test_what_needs_rows_without_clusters_names_the_cure(name):
    with pytest.raises(ValueError, match="keep one row of each, drawn at random: i = "):
        KNOWN[name]()


def test_the_cure():
    rng, n, ids, y = np.random.default_rng(0), 8, np.array(IDS), Y
    i = rng.permutation(n)
    rows = i[np.unique(ids[i], return_index=True)[1]]
    mask = np.isin(np.arange(n), rows)
    assert sorted(ids[mask]) == ["Ann", "Bo", "Cy", "Di"]
    cp = jaxcp.calibrate(ABSOLUTE, 0 * y, y, mask=mask)
    assert cp.certificate(0.4).n == 4


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: jaxcp.join([CP, CP]), r"calibrations\[0\] without clusters"),
        (lambda: jaxcp.join([LOST, LOST]), r"calibrations\[0\] without clusters"),
        (lambda: CP.extended(0 * Y, Y), "takes those of all rows, also of batches"),
        (
            lambda: jaxcp.calibrate(
                ABSOLUTE, batches=[{"preds": Y, "y": Y, "clusters": IDS}]
            ),
            "expected batches without clusters; calibrate",
        ),
        (lambda: calibrated(Y, IDS, weights=Y / 9), "clusters or weights, got both"),
        (lambda: controlled(Y, IDS, weights=Y / 9), "clusters or weights, got both"),
        (
            lambda: calibrated(Y, [*IDS[1:], None]),
            "clusters without missing ones, got None at 7",
        ),
        (
            lambda: calibrated(Y, pd.DataFrame({"site": IDS, "id": IDS})),
            r"a frame of the columns site, id; clusters\.astype\(str\)",
        ),
        (
            lambda: by_group(Y, np.arange(8) % 2, IDS, min_size=2),
            "clusters without min_size or label_groups",
        ),
        (
            lambda: jaxcp.calibrate(ABSOLUTE, 0 * Y, Y).all_rows(NEW, 0.4),
            "a calibration with clusters, got none",
        ),
        (lambda: CP.all_rows(NEW, 1.4), "alpha in"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("alpha", [0.1, 0.2, 0.3, 0.5])
def test_each_row_of_each_cluster_in_turn(alpha):
    """Of 10 clusters each is new with 1/10, and each of its rows with 1/N_k.

    At most alpha of them are missed, ties or not; of the largest scores, without ties,
    floor(10 alpha) clusters of the 10.
    """
    rng = np.random.default_rng(1)
    ids = np.repeat(np.arange(10), rng.integers(1, 7, 10))
    n, size = len(ids), np.bincount(ids)
    groups = np.where(np.arange(n) % 3 == 0, ids % 2, (ids > 4).astype(int))
    for y in (rng.normal(size=n) + ids, rng.integers(4, size=n) * 1.0):
        y = jnp.asarray(abs(y), "f")
        cps = [calibrated(y, ids, mask=ids != k) for k in range(10)]
        q = np.array([cp.quantile(alpha) for cp in cps])
        covered = np.mean((y <= q[ids]) / size[ids]) * n / 10
        assert covered >= promised(cps[0], alpha) - 1e-6
        risks = [controlled(y, ids, mask=ids != k) for k in range(10)]
        lost = np.array([cp.quantile(alpha) for cp in risks])
        assert_array_equal(lost, q)
        assert 1 - covered <= promised(risks[0], alpha) + 1e-6
        most = np.array([np.max(y[ids == k]) for k in range(10)])
        q = np.array([cp.all_rows(NEW, alpha).upper[0] for cp in cps])
        assert np.sum(most > q) <= 10 * alpha
        if len(np.unique(y)) == n:
            assert np.sum(most > q) == int(10 * alpha + 1e-6)
        each = [by_group(y, groups, ids, mask=ids != k) for k in range(10)]
        q = np.array([cp.quantile(alpha) for cp in each])
        for g in range(2):
            own = Counter(ids[groups == g])
            missed = [(y[i] > q[ids[i], g]) / own[ids[i]] for i in range(n)]
            missed = sum(v for v, h in zip(missed, groups, strict=True) if h == g)
            assert missed <= (1 - promised(each[0], alpha)) * len(own) + 1e-6


K, MOST, ALPHA, TRIALS = 9, 8, 0.2, 4000


def known_coverage(num_large):
    """Coverage of pooled rows, and of clusters, with so many clusters of 8 rows.

    The rows of a large cluster have scores in (0, 1), a single row one in (1, 2): a
    new row of either kind, each with 1/2, has a uniform rank among those of its kind.
    """
    n, ones = MOST * num_large, K - num_large
    rank = n + ones + 1 - int(ALPHA * (n + ones + 1) + 1e-9)
    # Weight 1 may lie above: one single row, or all rows but one of none but large.
    own = n + ones - 1 if ones else n - MOST
    found = []
    for k in (rank, own):
        small = min(k / (n + 1), 1.0)
        single = min(max(k - n, 0) / (ones + 1), 1.0)
        found.append((small + single) / 2)
    return found


def trial(key):
    key_size, key_score = jax.random.split(key)
    is_large = jax.random.bernoulli(key_size, 0.5, (K + 1,))
    u = jax.random.uniform(key_score, (K + 1, MOST))
    y = jnp.where(is_large[:, None], u, 1 + u)
    mask = is_large[:, None] | (jnp.arange(MOST)[None] == 0)
    ids = jnp.broadcast_to(jnp.arange(K)[:, None], (K, MOST)).ravel()
    known = {"mask": mask[:K].ravel()}
    rows = y[:K].ravel()
    cp = calibrated(rows, ids, **known)
    pooled = jaxcp.conformal_quantile(rows, ALPHA, **known)
    largest = jnp.max(jnp.where(mask[K], y[K], 0))
    covered = y[K, 0] <= pooled, y[K, 0] <= cp.quantile(ALPHA)
    return *covered, largest <= cp.all_rows(NEW, ALPHA).upper[0], jnp.sum(is_large[:K])


def test_coverage_of_a_row_and_of_all_rows():
    keys = jax.random.split(jax.random.key(0), TRIALS)
    *found, num_large = map(np.asarray, jax.jit(jax.vmap(trial))(keys))
    known = np.array([known_coverage(b) for b in range(K + 1)])[num_large].T
    for covered, expected in zip(found, (*known, np.full(TRIALS, 0.8)), strict=True):
        error = np.sqrt(np.mean(expected * (1 - expected)) / TRIALS)
        assert abs(covered.mean() - expected.mean()) < 4 * error
    naive, right, _ = [v.mean() for v in found]
    assert naive < 0.7 < 0.8 - 4 * (0.16 / TRIALS) ** 0.5 < right
