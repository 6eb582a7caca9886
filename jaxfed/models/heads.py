"""New heads for networks with the last layer `params['classifier']`, a kernel and a bias."""

import jax
import jax.numpy as jnp

from jaxfed.models.layers import uniform_fan_in
from jaxfed.types import Array, Model, Outputs, PyTree


def _classifier(model: Model) -> tuple[int, int, bool]:
    """Features and classes of the network's last layer, and whether it has a bias."""
    params = jax.eval_shape(model.init, jax.random.key(0))
    classifier = params.get('classifier') if isinstance(params, dict) else None
    if (
        not isinstance(classifier, dict)
        or {*classifier, 'bias'} != {'kernel', 'bias'}
        or len(classifier['kernel'].shape) != 2
    ):
        raise ValueError(
            "the network's last layer cannot be changed: its parameters must hold a 'classifier' "
            "with 'kernel' [features, classes] and 'bias'."
        )
    features, classes = classifier['kernel'].shape
    return features, classes, 'bias' in classifier


def without_bias(model: Model) -> Model:
    """Removes the bias of the last layer."""
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
    """Inserts a projection of two layers between the features and the classifier.

    f' = W_2 relu(W_1 f + b_1) + b_2, logits = W f' + b; f' [B, width] are the new features

    Reference:
      Li et al., Model-Contrastive Federated Learning, CVPR 2021, section 3.3.
    """
    features, classes, biased = _classifier(model)
    projection = {'project1': (features, features), 'project2': (features, width)}
    sizes = {**projection, 'classifier': (width, classes)}
    taken = jax.eval_shape(model.init, jax.random.key(0)).keys() & projection.keys()
    if taken:
        raise ValueError(
            f'the projection has layers {" and ".join(projection)}, but the network has '
            f'{" and ".join(sorted(taken))}, too: rename it.'
        )

    def init(key: Array) -> PyTree:
        body, head = model.init(key), {}  # the body is that of other methods with the seed
        key = jax.random.fold_in(key, 0x68656164)  # no key that a network splits off
        for name, (inputs, outputs) in sizes.items():
            key, kernel_key, bias_key = jax.random.split(key, 3)
            draw = uniform_fan_in(inputs)
            head[name] = {'kernel': draw(kernel_key, (inputs, outputs), jnp.float32)}
            if biased or name != 'classifier':
                head[name]['bias'] = draw(bias_key, (outputs,), jnp.float32)
        return {**body, **head}

    def apply(params: PyTree, x: Array, *mode: PyTree) -> Outputs:
        body = {name: layer for name, layer in params.items() if name not in projection}
        # The original classifier is replaced, so its result is not used.
        unused = {'kernel': jnp.zeros((features, classes)), 'bias': jnp.zeros(classes)}
        outputs = model.apply({**body, 'classifier': unused}, x, *mode)
        if outputs.features.shape[-1] != features:
            raise ValueError(
                'the projection requires the input of the classifier as features; return '
                'jaxfed.types.Outputs(logits, features) from the network.'
            )

        def layer(name: str, x: Array) -> Array:
            return x @ params[name]['kernel'] + params[name].get('bias', 0.0)

        projected = layer('project2', jax.nn.relu(layer('project1', outputs.features)))
        return outputs._replace(logits=layer('classifier', projected), features=projected)

    return model._replace(init=init, apply=apply)
