"""The output of --method=list and --measure=list."""

from jaxfed import methods
from jaxfed.methods.costs import MethodCost, method_cost
from jaxfed.metrics.measures import MEASURES
from jaxfed.models import make_model
from jaxfed.recording import display
from jaxfed.runs.config_flags import flag_of


def list_methods() -> None:
    """Print every method with its hyper-parameters, their defaults and its paper."""
    rows = []
    for name in methods.METHODS:
        sentence, paper = methods.describe(name)
        hyperparameters = [
            (f'--{flag_of(name, key)}', str(parameter.default))
            for key, parameter in methods.hyperparameters(name).items()
        ]
        cost = display.cost_in_words(cost_of(name)._asdict())
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


def cost_of(name: str) -> MethodCost:
    """The cost beyond FedAvg of a method with default settings; the FedNTD CNN on CIFAR-10.

    FedBN, which needs batch normalisation, has ResNet-8.
    """
    shape, classes = (32, 32, 3), 10
    method, network = methods.METHODS[name](), 'resnet8' if name == 'fedbn' else 'cnn'
    model = make_model(network, input_shape=shape, num_classes=classes)
    return method_cost(method, model, input_shape=shape, num_classes=classes)
