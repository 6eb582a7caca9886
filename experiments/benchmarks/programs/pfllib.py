"""What PFLlib reads: the settings of its servers and clients, and a client's file.

Nothing at the top imports JAX, which would count as memory of the processes of `systems`.
"""

from pathlib import Path

import numpy as np

# Those of PFLlib's main.py, on a CPU and with CIFAR-10.
DEFAULTS = {
    'device': 'cpu',
    'dataset': 'Cifar10',
    'num_classes': 10,
    'local_epochs': 1,
    'plocal_epochs': 1,
    'join_ratio': 1.0,
    'random_join_ratio': False,
    'few_shot': 0,
    'goal': 'test',
    'time_select': False,
    'time_threthold': 10000,
    'save_folder_name': 'items',
    'top_cnt': 100,
    'auto_break': False,
    'client_drop_rate': 0.0,
    'train_slow_rate': 0.0,
    'send_slow_rate': 0.0,
    'dlg_eval': False,
    'dlg_gap': 100,
    'batch_num_per_client': 2,
    'num_new_clients': 0,
    'fine_tuning_epoch_new': 0,
    'learning_rate_decay': False,
    'learning_rate_decay_gamma': 0.99,
    'mu': 0.0,
    'alpha': 1.0,
}


def write_examples(file: Path, x: np.ndarray, y: np.ndarray) -> None:
    """Writes examples, x [n, H, W, channels] normalised and y [n], as PFLlib's scripts do."""
    images = np.ascontiguousarray(x.transpose(0, 3, 1, 2), np.float32)
    data = {'x': images, 'y': y.astype(np.int64)}
    np.savez_compressed(file, data=np.array(data, dtype=object))
