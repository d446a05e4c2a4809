"""Slow numpy loops, written from the papers, to compare with."""

from fractions import Fraction

import numpy as np


def rank(n, alpha):
    """ceil((n + 1)(1 - alpha)) of a decimal string, in rational arithmetic."""
    exact = (n + 1) * (1 - Fraction(alpha))
    return -(-exact.numerator // exact.denominator)


def kth_smallest(x, k):
    x = np.sort(np.where(np.isnan(x), np.inf, x))
    return -np.inf if k < 1 else np.inf if k > len(x) else x[k - 1]


def conformal_quantile(scores, alpha):
    return kth_smallest(scores, rank(len(scores), alpha))


def weighted_select(x, weights, target):
    if target <= 0:
        return -np.inf
    mass = 0.0
    for i in np.argsort(x, kind="stable"):
        mass += weights[i]
        if mass >= target:
            return x[i]
    return np.inf


def weighted_conformal_quantile(scores, weights, alpha, test_weight=1.0):
    total = np.sum(weights) + test_weight
    return weighted_select(scores, weights / total, 1 - alpha)


def p_value(scores, score, u=1.0):
    above = sum(s > score for s in scores)
    equal = sum(s == score for s in scores)
    return (above + u * (1 + equal)) / (len(scores) + 1)


def label_scores(p, penalty=0.0, k_reg=0, u=0.0):
    """APS and RAPS scores of all labels, equal probabilities ranked by label."""
    result, mass = np.empty(len(p)), 0.0
    order = np.argsort(-p, kind="stable")
    for r, label in enumerate(order, start=1):
        through = 1.0 if r == len(p) else mass + p[label]
        result[label] = through - u * p[label] + penalty * max(r - k_reg, 0)
        mass = through
    return result


def inclusive_set(label_scores_, p, q):
    """The shortest prefix whose score reaches q; all labels if none does."""
    order = np.argsort(-p, kind="stable")
    keep = np.zeros(len(p), bool)
    for label in order:
        keep[label] = True
        if label_scores_[label] >= q:
            break
    return keep


def ridge(x, y, penalty):
    """Coefficients with the intercept last, which is not penalized."""
    design = np.column_stack([x, np.ones(len(x))])
    price = np.diag([penalty] * x.shape[1] + [0.0])
    return np.linalg.solve(design.T @ design + price, design.T @ y)


def jackknife(x, y, x_new, penalty, alpha):
    """Jackknife+, minmax and the plain jackknife of a ridge: Barber et al., 2021."""
    n = len(y)
    design = np.column_stack([x_new, np.ones(len(x_new))])
    preds, residuals = np.empty((n, len(x_new))), np.empty(n)
    for i in range(n):
        keep = np.arange(n) != i
        coef = ridge(x[keep], y[keep], penalty)
        residuals[i] = abs(y[i] - np.append(x[i], 1) @ coef)
        preds[i] = design @ coef
    full = design @ ridge(x, y, penalty)
    q = conformal_quantile(residuals, alpha)
    return {
        "plus": plus_interval(preds, residuals, alpha),
        "minmax": (preds.min(axis=0) - q, preds.max(axis=0) + q),
        "naive": (full - q, full + q),
    }


def plus_interval(preds, residuals, alpha):
    """The k-th smallest of f + R and the floor(alpha (n + 1))-th smallest of f - R."""
    n, m = preds.shape
    k = rank(n, alpha)
    lower, upper = preds - residuals[:, None], preds + residuals[:, None]
    return (
        np.array([kth_smallest(lower[:, j], n + 1 - k) for j in range(m)]),
        np.array([kth_smallest(upper[:, j], k) for j in range(m)]),
    )


def weighted_plus_interval(preds, residuals, weights, test_weight, alpha):
    """Weighted quantiles with the test point's atom at -inf and at +inf."""
    upper = [
        weighted_conformal_quantile(column, weights, alpha, test_weight)
        for column in (preds + residuals[:, None]).T
    ]
    lower = [
        -weighted_conformal_quantile(-column, weights, alpha, test_weight)
        for column in (preds - residuals[:, None]).T
    ]
    return np.array(lower), np.array(upper)


def soft_members(labels, q, temperature):
    """Soft membership of every label (Stutz et al. 2022, eq. 3)."""
    return 1 / (1 + np.exp(-(q - labels) / temperature))


def conformal_training_loss(cal, labels, y, alpha, temperature, kappa, w, loss_matrix):
    """Stutz et al. 2022, eqs. 4, 5 and 8, row by row, at the exact threshold."""
    q, total = conformal_quantile(cal, alpha), 0.0
    for scores, target in zip(labels, y, strict=True):
        member = soft_members(scores, q, temperature)
        total += w[target] * max(member.sum() - kappa, 0)
        for c, m in enumerate(member):
            total += loss_matrix[target, c] * (1 - m if c == target else m)
    return total / len(y)


def isotonic(x, y, weights=None):
    """max over starts of min over ends of the mean of a block of levels."""
    weights = np.ones(len(x)) if weights is None else weights
    levels = np.unique(x)
    mass = np.array([np.sum(weights[x == v]) for v in levels])
    total = np.array([np.sum((weights * y)[x == v]) for v in levels])
    mean = lambda a, b: total[a : b + 1].sum() / mass[a : b + 1].sum()  # noqa: E731
    fit = {
        v: max(
            min(mean(a, b) for b in range(j, len(levels)) if mass[a : b + 1].sum())
            for a in range(j + 1)
        )
        for j, v in enumerate(levels)
        if mass[j]
    }
    return np.array([fit.get(v, np.nan) for v in x])


def venn_abers(scores, labels, test_scores, weights=None, test_weight=1.0):
    """The isotonic fit of all rows and the test row, with label 0 and with label 1."""
    weights = np.ones(len(scores)) if weights is None else weights
    one = lambda s, t: isotonic(  # noqa: E731
        np.append(scores, s), np.append(labels, t), np.append(weights, test_weight)
    )[-1]
    return np.array([[one(s, t) for s in test_scores] for t in (0, 1)])
