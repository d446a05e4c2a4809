"""One state a group: any method of a stream, for several series in one."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcp import _arrays, _checks, _names
from jaxcp._tree import pytree, static
from jaxcp.online.stream import Stream, past_scores
from jaxcp.scores import inputs
from jaxcp.typing import AnySet, ArrayLike, PyTree, Score


@pytree
class ByGroup(Stream):
    """A method with a state for each group: only that of a row's own group learns.

    Predictions are pairs (group, pred). The state is that of the method with a leading
    axis g; a row reads and writes its own place there, and every group is the method
    on the rows of the group alone, to the last bit (but for the tangent of `PID`). That
    needs `window` where a method has one: by default windows have the size of the
    largest group, and that of a smaller one, which begins with absent rows, grows.

    Args:
      method: A method of `jaxcp.online`, or a `Stream` of your own.
      num_groups: Number of groups g; groups are then 0, ..., g - 1.
      group_names: Names of the groups in place of their number: distinct hashable
        values. Groups are then given by name; numbers among them also inside `jit`.

    Raises:
      ValueError: for no method, or neither `num_groups` nor `group_names`.

    Guarantee:
      That of the method, in each group, along its own rows: of ACI the bound on the
      mean error, with T the rows of the group.

    Assumption:
      That of the method, in each group.

    Cost:
      One step of the method for a row, whatever g is; memory for g states, which a CPU
      copies at each step of a scan: with 100 windows of 200 scores 20 microseconds a
      row. A known group that is none of these raises ValueError; a traced one has the
      infinite set, and nothing learns from it.

    References:
      Vovk, Gammerman, Shafer, Algorithmic Learning in a Random World, 2005 (a taxonomy
      of rows).

    See also:
      online.run, calibrate_groups, online.ACI

    Example:
      >>> from jaxcp import online, scores
      >>> aci = online.ACI(scores.Absolute(), step_size=0.05)
      >>> method = online.ByGroup(aci, group_names=["east", "west"])
      >>> past, region = jnp.arange(1.0, 21.0), ["east", "west"] * 10
      >>> state = method.init(past, 0.2, groups=region)
      >>> pred = ("west", jnp.array(0.0))
      >>> state, sets = method.step(state, pred, 99.0, 0.2)
      >>> sets.upper.item(), [round(a, 2) for a in state.alpha.tolist()]
      (18.0, [0.2, 0.16])
      >>> method.quantile(state, 0.2).tolist()  # of each group
      [17.0, 99.0]
    """

    method: Stream
    num_groups: Any = static(default=None)
    group_names: Any = static(default=None)

    def __post_init__(self) -> None:
        _checks.check_kind("a method of jaxcp.online", self.method, Stream)
        given = _names.as_groups([], self.num_groups, self.group_names)
        _checks.check_count("num_groups", given.count or self.num_groups, 1)
        object.__setattr__(self, "num_groups", given.count)
        object.__setattr__(self, "group_names", given.names)

    @property
    def promise(self) -> str:
        """That of the method, in words with a place for {alpha}."""
        return self.method.promise

    @property
    def assumption(self) -> str:
        """That of the method, in words."""
        return self.method.assumption

    @property
    def score(self) -> Score:  # type: ignore[override]
        """The score of the method, of the second of a pair (group, pred)."""
        return _OfGroup(self.method.score, self.num_groups)

    @property
    def state_type(self) -> type:  # type: ignore[override]
        """The class of the method's states."""
        return self.method.state_type

    @_checks.by_labels
    def init(
        self,
        scores: ArrayLike,
        alpha: ArrayLike,
        *,
        groups: Any = None,
        mask: ArrayLike | None = None,
        length: Any = None,
    ) -> PyTree:
        """Returns the states after past scores, shape (n,) or (n, c), by time.

        Args:
          scores: Past scores of all groups, shape (n,) or (n, c).
          alpha: Level of the sets.
          groups: Group of each score, shape (n,).
          mask: True where a row counts, shape (n,).
          length: How many latest scores each group starts from. Defaults to the rows of
            the largest group, which have to be known.

        Returns:
          The state of the method with a leading axis g. What a smaller group lacks of
          `length` is absent there, as by `mask` of the method.

        Raises:
          ValueError: as the method's `init`; if `groups` is missing, a known one is
            none of the groups, or groups are traced without `length`.
        """
        _checks.check_given(groups=groups)
        if self.group_names is not None:
            groups = _names.group_codes(self.group_names, groups, mask)
        given = _checks.groups(groups, self.num_groups)
        named, known = {"groups": given, "mask": _checks.mask(mask)}, (groups, mask)
        scores, groups, mask = _checks.rows(scores=scores, **named)
        scores = past_scores(scores, None)
        if length is None and _arrays.is_concrete(known):
            codes = _names.on_host("groups", known[0])  # also inside of a program
            counts = _arrays.count_groups(codes, self.num_groups, known[1])
            length = max(1, *map(int, counts))
        _checks.check_count("length where groups are traced", length, 1)
        past, there = _by_group(scores, groups, mask, self.num_groups, length)
        full = _arrays.is_concrete(there) and there.all()
        start = lambda s, m: self.method.init(s, alpha, mask=None if full else m)  # noqa: E731
        return jax.vmap(start)(past, there)

    def rank(self, state: PyTree, alpha: ArrayLike) -> PyTree:
        """Returns the ranks of the method, which are those of every group."""
        found = (_checks.num_rows(state=state),)
        _checks.check_shape("groups of the state", (self.num_groups,), found)
        return self.method.rank(_first(state), alpha)

    def threshold(self, state, rank):
        return jax.vmap(lambda own: self.method.threshold(own, rank))(state)

    def learn(self, state, pred, y, rank, q):
        group, own = self._own(state, pred)
        later = self.method.learn(own, pred[1], y, rank, q)
        known = group < self.num_groups  # an index beyond is the last one
        later = jax.tree.map(lambda new, old: jnp.where(known, new, old), later, own)
        put = lambda v, new: lax.dynamic_update_index_in_dim(v, new, group, 0)  # noqa: E731
        return jax.tree.map(put, state, later)

    def _own(self, state, pred):
        """Returns the number of a group, g for an unknown one, and its state."""
        group = _arrays.group_codes(pred[0], self.num_groups)
        own = lambda v: lax.dynamic_index_in_dim(v, group, 0, False)  # noqa: E731
        return group, jax.tree.map(own, state)

    def _threshold_for(self, state, pred, rank):
        group, own = self._own(state, pred)
        q = self.method._threshold_for(own, pred[1], rank)
        return jnp.where(group < self.num_groups, q, jnp.inf)

    def _late(self, delay):
        if self.method._late(delay) is not self.method and delay:
            expected = f"a method without lags, got {type(self.method).__name__}"
            raise ValueError(f"expected {expected}; run each group by itself")
        return self

    def _coded(self, preds: Any) -> Any:
        if not isinstance(preds, tuple) or len(preds) != 2:
            return preds
        _checks.check_given(group=preds[0])
        if self.group_names is None:
            return preds
        groups = preds[0]
        if isinstance(groups, tuple) and groups in self.group_names:  # of one step
            groups = _names.one_name(groups)
        cure = "; name all groups at ByGroup(method, group_names=[...])"
        return _names.group_codes(self.group_names, groups, cure=cure), preds[1]


@pytree
class _OfGroup:
    """A score of pairs (group, pred), which reads pred alone."""

    score: Score
    num_groups: int = static()

    def __call__(self, pred: tuple[Array, PyTree], y: Array) -> Array:
        return self.score(pred[1], y)

    def invert(self, pred: tuple[Array, PyTree], q: Array) -> AnySet:
        return self.score.invert(pred[1], q)

    @property
    def takes(self) -> inputs.Input:
        def check(groups, y, mask):
            _checks.check_vectors(group=groups)
            _checks.check_labels("group", groups, self.num_groups, mask)

        group = inputs.Input("group, shape ()", check)
        return inputs.parts(group=group, prediction=inputs.of(self.score))


@jax.jit
def _first(state):
    return jax.tree.map(lambda v: v[0], state)


@jax.jit(static_argnames=("num_groups", "length"))
def _by_group(scores, groups, mask, num_groups, length):
    """Returns the latest scores of each group, (g, length, ...), and which are any."""
    codes = _arrays.group_codes(groups, num_groups, mask)

    def latest(group):
        own = (codes == group)[::-1]
        (back,) = jnp.nonzero(own, size=length, fill_value=len(own))
        back = back[::-1]
        return scores[len(own) - 1 - jnp.minimum(back, len(own) - 1)], back < len(own)

    return lax.map(latest, jnp.arange(num_groups))
