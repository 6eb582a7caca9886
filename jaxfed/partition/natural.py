"""The partition that the data comes with: by the user who made each example."""

import numpy as np

from jaxfed.partition.checks import Seed, checked_labels, generator


def natural(
    labels: np.ndarray,
    *,
    num_clients: int,
    users: np.ndarray | None,
    seed: Seed,
    num_users: int = 0,
    min_user_size: int = 1,
) -> list[np.ndarray]:
    """Deals whole users to the clients at random, as equally many to each as possible.

    With as many clients as users each client is one user. A user's examples are never split, and
    those of users that do not take part are not used: users with fewer than `min_user_size`
    examples, and, where `num_users` is not 0, all but that many of the others, drawn at random.

    Args:
      labels: [n] integers, the class of each training example (only their number matters).
      num_clients: number of clients N.
      users: [n] integers, who made each training example; None if the dataset does not tell.
      seed: of the choice of users and of the deal.
      num_users: how many users take part; 0 for all that are large enough.
      min_user_size: examples that a user must have to take part.

    Returns:
      N sorted int64 arrays, the examples of each client; together every example of the users that
      take part once.

    Raises:
      ValueError: if the dataset does not tell who made each example, or there are fewer users than
        clients, or fewer large enough than `num_users`.

    Reference:
      Caldas et al., LEAF: A Benchmark for Federated Settings, 2018; several users a client as in
      FedCAD, section 4 (about 2000 writers of FEMNIST dealt to 10 clients).
    """
    labels = checked_labels(labels, num_clients)
    if users is None:
        raise ValueError(
            'partition=natural deals by who made each example, which this dataset does not tell: '
            'choose a --dataset that does, or another --partition.'
        )
    users = np.asarray(users)
    if users.shape != labels.shape or not np.issubdtype(users.dtype, np.integer):
        raise ValueError(
            f'users has shape {users.shape} and dtype {users.dtype}: pass one integer for each of '
            f'the {labels.size} examples.'
        )
    if num_users < 0:
        raise ValueError(f'num_users={num_users}: choose --num_users from 1 on, or 0 for all.')
    if min_user_size < 1:
        raise ValueError(f'min_user_size={min_user_size}: a user has at least 1 example.')
    ids, user_of, sizes = np.unique(users, return_inverse=True, return_counts=True)
    able = np.flatnonzero(sizes >= min_user_size)
    there = f'the {able.size} of {ids.size} users with at least min_user_size={min_user_size}'
    if num_users > able.size:
        raise ValueError(
            f'num_users={num_users} is more than {there}: lower --num_users or --min_user_size.'
        )
    if num_clients > (num_users or able.size):
        whom = f'num_users={num_users}' if num_users else there
        raise ValueError(
            f'num_clients={num_clients} is more than {whom}, and a user is not split: lower '
            '--num_clients'
            + (', or raise --num_users.' if num_users else ', or lower --min_user_size.')
        )
    chosen = generator(seed).permutation(able)[: num_users or able.size]
    client_of_user = np.full(ids.size, -1)
    for i, hand in enumerate(np.array_split(chosen, num_clients)):
        client_of_user[hand] = i
    client_of = client_of_user[user_of]
    order = np.argsort(client_of, kind='stable')
    # The first piece is what no client holds.
    return np.split(order, np.searchsorted(client_of[order], np.arange(num_clients)))[1:]
