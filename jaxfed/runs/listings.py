"""What --method=list and --measure=list print."""

from absl import flags

from jaxfed import methods
from jaxfed.methods.costs import MethodCost, method_cost
from jaxfed.metrics.measures import MEASURES
from jaxfed.models import make_model
from jaxfed.recording import display


def list_methods() -> None:
    """Print every method with its hyper-parameters, their defaults and its paper."""
    rows = []
    for name in methods.METHODS:
        sentence, paper = methods.describe(name)
        plain = [
            (h if h in flags.FLAGS and h != 'alpha' else f'{name}.{h}', p.default)
            for h, p in methods.hyperparameters(name).items()
        ]
        shown = [(f'--{flag}', str(default)) for flag, default in plain]
        cost = display.cost_in_words(cost_of(name)._asdict())
        rows.append(
            (name, '\n'.join(filter(None, (sentence, cost and f'Costs: {cost}', paper))), shown)
        )
    display.show_methods(rows)


def list_measures() -> None:
    """Print every measure with the fields that it adds to metrics.jsonl and its cost."""
    rows = []
    for name, measure in MEASURES.items():
        rows.append((name, f'{measure.text}\nCosts: {measure.cost}', measure.fields, measure.local))
    display.show_measures(rows)


def cost_of(name: str) -> MethodCost:
    """What a method costs beyond FedAvg with the FedNTD CNN on CIFAR-10.

    Args:
      name: of the method, with its default hyper-parameters.

    Returns:
      The costs.
    """
    shape, classes = (32, 32, 3), 10
    method = methods.METHODS[name]()
    model = method.adapt(make_model('cnn', input_shape=shape, num_classes=classes))
    return method_cost(method, model, input_shape=shape, num_classes=classes)
