"""Rounds of FedAvg before a round of another method."""

from experiments.draw.figure import Series


def after_fedavg(series: Series, rounds: int, *, client: int) -> Series:
    """Train FedAvg, and a series' method only in the last round, which records a client's model.

    Series with the same seed share the rounds of FedAvg.

    Args:
      series: of the last round's method.
      rounds: in all.
      client: the client whose model is recorded.

    Returns:
      The series.

    Raises:
      ValueError: if no round is left for FedAvg.
    """
    if rounds < 2:
        raise ValueError(
            f'--rounds must be at least 2, got {rounds}: FedAvg trains all rounds but the last.'
        )
    (method,) = [f.removeprefix('--method=') for f in series.row.flags if '--method=' in f]
    phases = (f'--method=fedavg,{method}', f'--switch_round={rounds - 1}')
    variant = series.variant if method == 'fedavg' else (*phases, *series.variant)
    records = ('--measure=confusion', f'--confusion_clients={client}')
    rounds_flags = (f'--rounds={rounds}', f'--local_eval_every={rounds}')
    return series._replace(variant=(*variant, *rounds_flags, *records))
