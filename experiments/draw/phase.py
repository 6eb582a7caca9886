"""Some rounds by one method and the rest by another."""

from experiments.draw.figure import Series


def after_fedavg(series: Series, rounds: int, *, client: int) -> Series:
    """Rounds of FedAvg before a last one of a series, in which a client's model is looked at.

    All of them have the same rounds of FedAvg if they have the same seed.

    Args:
      series: of the last round's method.
      rounds: in all.
      client: whose model.

    Returns:
      The series.

    Raises:
      ValueError: if there is no round for FedAvg.
    """
    if rounds < 2:
        raise ValueError(
            f'--rounds={rounds} leaves no round for FedAvg before the last one, which is of the '
            'method looked at; give at least 2.'
        )
    (method,) = [f.removeprefix('--method=') for f in series.row.flags if '--method=' in f]
    phases = (f'--method=fedavg,{method}', f'--switch_round={rounds - 1}')
    given = series.variant if method == 'fedavg' else (*phases, *series.variant)
    look = (
        f'--rounds={rounds}',
        f'--local_eval_every={rounds}',
        '--measure=confusion',
        f'--confusion_clients={client}',
    )
    return series._replace(variant=(*given, *look))
