"""Write the model of a run for other programs: python -m jaxfed.export WORKDIR --format=onnx."""

import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors.numpy import save

from jaxfed.data.augment import normalise
from jaxfed.data.errors import explain_errors
from jaxfed.internal import console
from jaxfed.internal.command_line import Parser
from jaxfed.internal.files import atomic_path, write_atomic
from jaxfed.internal.include import HELP, include
from jaxfed.models import BUILT_IN, MODELS
from jaxfed.recording.run_files import MODEL
from jaxfed.runs.load import ReadNetwork, read_network
from jaxfed.runs.tensors import STATS
from jaxfed.types import example_inputs

# Names of jaxfed's arrays -> those of PyTorch's modules.
_LEAVES = {
    'kernel': 'weight', 'scale': 'weight', 'embedding': 'weight', 'bias': 'bias',
    'mean': 'running_mean', 'var': 'running_var',
}  # fmt: skip
# Names of the residual networks' layers -> those of torchvision's.
_RESNET = (
    (r'^stem\.conv\.', 'conv1.'),
    (r'^stem\.norm\.', 'bn1.'),
    (r'\.conv(\d)\.conv\.', r'.conv\1.'),
    (r'\.conv(\d)\.norm\.', r'.bn\1.'),
    (r'\.shortcut\.conv\.', '.downsample.0.'),
    (r'\.shortcut\.norm\.', '.downsample.1.'),
    (r'^classifier\.', 'fc.'),
)


def to_onnx(network: ReadNetwork, path: Path) -> None:
    """Writes an ONNX model: inputs in the units of the dataset's files [B, H, W, C] -> logits.

    Normalisation is a part of the model.
    """
    try:
        from jax2onnx import to_onnx as convert
    except ImportError as error:
        raise ValueError(
            "--format=onnx needs the package jax2onnx: pip install -e '.[export]'."
        ) from error
    described = network.metadata
    mean, std = (np.asarray(v, np.float32) for v in (described.mean, described.std))

    def logits(x: Any) -> Any:
        x = normalise(x, mean, std)
        return network.model.evaluate(network.params, x, network.stats).logits

    like = example_inputs(1, tuple(described.input_shape), described.vocabulary)
    inputs = jax.ShapeDtypeStruct(('B', *described.input_shape), like.dtype)

    advice = 'jax2onnx lacks an operation of this network; use --format=safetensors'
    with explain_errors('--format=onnx cannot be made', advice), atomic_path(path) as temporary:
        convert(
            logits, [inputs], model_name='jaxfed', return_mode='file', output_path=str(temporary)
        )


def to_torch(network: ReadNetwork, path: Path) -> None:
    """Writes a PyTorch state dict as safetensors; its metadata have the mean and the deviation.

    Layers have the names of jaxfed's, those of residual networks of torchvision's.
    """
    name = network.metadata.network['model']
    if MODELS.get(name) not in BUILT_IN or network.metadata.adapted:
        raise ValueError(
            f'--format=torch knows the built-in networks as they are; --model={name} of '
            f'--method={network.metadata.method} is another one, use --format=onnx.'
        )
    arrays = {}
    for key, array in network.arrays.items():
        if key.endswith('.kernel'):
            array = torch_kernel(array, _channels_before(key, network))
        arrays[_torch_name(key, name)] = array
    if network.stats:
        zero = np.zeros((), np.int64)
        arrays |= {
            key.replace('running_mean', 'num_batches_tracked'): zero
            for key in list(arrays)
            if key.endswith('running_mean')
        }
    facts = {'mean': network.metadata.mean, 'std': network.metadata.std}
    write_atomic(path, save(arrays, metadata={k: json.dumps(v) for k, v in facts.items()}))


def to_safetensors(network: ReadNetwork, path: Path) -> None:
    """Writes the arrays by jaxfed's names; the metadata describe the network as JSON."""
    text = {name: json.dumps(value) for name, value in network.metadata._asdict().items()}
    write_atomic(path, save(network.arrays, metadata=text))


# Name -> (the function that writes it, the file if --output names none).
FORMATS: dict[str, tuple[Callable[[ReadNetwork, Path], None], str]] = {
    'onnx': (to_onnx, 'exported.onnx'),
    'torch': (to_torch, 'exported_torch.safetensors'),
    'safetensors': (to_safetensors, 'exported.safetensors'),
}


def _torch_name(key: str, network: str) -> str:
    """'blocks.2.conv1.norm.scale' -> 'layer2.0.bn1.weight'."""
    layer, _, leaf = key.removeprefix(STATS).rpartition('.')
    if leaf not in _LEAVES:
        return key
    name = f'{layer}.{_LEAVES[leaf]}'
    if network.startswith('resnet'):
        depths, stage = MODELS[network].depths, 0
        if block := re.match(r'blocks\.(\d+)\.', name):
            number = int(block[1])
            while number >= depths[stage]:
                number, stage = number - depths[stage], stage + 1
            name = f'layer{stage + 1}.{number}.{name[block.end() :]}'
        for pattern, text in _RESNET:
            name = re.sub(pattern, text, name)
    return name


def torch_kernel(kernel: np.ndarray, channels: int) -> np.ndarray:
    """A kernel [H, W, I, O] as [O, I, H, W], or [I, O] as [O, I]; I may be pixels of `channels`."""
    if kernel.ndim == 4:
        return np.ascontiguousarray(kernel.transpose(3, 2, 0, 1))
    if channels:
        # The inputs are an image, whose channels are first in PyTorch.
        rows = kernel.reshape(-1, channels, kernel.shape[1])
        kernel = rows.transpose(1, 0, 2).reshape(kernel.shape)
    return np.ascontiguousarray(kernel.T)


def _channels_before(key: str, network: ReadNetwork) -> int:
    """The channels of the image that a dense layer reads, 0 if it reads a vector."""
    # The other networks without hidden layers take the mean over the pixels first.
    own = 'classifier.kernel' if network.metadata.network['model'].startswith('vgg') else ''
    first = min(
        (n for n, a in network.arrays.items() if 'hidden' in n and a.ndim == 2), default=own
    )
    if key != first:
        return 0
    widths = {name: a.shape[3] for name, a in network.arrays.items() if a.ndim == 4}
    return widths[max(widths)] if widths else network.metadata.input_shape[2]


def main(arguments: Sequence[str]) -> int:
    """Write the file.

    Args:
      arguments: the arguments without the program's name.

    Returns:
      The exit status: 0, or 2 for invalid input or a file that cannot be read or written.
    """
    parser = Parser('python -m jaxfed.export', description=__doc__)
    parser.add_argument('workdir', metavar='WORKDIR', help='of a finished run')
    parser.add_argument('--format', choices=FORMATS, required=True, help='of the file')
    files = ', '.join(file for _, file in FORMATS.values())
    parser.add_argument('--output', metavar='FILE', help=f'the file [{files} in WORKDIR]')
    parser.add_argument('--include', metavar='FILE.py', help=HELP)
    try:
        values = parser.parse_args(arguments)
        include(values.include)
        write, file = FORMATS[values.format]
        path = Path(values.output or Path(values.workdir) / file)
        if path.suffix != Path(file).suffix:
            raise ValueError(f'--output={path} must end in {Path(file).suffix}.')
        if path.resolve() == (Path(values.workdir) / MODEL).resolve():
            raise ValueError(f'--output={path} is the model of the run; name another file.')
        _, _, network = read_network(values.workdir, conv='grouped')
        if not all(np.isfinite(array).all() for array in network.arrays.values()):
            raise ValueError(
                f'{values.workdir}: the network has values that are not finite, because training '
                'diverged; nothing is written.'
            )
        if not path.parent.is_dir():
            raise ValueError(f'--output={path}: there is no folder {path.parent}; make it first.')
        with explain_errors(f'--output={path} cannot be written', 'name another', catch=OSError):
            write(network, path)
    except (ValueError, OSError) as error:
        console.show_error(' '.join(str(error).split()))
        return 2
    size = sum(leaf.size for leaf in jax.tree.leaves(network.params))
    console.say(f'{path}: {size} parameters')
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
