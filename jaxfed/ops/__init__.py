"""Operations that stay fast when the parameters of many clients are mapped over."""

from jaxfed.ops.conv import conv_general_dilated, lowering
from jaxfed.ops.pool import max_pool

__all__ = ['conv_general_dilated', 'lowering', 'max_pool']
