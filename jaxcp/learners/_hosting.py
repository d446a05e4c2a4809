"""Many fits on the host: in threads or by an executor, kept when one of them fails."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor, as_completed, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import date
from numbers import Number
from typing import Any

import jax
import numpy as np


@jax.tree_util.register_static
@dataclass(frozen=True, eq=False, repr=False)
class ModelFits:
    """Fitted models of any library, in the order of the resamples. Made by `Estimator`.

    Args:
      models: The fitted models, a list of length b; None where a fit is not done.
        Where the estimator holds several models, each entry is a tuple of them.
      classes: Classes in the order of the columns of probabilities, or None.
      entropy: Words of the key.
      weights: Weights of the rows in each fit, shape (b, n).
      x: Training inputs.
      y: Training targets.
      full: The fit on all rows, once it is asked for.
      digest: Fingerprint of x and y, of fits that an error carries.
    """

    models: list[Any]
    classes: tuple | None
    entropy: tuple[int, ...]
    weights: np.ndarray
    x: Any
    y: Any
    full: list[Any] = field(default_factory=list)
    digest: bytes | None = None

    def __repr__(self) -> str:
        done = sum(model is not None for model in self.models)
        return f"ModelFits({done} of {len(self.models)} fits)"

    def marked(self) -> ModelFits:
        """Returns the fits with the fingerprint of their data, taken once.

        A later change of the data in place is then noticed.
        """
        if self.digest is not None:
            return self
        return replace(self, digest=_digest(self.x, self.y))

    def check_same(self, other: ModelFits) -> None:
        """Raises ValueError unless other fits are of the same key, data and weights."""
        same = {
            "key": self.entropy == other.entropy,
            "weights": np.array_equal(self.weights, other.weights),
            "x and y": self.marked().digest == other.marked().digest,
        }
        for name, is_same in same.items():
            if not is_same:
                raise ValueError(
                    f"expected the {name} of the fits that are resumed, got others; "
                    "fit anew without resume"
                )


class FitError(ValueError):
    """A fit that raised, with the fits that are done. Made by the fits of `Estimator`.

    Its cause is what the model raised. `Estimator.resume(error.fits)` goes on.

    Args:
      message: What happened, and in which resample.
      fits: The fits that are done; its `models` are None where a fit is missing.

    See also:
      learners.Estimator, learners.Estimator.resume

    Example:
      >>> error = FitError("expected a fit, got RuntimeError")
      >>> isinstance(error, ValueError), error.fits
      (True, None)
    """

    def __init__(self, message: str, fits: ModelFits | None = None) -> None:
        super().__init__(message)
        self.fits = fits


@contextmanager
def keeping(fits: ModelFits) -> Iterator[None]:
    """Attaches the fits that are done to an error or an interrupt."""
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        vars(error)["fits"] = fits.marked()
        error.add_note(f"{fits} are kept: learner.resume(error.fits) goes on")
        raise


def run(
    task: Callable[..., Any],
    jobs: dict[int, tuple],
    done: Callable[[int, Any], None],
    num_workers: int,
    executor: Executor | None = None,
) -> tuple[int, Exception] | None:
    """Runs jobs and tells `done` each result; returns the first job that raises.

    No job starts after it; running jobs are completed, also after Ctrl-C.
    """
    if executor is not None:
        return _run(task, jobs, done, executor)
    if num_workers > 1 and len(jobs) > 1:
        with ThreadPoolExecutor(num_workers) as pool:
            return _run(task, jobs, done, pool)
    for name, job in jobs.items():
        try:
            result = task(*job)
        except Exception as error:
            return name, error
        done(name, result)
    return None


def _run(task, jobs, done, executor):
    futures: dict[Future, int] = {}
    kept: set[Future] = set()

    def keep(future):
        if future not in kept and not future.cancelled() and not future.exception():
            kept.add(future)
            done(futures[future], future.result())

    try:
        for name, job in jobs.items():
            futures[executor.submit(task, *job)] = name
        for future in as_completed(futures):
            if isinstance(error := future.exception(), Exception):
                return futures[future], error
            future.result()  # raises an interrupt, which reaches processes as well
            keep(future)
    finally:
        running = [future for future in futures if not future.cancel()]
        for future in wait(running).done:
            keep(future)
    return None


def _digest(*values):
    """Returns a fingerprint of data; of objects without known content their place."""
    known = hashlib.sha256()
    for part in _parts(values):
        known.update(hashlib.sha256(part).digest())
    return known.digest()


def _parts(value):
    """Yields the content of data as bytes, however it lies in memory."""
    if isinstance(value, dict):
        yield from _parts(list(value.items()))
    elif hasattr(value, "iloc") and value.ndim == 2:  # of pandas
        columns = range(value.shape[1])
        yield from _parts([(str(value.columns[j]), value.iloc[:, j]) for j in columns])
    elif hasattr(value, "to_numpy"):
        yield from _parts(value.to_numpy())
    elif hasattr(value, "tocsr"):  # of scipy
        rows = value.tocsr()
        yield from _parts((rows.shape, rows.data, rows.indices, rows.indptr))
    elif isinstance(value, np.ndarray) and value.dtype != object:
        yield f"{value.dtype} {value.shape}".encode()
        yield value.tobytes()
    elif isinstance(value, np.ndarray | list | tuple):
        yield f"{len(value)}".encode()
        for part in value:
            yield from _parts(part)
    else:
        plain = isinstance(value, str | bytes | Number | np.generic | date | None)
        yield (repr(value) if plain else str(id(value))).encode()
