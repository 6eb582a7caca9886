"""One round whose clients train on other machines: the two programs of `round` as four.

The server computes `share` and sends it with its parameters. A client runs `train`, the program of
a whole round, with a cohort of which it holds only its own examples; the result is its message.
The server computes the weights of those that arrived, adds up their messages, and runs `merge`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.engine.lanes import Schedule
from jaxfed.engine.local import Context, LocalSettings
from jaxfed.engine.round import make_round, share_values, weights_of
from jaxfed.engine.stacking import map_range, stacking
from jaxfed.engine.types import RoundInputs, RoundMetrics, ServerState, Sums, Trained
from jaxfed.methods.method import Method
from jaxfed.types import Array, Model, PyTree


class RemoteRound(NamedTuple):
    """The programs of a round of one experiment (X = 1), pure and not compiled."""

    share: Callable[[RoundInputs], PyTree]  # on the server -> [1, ...]
    # (inputs with `shared`, state [1, 1, ...], schedule) on a client, see `Round.train`; the sums
    # are of its update, not weighted.
    train: Callable[[RoundInputs, PyTree, Schedule], Trained]
    weigh: Callable[[RoundInputs], tuple[Array, Array]]  # shares and weights [1, S]
    merge: Callable[[RoundInputs, Sums], tuple[ServerState, RoundMetrics]]  # see `Round.merge`


def make_remote_round(
    model: Model,
    method: Method,
    settings: LocalSettings,
    augment: Callable[[Array, Array], Array],
    normalise: Callable[[Array], Array],
    *,
    shift: Callable[[Array, Array], Array] | None = None,
) -> RemoteRound:
    """Build the programs of one round; the arguments are those of `make_round`."""
    context = Context(model, method, settings, augment, normalise, None, stacking(), shift)
    # A client knows no other's size: its own weight is 1, and the server weighs.
    alone = method._replace(weigh=Method().weigh, combine=None)
    by_size = settings._replace(aggregation='size')

    def mapped(function: Callable[..., PyTree]) -> Callable[[RoundInputs], Any]:
        return lambda inputs: map_range(partial(function, context, inputs), 1)

    client = make_round(model, alone, by_size, augment, normalise, shift=shift)
    server = make_round(model, method, settings, augment, normalise, shift=shift)
    return RemoteRound(mapped(share_values), client.train, mapped(weights_of), server.merge)


def add_up(
    messages: Sequence[tuple[int, Sums]],
    weights: tuple[Array, Array],
    cohort_size: int,
    *,
    combines: bool,
    survives: bool,
) -> Sums:
    """Add up the messages of the clients of a round.

    Args:
      messages: (place in the cohort, sums of the client without leading axes), at least one.
      weights: shares and weights [1, S] from `weigh`.
      cohort_size: S.
      combines: whether the method combines the updates itself, so that they are kept [S, ...].
      survives: whether a client whose loss is not finite does not count in the mean loss.

    Returns:
      The sums [1, 1, ...], as `merge` takes them.
    """
    slots, sums = zip(*sorted(messages, key=lambda message: message[0]), strict=True)
    share, weight = (np.asarray(of_clients)[0, list(slots)] for of_clients in weights)

    def total(trees: Sequence[PyTree], factors: Any) -> PyTree:
        def add(*leaves: Any) -> Any:
            return sum(factor * leaf for factor, leaf in zip(factors, leaves, strict=True))

        return jax.tree.map(add, *trees)

    def place(*rows: Any) -> np.ndarray:
        kept = np.zeros((cohort_size, *np.shape(rows[0])), np.float32)
        kept[list(slots)] = rows
        return kept

    updates, ones = [of.update for of in sums], [1] * len(sums)
    counted = [of for of in sums if np.isfinite(of.loss) or not survives]
    result = Sums(
        update=jax.tree.map(place, *updates) if combines else total(updates, weight),
        stats=total([of.stats for of in sums], share),
        uploads=total([of.uploads for of in sums], ones),
        loss=jnp.float32(sum(of.loss for of in counted)),
        examples=jnp.float32(sum(of.examples for of in counted)),
    )
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None, None], result)
