"""The output of --method=list and --measure=list."""

import contextlib

from jaxfed import methods
from jaxfed.methods.costs import MethodCost, method_cost
from jaxfed.metrics.measures import MEASURES
from jaxfed.models import make_model
from jaxfed.recording import display
from jaxfed.runs.config_flags import flag_of

NETWORKS = ('cnn', 'resnet8')  # the second has batch normalisation


def list_methods() -> None:
    """Print every method with its hyper-parameters, their defaults and its paper."""
    rows = []
    for name in methods.METHODS:
        sentence, paper = methods.describe(name)
        hyperparameters = [
            (f'--{flag_of(name, key)}', str(parameter.default))
            for key, parameter in methods.hyperparameters(name).items()
        ]
        cost = cost_in_words(name)
        text = '\n'.join(filter(None, (sentence, cost and f'Costs: {cost}', paper)))
        rows.append((name, text, hyperparameters))
    display.show_methods(rows)


def list_measures() -> None:
    """Print every measure with the fields that it adds to metrics.jsonl and its cost."""
    display.show_measures(
        [
            (name, f'{measure.text}\nCosts: {measure.cost}', measure.fields, measure.local)
            for name, measure in MEASURES.items()
        ]
    )


def cost_in_words(name: str) -> str:
    """The cost beyond FedAvg of a method, '' for none."""
    cost = cost_of(name)
    if cost is None:
        return f'not known for the networks {" and ".join(NETWORKS)}'
    return display.cost_in_words(cost._asdict())


def cost_of(name: str) -> MethodCost | None:
    """The cost beyond FedAvg of a method with default settings on CIFAR-10.

    The network is the first of `NETWORKS` that suits the method; None if none does.
    """
    shape, classes = (32, 32, 3), 10
    for network in NETWORKS:
        model = make_model(network, input_shape=shape, num_classes=classes)
        # A user's method may need another network and raise an error of any kind.
        with contextlib.suppress(Exception):
            return method_cost(
                methods.METHODS[name](), model, input_shape=shape, num_classes=classes
            )
    return None
