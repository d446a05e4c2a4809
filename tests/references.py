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
