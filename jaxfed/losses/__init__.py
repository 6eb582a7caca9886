"""Losses as pure functions; those of logits have one value an example, to mask and average.

Half precisions are computed in float32. Teachers get no gradient. Values and gradients are finite
for logits up to +-1e4 and for every mask of classes.
"""

from jaxfed.losses.calibrated import calibrated_cross_entropy
from jaxfed.losses.class_weighted import (
    class_credibility,
    class_credibility_from_sums,
    class_credibility_sums,
    class_weighted_distillation,
)
from jaxfed.losses.contrastive import model_contrastive
from jaxfed.losses.credibility import credibility_matrix, credibility_weights
from jaxfed.losses.decorrelation import decorrelation
from jaxfed.losses.kl import kl_distillation, soft_cross_entropy
from jaxfed.losses.label_masking import (
    label_masking_distillation,
    label_masking_teacher_free,
    majority_labels,
)
from jaxfed.losses.masked_mse import masked_mse_distillation
from jaxfed.losses.not_true import not_true_distillation
from jaxfed.losses.proximal import proximal
from jaxfed.losses.supervised import cross_entropy, smoothed_cross_entropy

__all__ = [
    'calibrated_cross_entropy',
    'class_credibility',
    'class_credibility_from_sums',
    'class_credibility_sums',
    'class_weighted_distillation',
    'credibility_matrix',
    'credibility_weights',
    'cross_entropy',
    'decorrelation',
    'kl_distillation',
    'label_masking_distillation',
    'label_masking_teacher_free',
    'majority_labels',
    'masked_mse_distillation',
    'model_contrastive',
    'not_true_distillation',
    'proximal',
    'smoothed_cross_entropy',
    'soft_cross_entropy',
]
