"""Networks for token ids: mean of embeddings, or a small transformer encoder."""

from typing import Literal

import jax.numpy as jnp
from flax import nnx

from jaxfed.models.layers import linear
from jaxfed.types import Array, Outputs

Encoder = Literal['mean', 'transformer']

PADDING = 0  # the token id that the networks ignore
_WIDTH, _HEADS, _BLOCKS = 128, 4, 2


class Block(nnx.Module):
    """A block of a transformer encoder, normalised first.

    x' = x + attention(norm(x)); y = x' + W_2 gelu(W_1 norm(x'))
    """

    def __init__(self, *, rngs: nnx.Rngs) -> None:
        self.norm1, self.norm2 = (nnx.LayerNorm(_WIDTH, rngs=rngs) for _ in range(2))
        self.query, self.key, self.value, self.output = (
            linear(_WIDTH, _WIDTH, rngs=rngs) for _ in range(4)
        )
        self.hidden = linear(_WIDTH, 2 * _WIDTH, rngs=rngs)
        self.project = linear(2 * _WIDTH, _WIDTH, rngs=rngs)

    def __call__(self, x: Array, real: Array) -> Array:
        """Computes [B, length, width] of the same; `real` [B, length] bool, False for padding."""

        def heads(x: Array) -> Array:
            return x.reshape(*x.shape[:2], _HEADS, _WIDTH // _HEADS)

        normed = self.norm1(x)
        query, key, value = (heads(f(normed)) for f in (self.query, self.key, self.value))
        mask = nnx.make_attention_mask(jnp.ones_like(real), real)
        seen = nnx.dot_product_attention(query, key, value, mask=mask)
        x = x + self.output(seen.reshape(x.shape))
        return x + self.project(nnx.gelu(self.hidden(self.norm2(x))))


class Text(nnx.Module):
    """The mean of embeddings of 128 numbers, before it two transformer blocks if asked for.

    Token 0 is padding. The transformer has 4 heads, learned positions, and 256 units in a block.

    Reference:
      mean: Joulin et al., Bag of Tricks for Efficient Text Classification, EACL 2017;
      transformer: Vaswani et al., Attention Is All You Need, NeurIPS 2017, normalised first as in
      Xiong et al., On Layer Normalization in the Transformer Architecture, ICML 2020.
    """

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        num_classes: int,
        vocabulary: int,
        *,
        encoder: Encoder = 'mean',
        rngs: nnx.Rngs,
    ) -> None:
        if not vocabulary:
            raise ValueError(
                '--model=text requires token ids, integers [n, length] that are not uint8, as of '
                f".astype('int32'), got inputs of input_shape={tuple(input_shape)}."
            )
        self.embedding = nnx.Embed(
            vocabulary, _WIDTH, embedding_init=nnx.initializers.normal(1.0), rngs=rngs
        )
        self.encoder = encoder
        if encoder == 'transformer':
            positions = nnx.initializers.normal(1.0)(rngs(), (input_shape[1], _WIDTH))
            self.positions = nnx.Param(positions)
            self.blocks = nnx.List([Block(rngs=rngs) for _ in range(_BLOCKS)])
            self.norm = nnx.LayerNorm(_WIDTH, rngs=rngs)
        self.classifier = linear(_WIDTH, num_classes, rngs=rngs)

    def __call__(self, x: Array) -> Outputs:
        """Computes logits [B, C] and features [B, 128] of token ids [B, 1, length, 1]."""
        tokens = x[:, 0, :, 0]
        real = tokens != PADDING
        x = self.embedding(tokens)
        if self.encoder == 'transformer':
            x = x + self.positions[...]
            for block in self.blocks:
                x = block(x, real)
            x = self.norm(x)
        count = jnp.maximum(real.sum(axis=1, keepdims=True), 1)
        features = jnp.where(real[..., None], x, 0).sum(axis=1) / count
        return Outputs(logits=self.classifier(features), features=features)
