"""Other heads for a network whose last layer is `params['classifier']`, a kernel and a bias."""

import jax
import jax.numpy as jnp

from jaxfed.models.layers import uniform_fan_in
from jaxfed.types import Array, Model, Outputs, PyTree


def _classifier(model: Model) -> tuple[int, int, bool]:
    """Features and classes of the network's last layer, and whether it has a bias."""
    params = jax.eval_shape(model.init, jax.random.key(0))
    classifier = params.get('classifier', {}) if isinstance(params, dict) else {}
    if set(classifier) not in ({'kernel', 'bias'}, {'kernel'}):
        raise ValueError(
            "the network's last layer cannot be changed: its parameters must hold a 'classifier' "
            "with 'kernel' and 'bias'."
        )
    features, classes = classifier['kernel'].shape
    return features, classes, 'bias' in classifier


def without_bias(model: Model) -> Model:
    """Takes the bias of the last layer away.

    Args:
      model: the network.

    Returns:
      The network without it.

    Raises:
      ValueError: if the last layer is not `params['classifier']`.
    """
    _, classes, biased = _classifier(model)
    if not biased:
        return model

    def init(key: Array) -> PyTree:
        params = model.init(key)
        return {**params, 'classifier': {'kernel': params['classifier']['kernel']}}

    def apply(params: PyTree, x: Array, *mode: PyTree) -> Outputs:
        classifier = {**params['classifier'], 'bias': jnp.zeros(classes)}
        return model.apply({**params, 'classifier': classifier}, x, *mode)

    return model._replace(init=init, apply=apply)


def with_projection(model: Model, *, width: int = 256) -> Model:
    """Puts a projection of two layers between the features and the classifier.

    f' = W_2 relu(W_1 f + b_1) + b_2, logits = W f' + b

    Args:
      model: the network.
      width: of f'.

    Returns:
      The network, whose features are f'.

    Raises:
      ValueError: if the last layer is not `params['classifier']`.

    Reference:
      Li et al., Model-Contrastive Federated Learning, CVPR 2021, section 3.3.
    """
    features, classes, biased = _classifier(model)
    sizes = {
        'project1': (features, features),
        'project2': (features, width),
        'classifier': (width, classes),
    }

    def init(key: Array) -> PyTree:
        body_key, key = jax.random.split(key)
        head = {}
        for name, (inputs, outputs) in sizes.items():
            key, kernel_key, bias_key = jax.random.split(key, 3)
            draw = uniform_fan_in(inputs)
            head[name] = {'kernel': draw(kernel_key, (inputs, outputs), jnp.float32)}
            if biased or name != 'classifier':
                head[name]['bias'] = draw(bias_key, (outputs,), jnp.float32)
        return {**model.init(body_key), **head}

    def apply(params: PyTree, x: Array, *mode: PyTree) -> Outputs:
        body = {name: layer for name, layer in params.items() if not name.startswith('project')}
        # The network's own classifier is gone; what it would compute is not used.
        unused = {'kernel': jnp.zeros((features, classes)), 'bias': jnp.zeros(classes)}
        outputs = model.apply({**body, 'classifier': unused}, x, *mode)
        hidden = outputs.features
        for name in sizes:
            layer = params[name]
            given = hidden
            hidden = given @ layer['kernel'] + layer.get('bias', 0.0)
            hidden = jax.nn.relu(hidden) if name == 'project1' else hidden
        return outputs._replace(logits=hidden, features=given)

    return model._replace(init=init, apply=apply)
