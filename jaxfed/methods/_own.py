"""Parameters that stay with each client instead of being averaged."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxfed.methods.method import ClientView, Method
from jaxfed.types import Model, PyTree

# (parameters, batch statistics) -> a bool for each array of the parameters
Select = Callable[[PyTree, PyTree], PyTree]


def pick(mask: PyTree, yes: PyTree, no: PyTree) -> PyTree:
    """The arrays of `yes` where the mask is True, else those of `no`."""
    return jax.tree.map(lambda keep, a, b: a if keep else b, mask, yes, no)


def below(*names: str) -> Select:
    """Selects all parameters below these keys of the parameters' dictionary."""

    def select(params: PyTree, stats: PyTree) -> PyTree:
        missing = [name for name in names if not (isinstance(params, dict) and name in params)]
        if missing:
            raise ValueError(
                f'clients cannot keep {missing[0]!r}: the parameters of the network must hold it '
                'by this name.'
            )
        return {
            name: jax.tree.map(lambda _, own=name in names: own, layer)
            for name, layer in params.items()
        }

    return select


def keep_own(select: Select, *, stats: bool = False) -> Method:
    """Clients keep the selected parameters; the others are averaged.

    Args:
      select: the parameters that stay.
      stats: whether batch statistics stay, too.
    """

    def of_client(params: PyTree, statistics: PyTree) -> tuple[PyTree, PyTree]:
        mask = select(params, statistics)
        nothing = jax.tree.map(lambda leaf: jnp.zeros(0, leaf.dtype), params)
        return pick(mask, params, nothing), statistics if stats else ()

    def adapt(model: Model) -> Model:
        select(jax.eval_shape(model.init, jax.random.key(0)), model.stats)  # refuses a network
        return model

    def init(params: PyTree, statistics: PyTree) -> tuple[PyTree, PyTree]:
        return (), of_client(params, statistics)

    def receive(client: ClientView) -> tuple[PyTree, PyTree]:
        own, own_stats = client.state
        params = pick(select(client.params, client.stats), own, client.params)
        return params, own_stats if stats else client.stats

    def send(client: ClientView) -> PyTree:
        nothing = jax.tree.map(jnp.zeros_like, client.update)
        return pick(select(client.params, client.stats), nothing, client.update)

    def finish(client: ClientView) -> tuple[PyTree, PyTree]:
        return of_client(client.params, client.stats), ()

    def own(params: PyTree, statistics: PyTree) -> tuple[PyTree, PyTree]:
        return select(params, statistics), jax.tree.map(lambda _: stats, statistics)

    return Method(
        adapt=adapt,
        init=init,
        receive=receive,
        send=send,
        finish=finish,
        own=own,
    )


def pair(model: Model) -> Model:
    """Adds a second set of parameters to a network, equal to the first one at the beginning.

    Parameters are {'model': ..., 'own': ...}; the network evaluates the first.

    Raises:
      ValueError: if the network has batch statistics, dropout or a mask of the real examples.
    """
    if model.stats or model.random or model.masked:  # the second model is trained by `apply`
        raise ValueError(
            'ditto and apfl need a network without batch statistics, dropout and mask; choose one, '
            'as --model=cnn.'
        )

    def init(key: jax.Array) -> PyTree:
        params = model.init(key)
        return {'model': params, 'own': params}

    return Model(init, lambda params, x: model.apply(params['model'], x))
