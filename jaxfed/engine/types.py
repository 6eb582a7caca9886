"""The inputs and outputs of the compiled round, every field with its shape.

Letters: `X` experiments that share the program, usually one; `S` clients in the cohort of each
experiment; `N` clients of each experiment; `D` devices; `M` positions on each device, as in
`lanes.Schedule`; `n` images. A row of one experiment lacks the axis X. Slot x S + s is client s of
the cohort of experiment x.
"""

from typing import Any, NamedTuple

from jaxfed.types import Array, Batch, Cohort, PyTree


class TrainingData(NamedTuple):
    """All clients' examples on the device; clients index one copy of the images."""

    # [n, H W channels] uint8 or float32 in the file's units, shared by experiments. A TPU pads the
    # last axes of an array, so images of 3 channels would need four times the memory.
    x: Any
    y: Array  # [X, n] int32
    order: Array  # [X, m] int32, examples grouped by client
    start: Array  # [X, N] int32, first place of a client's group in `order`
    size: Array  # [X, N] int32
    label_counts: Array  # [X, N, C] int32
    auxiliary: Batch | None = None  # [X, A, ...] the server's examples, normalised


class Tuned(NamedTuple):
    """Numbers that differ between the experiments of a program or between rounds."""

    learning_rate: Any  # [X] float32, of the clients' optimizer in this round
    momentum: Any = None  # [X] float32; None for the value in `LocalSettings`
    weight_decay: Any = None  # [X] float32; None for the value in `LocalSettings`
    dropout: Any = None  # [X] float32; None for the value in `LocalSettings`
    # [X] float32, 0 for a stopped experiment; None for methods that do not merge in every round
    running: Any = None
    hyperparameters: PyTree = ()  # name -> [X] float32, for `tune`; () if the method is constant


class ServerState(NamedTuple):
    """The state of the server between rounds."""

    params: PyTree  # [X, ...]
    method: PyTree  # [X, ...] the method's server state
    round: Array  # [X] int32, rounds done
    stats: PyTree = ()  # [X, ...] batch statistics, () for a network without


class RoundInputs(NamedTuple):
    """The inputs of a round that every device reads."""

    server: ServerState  # [X, ...]
    cohort: Cohort  # [X, S]
    tuned: Tuned  # [X]
    keys: Array  # [X] random keys of batches
    data: TrainingData
    shared: PyTree = None  # [X, ...] from the method's `share`; None to compute it here


class RoundMetrics(NamedTuple):
    """Numbers of a round."""

    train_loss: Array  # [X] mean of the local objective over the examples trained on


class Sums(NamedTuple):
    """Sums over the finished clients of a device [X, ...], or of all devices [D, X, ...]."""

    # Weighted sum of their updates [X, ...]; if the method combines them, they themselves
    # [X, S, ...], 0 for clients of other devices.
    update: PyTree
    stats: PyTree  # weighted sum of the changes of their batch statistics
    uploads: PyTree  # sum of their uploads
    loss: Array  # [X] sum of the local objective over the examples trained on
    examples: Array  # [X] float32, number of those examples


class Trained(NamedTuple):
    """The result of `Round.train`."""

    sums: Sums  # [D, X, ...]
    states: PyTree  # [D, M, ...] the clients' new states
    models: PyTree  # [D, M, ...] their parameters and batch statistics; () if not kept
