"""The networks of `jaxfed.models` as a researcher would write them in PyTorch.

Nothing at the top imports JAX, which would count as memory of the processes of `systems`.
"""

import itertools
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import nn

Shape = tuple[int, int, int]  # height, width, channels


def torch_network(name: str, num_classes: int, shape: Shape = (32, 32, 3)) -> nn.Module:
    """The network with as many parameters as jaxfed's of the same name.

    Args:
      name: a key of `jaxfed.models.MODELS`.
      num_classes: number of classes C.
      shape: of the images; only 'cnn' and 'cnn_dropout' support other shapes than the default.

    Returns:
      The network, [B, channels, H, W] -> [B, C].
    """
    if name in SIZED:
        return SIZED[name](num_classes, shape)
    return NETWORKS[name](num_classes)


def _pooled(convolution: nn.Module) -> list[nn.Module]:
    return [convolution, nn.ReLU(), nn.MaxPool2d(2)]


def _dense(*widths: int) -> list[nn.Module]:
    """Fully connected layers with ReLU between them."""
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return layers[:-1]


def _cnn(num_classes: int, shape: Shape) -> nn.Module:
    height, width, channels = shape
    return nn.Sequential(
        *_pooled(nn.Conv2d(channels, 32, 5, padding=2)),
        *_pooled(nn.Conv2d(32, 64, 5, padding=2)),
        *_dense((height // 4) * (width // 4) * 64, 512, num_classes),
    )


def _cnn_dropout(num_classes: int, shape: Shape) -> nn.Module:
    height, width, channels = shape
    network = nn.Sequential(
        *(nn.Conv2d(channels, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten()),
        *(nn.Linear((height - 4) // 2 * ((width - 4) // 2) * 64, 128), nn.ReLU(), nn.Dropout(0.5)),
        nn.Linear(128, num_classes),
    )
    for layer in network:
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
    return network


def _lenet(num_classes: int) -> nn.Module:
    return nn.Sequential(
        *_pooled(nn.Conv2d(3, 6, 5)),
        *_pooled(nn.Conv2d(6, 16, 5)),
        *_dense(400, 120, 84, num_classes),
    )


def _mlp(num_classes: int) -> nn.Module:
    return nn.Sequential(*_dense(3072, 200, 200, num_classes))


def _conv_norm(
    inputs: int, outputs: int, size: int = 3, strides: int = 1, groups: int = 1
) -> nn.Module:
    convolution = nn.Conv2d(
        inputs, outputs, size, strides, (size - 1) // 2, groups=groups, bias=False
    )
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs))


class _Residual(nn.Module):
    def __init__(self, inside: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.inside, self.shortcut = inside, shortcut

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.inside(x) + self.shortcut(x))


def _residual(inputs: int, width: int, strides: int, *, bottleneck: bool) -> nn.Module:
    outputs = 4 * width if bottleneck else width
    if bottleneck:
        layers = [
            *(_conv_norm(inputs, width, 1), nn.ReLU()),
            *(_conv_norm(width, width, 3, strides), nn.ReLU()),
            _conv_norm(width, outputs, 1),
        ]
    else:
        layers = [_conv_norm(inputs, width, 3, strides), nn.ReLU(), _conv_norm(width, width)]
    changes = strides > 1 or inputs != outputs
    shortcut = _conv_norm(inputs, outputs, 1, strides) if changes else nn.Identity()
    return _Residual(nn.Sequential(*layers), shortcut)


def _headed(layers: list[nn.Module], channels: int, num_classes: int) -> nn.Module:
    mean = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, *mean, nn.Linear(channels, num_classes))


def _resnet(
    num_classes: int, *, widths: Sequence[int], depths: Sequence[int], bottleneck: bool = False
) -> nn.Module:
    channels = widths[0]
    layers = [_conv_norm(3, channels), nn.ReLU()]
    for stage, (width, depth) in enumerate(zip(widths, depths, strict=True)):
        for place in range(depth):
            strides = 2 if stage and not place else 1
            layers.append(_residual(channels, width, strides, bottleneck=bottleneck))
            channels = 4 * width if bottleneck else width
    return _headed(layers, channels, num_classes)


def _mobilenet(num_classes: int) -> nn.Module:
    from jaxfed.models.mobilenet import BLOCKS

    channels = 32
    layers = [_conv_norm(3, channels), nn.ReLU()]
    for out, strides in BLOCKS:
        layers += [_conv_norm(channels, channels, 3, strides, channels), nn.ReLU()]
        layers += [_conv_norm(channels, out, 1), nn.ReLU()]
        channels = out
    return _headed(layers, channels, num_classes)


def _vgg11(num_classes: int) -> nn.Module:
    from jaxfed.models.vgg import STAGES

    channels, layers = 3, list[nn.Module]()
    for widths in STAGES:
        for width in widths:
            convolution = nn.Conv2d(channels, width, 3, padding=1)
            layers += [convolution, nn.BatchNorm2d(width), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels, num_classes))


SIZED: dict[str, Callable[[int, Shape], nn.Module]] = {'cnn': _cnn, 'cnn_dropout': _cnn_dropout}
WIDTHS = (64, 128, 256, 512)
NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    'lenet': _lenet,
    'mlp': _mlp,
    'mobilenet': _mobilenet,
    'resnet8': partial(_resnet, widths=(16, 32, 64), depths=(1, 1, 1)),
    'resnet18': partial(_resnet, widths=WIDTHS, depths=(2, 2, 2, 2)),
    'resnet50': partial(_resnet, widths=WIDTHS, depths=(3, 4, 6, 3), bottleneck=True),
    'vgg11': _vgg11,
}
