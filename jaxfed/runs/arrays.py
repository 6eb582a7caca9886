"""Datasets that a Python program passes as arrays in memory."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxfed.config import DEFAULTS, Config
from jaxfed.data import ARRAYS_PREFIX, NO_COLUMNS, Columns, from_huggingface
from jaxfed.data.arrays import ARRAYS, LARGEST_LABEL, make_dataset
from jaxfed.internal.digest import digest
from jaxfed.types import Dataset

_DIGITS = 8  # of the digest


def checked_arrays(dataset: Dataset | Mapping[str, Any], columns: Columns = NO_COLUMNS) -> Dataset:
    """Returns a user's dataset checked and converted, with the recorded name and a digest.

    A mapping of splits is one of Hugging Face's library `datasets`; only these have columns.
    """
    if isinstance(dataset, Mapping):
        dataset = from_huggingface(dataset, 'dataset', columns)
    elif columns != NO_COLUMNS:
        raise ValueError(
            'image_column, label_column and user_column select columns of --dataset=hf:NAME or of '
            'splits passed as dataset; omit them.'
        )
    if not isinstance(dataset, Dataset):
        raise ValueError(
            'dataset must be a jaxfed.Dataset, as of Dataset.from_arrays, or a datasets.DatasetDict'
            f', as of train_test_split, got {type(dataset).__name__}.'
        )
    source = f'dataset={dataset.name!r}'
    if not isinstance(dataset.name, str) or not re.fullmatch(r'[\w.+-]+', dataset.name):
        raise ValueError(f'{source} must have a name of letters, digits and any of "_.+-".')
    classes = dataset.num_classes
    if not isinstance(classes, int | np.integer) or not 1 <= classes <= LARGEST_LABEL + 1:
        raise ValueError(
            f'{source} must have num_classes from 1 to {LARGEST_LABEL + 1}, got {classes!r}.'
        )
    fields = ARRAYS if dataset.users is None else (*ARRAYS, 'users')
    masked = [field for field in fields if isinstance(getattr(dataset, field), np.ma.MaskedArray)]
    if masked:
        raise ValueError(f'{source} has a masked array in {masked[0]}: leave out or fill its gaps.')
    arrays = {field: np.asarray(getattr(dataset, field)) for field in fields}
    made = make_dataset(dataset.name, source, arrays, int(dataset.num_classes), dataset.vocabulary)
    content = digest(
        {
            field: np.asarray(value)
            for field, value in made._asdict().items()
            # A vocabulary of 0 would change the names that earlier versions recorded.
            if field in (*fields, 'num_classes') or (field == 'vocabulary' and value)
        }
    )
    return made._replace(name=f'{ARRAYS_PREFIX}{dataset.name}-{content[:_DIGITS]}')


def name_arrays(config: Config, dataset: Dataset) -> Config:
    """Returns the settings with the name of a dataset from `checked_arrays`."""
    if config.dataset != DEFAULTS['dataset'] and not config.dataset.startswith(ARRAYS_PREFIX):
        raise ValueError(
            f'--dataset={config.dataset} and arrays from Python exclude each other; omit one.'
        )
    return dataclasses.replace(config, dataset=dataset.name)
