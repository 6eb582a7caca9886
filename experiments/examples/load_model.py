"""Train, load the model and use it: python -m experiments.examples.load_model."""

import numpy as np

import jaxfed
from jaxfed.data import load_dataset


def main(rounds: int = 20) -> np.ndarray:
    """Train on the digits, load the model from its work directory, and count its mistakes.

    Returns:
      [10, 10] test examples by true and predicted class.
    """
    config = jaxfed.Config(method='fedlmd', model='mlp', rounds=rounds)
    workdir = jaxfed.simulate(config, quiet=False).workdir

    model = jaxfed.load(workdir)  # in any later process, from the folder alone
    data = load_dataset('digits')
    logits = model.apply(data.x_test)  # raw images, as in the dataset
    predicted = np.asarray(logits).argmax(axis=-1)
    print(f'accuracy of the loaded model {(predicted == data.y_test).mean():.1%}')

    confusion = np.zeros((10, 10), int)
    np.add.at(confusion, (data.y_test, predicted), 1)
    mistakes = confusion * (1 - np.eye(10, dtype=int))
    for place in mistakes.ravel().argsort()[::-1][:3]:
        true, wrong = divmod(int(place), 10)
        print(f'{mistakes[true, wrong]} images of a {true} are taken for a {wrong}')
    return confusion


if __name__ == '__main__':
    jaxfed.use_every_core()
    main()
