"""The page of a report: what it says of each calibration, and that it stands alone."""

from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser

import jax
import jax.numpy as jnp
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest

import jaxcp
from helpers import promised
from jaxcp import learners, metrics, risk, scores
from jaxcp.plotting.pages import _facts

mpl.use("Agg")
RNG = np.random.default_rng(0)
N, KEY = 60, jax.random.key(0)
OLD, NEW = slice(0, N), slice(N, 2 * N)
PRED = RNG.normal(size=2 * N).astype("float32")
Y = PRED + RNG.normal(size=2 * N).astype("float32")
SITE = np.where(np.arange(2 * N) % 3 == 0, "<b>bold & $x_1", "plain")
X = PRED[:, None]
VOID = {"meta", "br", "use", "path", "image"}


class Parsed(HTMLParser):
    """What is in a page: open tags, what it would load, and the words of cells."""

    def __init__(self, page):
        super().__init__()
        self.open, self.loads, self.words, self.tags = [], [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name in ("src", "srcset", "action", "data") or (
                name.endswith("href") and not value.startswith("#")
            ):
                self.loads.append(value)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th", "p", "text", "h1"):
            self.words.append(data.strip())


def parsed(page):
    """The page after checks: all tags end, nothing is loaded, no figure stays open."""
    found = Parsed(page)
    assert found.open == [] and found.loads == [] and plt.get_fignums() == []
    for never in ("url(http", "@import", "<script", "<link", "<iframe"):
        assert never not in page
    return found


def of_labels():
    probs = np.exp(RNG.normal(size=(2 * N, 4))).astype("float32")
    probs /= probs.sum(axis=1, keepdims=True)
    pets = np.array(["ant", "bee", "<i>cat", "dog"])
    y = pets[probs.argmax(axis=1)]
    cp = jaxcp.calibrate(scores.LAC(), probs[OLD], y[OLD], classes=pets)
    return cp, probs[NEW], y[NEW]


def of_risk(**options):
    p = RNG.uniform(size=(2 * N, 5)).astype("float32")
    y = RNG.uniform(size=p.shape) < p
    loss, score = risk.false_negative_rate, scores.MultiLabel()
    cp = risk.calibrate_risk(loss, score, p[OLD], y[OLD], **options)
    return cp, p[NEW], y[NEW]


def of_groups(**options):
    rows = scores.Absolute(), PRED[OLD], Y[OLD], SITE[OLD]
    return jaxcp.calibrate_groups(*rows, **options), PRED[NEW], Y[NEW]


def of_learner(verb):
    return verb(KEY, learners.Ridge(1.0), scores.Absolute(), X[OLD], Y[OLD])


PLAIN = jaxcp.calibrate(scores.Absolute(), PRED[OLD], Y[OLD])
CASES = {  # what is called, its arguments, and words of the promise
    "calibration": (lambda: (PLAIN, PRED[NEW], Y[NEW]), "P(Y in set) >= 1 - 0.2"),
    "groups": (of_groups, "in each of 2 groups"),
    "small": (lambda: of_groups(min_size=N // 2 + 1), "in each group of at least"),
    "split": (
        lambda: (
            jaxcp.split_conformal(
                lambda _, x: x[:, 0], None, scores.Residual(), X[OLD], Y[OLD]
            ),
            X[NEW],
            Y[NEW],
        ),
        "on average over calibration sets",
    ),
    "labels": (of_labels, "P(Y in set) >= 1 - 0.2"),
    "risk": (of_risk, "E loss <= 0.2"),
    "tail": (lambda: of_risk(tail=0.5), "P(loss > 0.5) <= 0.2"),
    "cross": (
        lambda: (of_learner(jaxcp.jackknife_plus), X[NEW], Y[NEW]),
        "P(Y in set) >= 1 - 2 * 0.2, on average over training sets",
    ),
    "full": (
        lambda: (of_learner(jaxcp.full_conformal), X[NEW], Y[NEW]),
        "P(Y in set) >= 1 - 0.2, on average over training sets",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_page_of_every_kind(name):
    make, promise = CASES[name]
    cp, preds, y = make()
    before = dict(mpl.rcParams)
    page = jaxcp.report(cp, preds, y, 0.2, groups=SITE[NEW])
    assert dict(mpl.rcParams) == before
    found = parsed(page)
    words = " ".join(found.words)
    assert promise in words and "exchangeable" in words
    assert f"{N} calibration rows, {N} new rows" in words
    assert page.count("<figure>") == {"risk": 1, "tail": 1}.get(name, 3)
    assert "<b>bold & $x_1" in found.words and "plain" in found.words
    assert "<b>" not in page and "<i>" not in page
    assert f"jaxcp {jaxcp.__version__}, jax {jax.__version__}" in page
    if name in ("risk", "tail"):
        assert "mean loss error" in found.words and "coverage of groups" not in words


def test_the_table_is_that_of_the_groups(tmp_path):
    cp, preds, y = of_groups()
    page = jaxcp.report(
        cp, preds, y, 0.2, groups=SITE[NEW], path=tmp_path / "page.html"
    )
    assert (tmp_path / "page.html").read_text("utf-8") == page
    assert isinstance(page, str) and repr(page) == f"Page of {len(page):,} characters"
    found = parsed(page)
    sets = cp(preds, 0.2, groups=SITE[NEW])
    for row in metrics.by_group(sets, y, SITE[NEW]).rows()[1:]:
        start = found.words.index(row[1]) - 1
        assert [w for w in found.words[start:] if w][: len(row)] == list(row)
    rate = f"{float(metrics.coverage(sets, y)):.4g}"
    assert found.words.index("all rows") < found.words.index(rate)
    for name, law in zip(cp.group_names, cp.certificate(0.2), strict=True):
        assert f"{name}: {law}" in " ".join(found.words)
    shown = Parsed(page._repr_html_())
    assert shown.tags == ["iframe"] and shown.loads == []


def test_words_of_other_promises():
    """Of sets that hold for most calibration sets, with uniforms, and with weights."""
    promise, facts = _facts(PLAIN, PLAIN, 0.2, delta=0.1)
    assert promise.endswith("with probability 1 - 0.1 over calibration sets")
    law = f"{PLAIN.certificate(0.2, 0.1)} (of i.i.d. rows without ties)"
    assert facts["Proved"] == law and "new ones are i.i.d." in facts["If"]
    assert _facts(PLAIN, PLAIN, 0.2, u=Y)[1]["Proved"] == "nothing as a number"
    args = scores.Absolute(), PRED[OLD], Y[OLD]
    cp = jaxcp.calibrate(*args, weights=jnp.ones(N))
    promise, facts = _facts(cp, cp, 0.2, test_weights=jnp.ones(N))
    assert facts["Proved"] == "nothing as a number"
    assert "distance" not in promise and "with true likelihood ratios" in facts["If"]
    promise, facts = _facts(cp, cp, 0.2)
    assert "less the weighted distance in total variation" in promise
    assert "by weights fixed before" in facts["If"]
    kernel = jaxcp.conditional.Gaussian(1.0)
    cp = jaxcp.calibrate_local(*args, X[OLD], kernel)
    promise, facts = _facts(cp, cp, 0.2)
    assert promise == "P(Y in set) >= 1 - 0.2, on average over calibration sets"
    assert "the kernel, chosen without their scores, is symmetric" in facts["If"]
    assert facts["Proved"] == "nothing as a number"


def test_the_promise_holds_in_every_group():
    site = np.where(np.arange(N) < 20, "few", "many")
    args = learners.Ridge(1.0), scores.Absolute(), X[OLD], Y[OLD]
    cp = jaxcp.full_conformal(KEY, *args, groups=site)
    least = min(law.coverage for law in cp.certificate(0.2))
    promise, _ = _facts(cp, cp, 0.2)
    assert promised(cp, 0.2) <= least and promise.endswith("in each of 2 groups")
    cp = jaxcp.calibrate_groups(scores.Absolute(), PRED[OLD], Y[OLD], site, min_size=30)
    assert "in each group of at least 30 rows" in _facts(cp, cp, 0.2)[0]
    page = jaxcp.report(cp, PRED[NEW][:5], Y[NEW][:5], 0.2, groups=["many"] * 5)
    assert "few" in parsed(page).words  # a group without new rows


def test_rules_without_rows_and_what_is_no_calibration():
    args = scores.Absolute(), PRED[OLD], Y[OLD]
    cp = jaxcp.calibrate_conditional(*args, X[OLD])
    page = jaxcp.report(cp, PRED[NEW], Y[NEW], 0.2, features=X[NEW])
    assert f"{N} new rows" in parsed(page).words
    ends = lambda preds, alpha: np.stack([preds - 1, preds + 1], axis=1)  # noqa: E731
    with pytest.raises(ValueError, match="words for its promise and its assumption"):
        jaxcp.report(ends, PRED[NEW], Y[NEW], 0.2)
    ends.promise, ends.assumption = "P(Y in set) >= {alpha}", "it is <so>"
    page = jaxcp.report(ends, PRED[NEW], Y[NEW], 0.2)
    assert "nothing as a number" in page and "it is &lt;so&gt;" in page
    two = jaxcp.calibrate_groups(*args, SITE[OLD])
    page = jaxcp.report(two, PRED[NEW], Y[NEW], [0.1, 0.2], groups=SITE[NEW])
    assert page.count("<figure>") == 2
    with pytest.raises(ValueError, match=r"called with alpha, got .*Predictor"):
        jaxcp.report(PLAIN.at(0.2), PRED[NEW], Y[NEW], 0.2)


def test_pages_of_several_threads_are_alike():
    """Matplotlib has one style for all threads, which is what it was afterwards."""
    before = dict(mpl.rcParams)
    make = lambda _: jaxcp.report(PLAIN, PRED[NEW], Y[NEW], 0.2)  # noqa: E731
    with ThreadPoolExecutor(4) as pool:
        pages = [*pool.map(make, range(4))]
    assert dict(mpl.rcParams) == before and len({*pages}) == 1
    assert all('role="img"' in part for part in pages[0].split("<svg")[1:])


def test_sets_without_pictures_and_without_rows():
    none = slice(0, 0)
    page = jaxcp.report(PLAIN, PRED[none], Y[none], 0.2)
    assert "nan" in parsed(page).words
    preds, y = np.stack([PRED, PRED], axis=1), np.stack([Y, PRED], axis=1)
    boxes = jaxcp.calibrate(scores.Absolute(), preds[OLD], y[OLD])
    flags = np.stack([SITE == "plain", PRED > 0], axis=1)[NEW]
    page = jaxcp.report(boxes, preds[NEW], y[NEW], 0.2, groups=flags)
    assert page.count("<figure>") == 2  # sizes, and groups that overlap
    with pytest.raises(ValueError, match="groups with 60 rows"):
        jaxcp.report(PLAIN, PRED[NEW], Y[NEW], 0.2, groups=SITE)
