"""Targets that come late, and out of order: each is charged to its own set."""

from __future__ import annotations

import copy
from collections.abc import Hashable
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

import jax

from jaxcp import _checks
from jaxcp._names import is_missing
from jaxcp.online.delayed import check_waits_for_none
from jaxcp.online.stream import Stream, issued
from jaxcp.typing import AnySet, ArrayLike, PyTree


@jax.tree_util.register_static
@dataclass(frozen=True, eq=False, repr=False)
class Queue:
    """Sets that wait for their targets, by id, and the state that learns from these.

    A value, as a state is: `queue, sets = queue.issue(id, pred)` when a prediction is
    made, `queue = queue.settle(id, y)` when its target is known, in any order. A target
    is charged to the set that was issued for it: `method.update(..., threshold=q)`.
    `jaxcp.save` and `jaxcp.load` keep all of it, what waits too, to the last bit. Past
    data whose targets came in order need no queue: `online.run` takes a `delay`.

    Args:
      method: A method of `jaxcp.online`, or a `Stream` of your own.
      state: Its state, from `method.init` or from an earlier run.
      alpha: Level of the sets, as for `online.run`.
      size: How many sets wait at most. Beyond it the oldest is dropped: its target is
        not learned from. Defaults to no limit.
      waiting: Prediction and threshold of each set that waits, by id, oldest first.
      num_dropped: How many sets were dropped.
      last_dropped: The id of the latest one, or None.

    Raises:
      ValueError: for no method, the state of another or one with a delay, `alpha`
        outside (0, 1), or a `size` below 1.

    Guarantee:
      Of ACI, where at most D other sets wait at a time and N were settled: |mean error
      of these - alpha| <= (max(a, 1 - a) + (D + 1) step_size) / (step_size N), a the
      alpha at the start, for targets in any order, whatever they are. Sets that are
      dropped do not count. Of windows: scores are as old as the delay. No such bound is
      known to us for `SFOGD`, nor for `DtACI`, which charges its experts as of now and
      covers less where errors depend on the last ones (0.83 of 0.9): take `ACI`.

    Assumption:
      That of the method.

    Cost:
      One `predict` for a set, one `update` for a target, on the host: in `jit` write
      the two with `quantile` and `update(..., threshold=)`. Each call copies the table
      of ids: 0.1 ms for 10,000 of them. Ids go into files if they are numbers, text,
      dates of Python or NumPy, or tuples of these.

    References:
      Gibbs, Candes, Adaptive Conformal Inference Under Distribution Shift, NeurIPS,
      2021.

    See also:
      online.run, online.ACI, online.ByGroup, save

    Example:
      >>> from jaxcp import online, scores
      >>> method = online.ACI(scores.Absolute(), step_size=0.05)
      >>> state = method.init(jnp.arange(1.0, 20.0), 0.2)
      >>> queue = Queue(method, state, 0.2, size=100)
      >>> queue, monday = queue.issue("monday", 0.0)
      >>> queue, tuesday = queue.issue("tuesday", 1.0)
      >>> queue = queue.settle("tuesday", 2.0)
      >>> queue
      Queue(ACI at alpha = 0.2, 1 waiting, 0 dropped)
      >>> queue = queue.settle("monday", 30.0)
      >>> round(queue.state.alpha.item(), 2)
      0.17
    """

    method: Stream
    state: PyTree
    alpha: ArrayLike
    _: KW_ONLY
    size: int | None = None
    waiting: dict[Hashable, Any] = field(default_factory=dict)
    num_dropped: int = 0
    last_dropped: Hashable = None

    def __post_init__(self) -> None:
        _checks.check_kind("a method of jaxcp.online", self.method, Stream)
        if self.size is not None:
            _checks.check_count("size", self.size, 1)
        check_waits_for_none(self.state)
        if not self.waiting:  # or it was checked before
            self.method.quantile(self.state, self.alpha)

    def __repr__(self) -> str:
        """Returns the method, and how many sets wait and were dropped."""
        kind, wait = type(self.method).__name__, f"{len(self.waiting)} waiting"
        return f"Queue({kind} at alpha = {self.alpha}, {wait}, {self._dropped()})"

    def _dropped(self):
        last = f", {self.last_dropped!r} last" * (self.num_dropped > 0)
        return f"{self.num_dropped} dropped{last}"

    def issue(self, id: Hashable, pred: PyTree) -> tuple[Queue, AnySet]:
        """Returns the queue in which a set waits for its target, and the set.

        Args:
          id: Name of the row, which `settle` is given.
          pred: Prediction of one example.

        Returns:
          (queue, set): where `size` sets wait already, the oldest has been dropped from
          the queue, counted by `num_dropped` and named by `last_dropped`.

        Raises:
          ValueError: as `predict` of the method, for an id that waits already, and for
            one that is not hashable, None, or NaN.
        """
        if not isinstance(id, Hashable) or is_missing(id):
            raise ValueError(f"expected an id, hashable and not missing, got {id!r}")
        if id in self.waiting:
            raise ValueError(f"expected a new id, got {id!r}, which waits already")
        q, found = issued(self.method, self.state, pred, self.alpha)
        waiting = self.waiting | {id: (copy.deepcopy(pred), q)}
        count, last = self.num_dropped, self.last_dropped
        while self.size is not None and len(waiting) > self.size:
            del waiting[last := next(iter(waiting))]
            count += 1
        later = replace(self, waiting=waiting, num_dropped=count, last_dropped=last)
        return later, found

    def settle(self, id: Hashable, y: ArrayLike) -> Queue:
        """Returns the queue after the target of an id came: the state has learned it.

        Args:
          id: Name of the row, from `issue`.
          y: Its target, or label.

        Raises:
          ValueError: as `update` of the method, and for an id that does not wait.
        """
        if not isinstance(id, Hashable) or id not in self.waiting:
            why = f"never issued, settled before, or dropped ({self._dropped()})"
            raise ValueError(f"expected an id that waits, got {id!r}: {why}")
        waiting = dict(self.waiting)
        pred, q = waiting.pop(id)
        state = self.method.update(self.state, pred, y, self.alpha, threshold=q)
        return replace(self, state=state, waiting=waiting)
