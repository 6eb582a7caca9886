"""Who takes part in a round, and what becomes of them: sampling, failures, stragglers."""

import math

import numpy as np

from jaxfed.engine.sampling import sample
from jaxfed.types import Cohort


def draw_cohort(
    round_: int,
    size: np.ndarray,
    *,
    clients_per_round: int,
    local_epochs: int,
    sampling: str = 'uniform',
    dropout: float = 0.0,
    stragglers: float = 0.0,
    over_selection: float = 0.0,
    cohort_seed: int,
    availability_seed: int,
) -> Cohort:
    """Draws the clients of a round and how much of its work each of them gets done.

    `ceil((1 + over_selection) S)` clients are sampled. Each is lost with probability `dropout`;
    each of the others is a straggler with probability `stragglers` and then does 1 to E local
    epochs, any number as likely, instead of E. The server waits for S clients: the first to report,
    those with the fewest examples to go through, are the round; the others' work is lost.

    Args:
      round_: its number, 1 for the first.
      size: [N] examples of each client.
      clients_per_round: S.
      local_epochs: E.
      sampling: a key of SAMPLINGS.
      dropout: probability that a sampled client fails.
      stragglers: probability that a client does not finish in time.
      over_selection: clients sampled beyond S, as a share of S.
      cohort_seed: of sampling.
      availability_seed: of what becomes of the sampled clients.

    Returns:
      The cohort, sorted by client; clients that failed fill it up to S.

    Raises:
      ValueError: if a sampling of one's own does not give distinct clients.

    Reference:
      Bonawitz et al., Towards Federated Learning at Scale, 2019, section 2 (over-selection, 0.3);
      Li et al., Federated Optimization in Heterogeneous Networks, 2020, section 5.2 (stragglers).
    """
    sampled = candidates(clients_per_round, over_selection)
    chosen = sample(sampling, round_, size, number=sampled, seed=cohort_seed)
    rng = np.random.default_rng([availability_seed, round_])
    arrives = rng.random(sampled) >= dropout
    slow = rng.random(sampled) < stragglers
    fewer = rng.integers(1, local_epochs, sampled, endpoint=True)
    epochs = np.where(arrives, np.where(slow, fewer, local_epochs), 0)
    # Who fails never reports.
    work = np.where(arrives, epochs * size[chosen], np.inf)
    first = np.sort(np.argsort(work, kind='stable')[:clients_per_round])
    return Cohort(chosen[first].astype(np.int32), epochs[first].astype(np.int32))


def candidates(clients_per_round: int, over_selection: float) -> int:
    """Clients that are sampled so that enough of them report, ceil((1 + over_selection) S).

    Args:
      clients_per_round: S.
      over_selection: a share of S.

    Returns:
      The number.
    """
    # Rounded first: 1.1 * 10 is a little more than 11.
    return math.ceil(round((1 + over_selection) * clients_per_round, 9))


def everyone(clients: np.ndarray | list[int], local_epochs: int) -> Cohort:
    """A cohort in which nobody fails or is late.

    Args:
      clients: [S] ids.
      local_epochs: E.

    Returns:
      The cohort.
    """
    ids = np.asarray(clients, np.int32)
    return Cohort(ids, np.full(ids.shape, local_epochs, np.int32))
