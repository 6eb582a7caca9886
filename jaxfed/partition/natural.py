"""The natural partition of a dataset, by the user of each example."""

import numpy as np

from jaxfed.partition.checks import Seed, check_least, checked_labels, generator


def natural(
    labels: np.ndarray,
    *,
    num_clients: int,
    users: np.ndarray | None,
    seed: Seed,
    num_users: int = 0,
    min_user_size: int = 1,
) -> list[np.ndarray]:
    """Deals whole users to the clients at random, in numbers that differ by at most one.

    With as many clients as users, each client is one user. A user's examples are never split.
    Users with fewer than `min_user_size` examples do not take part. If `num_users` is not 0, only
    that number of the other users takes part, drawn at random. The examples of users that do not
    take part are not used.

    Args:
      labels: [n] integers, the class of each training example; only n matters.
      num_clients: number of clients N.
      users: [n] integers, the user of each training example; None if the dataset has no users.
      seed: random seed of the choice of users and the deal.
      num_users: number of users that take part; 0 for all that are large enough.
      min_user_size: least number of examples of a user that takes part.

    Returns:
      N sorted int64 arrays, the examples of each client. Every example of a user that takes part
      has one client.

    Raises:
      ValueError: if the dataset has no users, or there are fewer users than clients, or fewer
        large enough than `num_users`.

    Reference:
      Caldas et al., LEAF: A Benchmark for Federated Settings, 2018; several users a client as in
      FedCAD, section 4 (about 2000 writers of FEMNIST dealt to 10 clients).
    """
    labels = checked_labels(labels, num_clients)
    if users is None:
        raise ValueError(
            '--partition=natural needs the user of each example, but the dataset has no users: '
            'name their column by --user_column for --dataset=hf:NAME, choose a --dataset with '
            'users, such as an .npz file with an array users, or another --partition.'
        )
    users = np.asarray(users)
    if users.shape != labels.shape or not np.issubdtype(users.dtype, np.integer):
        raise ValueError(
            f'users has shape {users.shape} and dtype {users.dtype}: it must be one integer for '
            f'each of the {labels.size} examples.'
        )
    check_least('num_users', num_users, 0)
    check_least('min_user_size', min_user_size)
    ids, user_of, sizes = np.unique(users, return_inverse=True, return_counts=True)
    eligible = np.flatnonzero(sizes >= min_user_size)
    taken = num_users or eligible.size
    if num_users > eligible.size:
        raise ValueError(
            f'--num_users={num_users} is more than the {eligible.size} of {ids.size} users with at '
            f'least --min_user_size={min_user_size} examples: lower one of them.'
        )
    if num_clients > taken:
        ways = {
            'lower --num_clients': True,
            'lower --min_user_size': num_users == 0 and min_user_size > 1,
            'raise --num_users': num_users > 0,
        }
        raise ValueError(
            f'--num_clients={num_clients} is more than the {taken} users that take part, and users '
            f'are not split: {" or ".join(way for way, applies in ways.items() if applies)}.'
        )
    chosen = generator(seed).permutation(eligible)[:taken]
    client_of_user = np.full(ids.size, -1)
    for i, users_of_client in enumerate(np.array_split(chosen, num_clients)):
        client_of_user[users_of_client] = i
    client_of = client_of_user[user_of]
    order = np.argsort(client_of, kind='stable')
    # The first piece belongs to no client.
    return np.split(order, np.searchsorted(client_of[order], np.arange(num_clients)))[1:]
