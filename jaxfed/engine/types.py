"""What enters and leaves the compiled round, every field with its shape.

Letters: `X` experiments that share the program, one in most cases; `S` clients in the cohort of
each; `N` clients of each; `D` devices; `M` positions on each, as in `lanes.Schedule`; `n` images.
A row of one experiment lacks the axis X. Slot x S + s is client s of the cohort of experiment x.
"""

from typing import Any, NamedTuple

from jaxfed.types import Array, Batch, Cohort, PyTree


class TrainingData(NamedTuple):
    """All clients' examples on the device; images are held once, and clients index them."""

    x: Any  # [n, H, W, channels] uint8 or float32 in the file's units, shared by experiments
    y: Array  # [X, n] int32
    order: Array  # [X, m] int32, examples grouped by client
    start: Array  # [X, N] int32, first place of a client's group in `order`
    size: Array  # [X, N] int32
    label_counts: Array  # [X, N, C] int32
    auxiliary: Batch | None = None  # [X, A, ...] the server's examples, normalised


class Tuned(NamedTuple):
    """Numbers that differ between the experiments of a program, or from round to round."""

    learning_rate: Any  # [X] float32, of the clients' optimizer in this round
    momentum: Any = None  # [X] float32, None for that of the settings
    weight_decay: Any = None  # [X] float32, None for that of the settings
    hyperparameters: PyTree = ()  # name -> [X] float32, for `tune`; () for those of the method


class ServerState(NamedTuple):
    """The state of the server between rounds."""

    params: PyTree  # [X, ...]
    method: PyTree  # [X, ...] the method's server state
    round: Array  # [X] int32, rounds done
    stats: PyTree = ()  # [X, ...] batch statistics, () for a network without


class RoundInputs(NamedTuple):
    """What every device reads in a round."""

    server: ServerState  # [X, ...]
    cohort: Cohort  # [X, S]
    tuned: Tuned  # [X]
    keys: Array  # [X] random keys of batches
    data: TrainingData


class RoundMetrics(NamedTuple):
    """Numbers of a round."""

    train_loss: Array  # [X] mean of the local objective over all examples trained on


class Sums(NamedTuple):
    """Sums over the clients that have finished, [X, ...]; [D, X, ...] of all devices."""

    update: PyTree  # weighted sum of their updates
    stats: PyTree  # weighted sum of the changes of their batch statistics
    uploads: PyTree  # sum of their uploads
    loss: Array  # [X] sum of the local objective over all examples trained on


class Trained(NamedTuple):
    """The result of `Round.train`."""

    sums: Sums  # [D, X, ...]
    states: PyTree  # [D, M, ...] the clients' new states
    models: PyTree  # [D, M, ...] their parameters and batch statistics, () unless they are kept
