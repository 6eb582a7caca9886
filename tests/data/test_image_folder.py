"""Folders of image files."""

import os
import shutil
import struct
import sys

import numpy as np
import pytest
from PIL import Image

from jaxfed.data import image_folder, load_image_folder
from tests import memory
from tests.data.test_cache import not_again


def write_images(root, files, mode='RGB', size=(5, 4)):
    rng = np.random.default_rng(0)
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shape = (size[1], size[0]) if mode == 'L' else (size[1], size[0], len(mode))
        Image.fromarray(rng.integers(0, 256, shape).astype(np.uint8)).save(root / name)
    return root


FILES = ('train/b/1.png', 'train/b/2.bmp', 'train/a/x.webp', 'train/c/y.jpeg', 'test/b/3.png')


@pytest.mark.parametrize('test', ['test', 'val'])
def test_image_folder(tmp_path, test, caplog):
    root = write_images(tmp_path / 'my images', [name.replace('test', test) for name in FILES])
    (root / 'train/a/.DS_Store').write_text('hidden')
    dataset = load_image_folder(root)
    assert ("its 'val' replaces it" in caplog.text) == (test == 'val')
    assert (dataset.name, dataset.num_classes) == ('my images', 3)
    assert dataset.x_train.shape == (4, 4, 5, 3)
    assert dataset.y_train.tolist() == [0, 1, 1, 2]
    assert dataset.y_test.tolist() == [1]
    for i, name in enumerate(['a/x.webp', 'b/1.png', 'b/2.bmp', 'c/y.jpeg']):
        with Image.open(root / 'train' / name) as image:
            np.testing.assert_array_equal(dataset.x_train[i], np.asarray(image))
    assert isinstance(dataset.x_train.base, np.memmap)


def test_image_folder_of_grey_images(tmp_path):
    root = write_images(tmp_path / 'grey', FILES[:2] + FILES[4:], mode='L')
    assert load_image_folder(root).x_train.shape == (2, 4, 5, 1)
    write_images(root, ['train/b/coloured.png'], mode='RGBA')
    dataset = load_image_folder(root)
    assert dataset.x_train.shape == (3, 4, 5, 3)
    assert (dataset.x_train[0] == dataset.x_train[0, ..., :1]).all()


def test_image_folder_is_decoded_once_until_it_changes(tmp_path, cached, monkeypatch, caplog):
    root = write_images(tmp_path / 'x', FILES)
    first = load_image_folder(root)
    blocks = image_folder._blocks
    monkeypatch.setattr(image_folder, '_blocks', not_again)
    np.testing.assert_array_equal(load_image_folder(root).x_train, first.x_train)
    monkeypatch.setattr(image_folder, '_blocks', blocks)
    os.utime(root / FILES[0], (1, 1))
    load_image_folder(root)
    (root / FILES[0]).rename(root / 'train/b/0.png')
    (root / 'train/a/notes.txt').write_text('no image')
    (root / 'train/__MACOSX').mkdir()
    monkeypatch.chdir(tmp_path)
    load_image_folder('x/../x/')
    load_image_folder(root)
    assert len(list(cached.iterdir())) == 3
    assert '1 files that are not images are ignored, such as' in caplog.text


def wide_tiff():
    """A TIFF of 5 x 4 pixels, three planes of 16 bits, of which Pillow keeps 8."""
    fields = [(256, 5), (257, 4), (258, 16), (259, 1), (262, 2), (277, 3), (284, 2)]
    places = [(273, 0), (279, 40)]  # of the planes, and their sizes
    data, entries = bytes(120), b''
    end = 8 + 2 + 12 * 9 + 4
    for tag, value in sorted(fields + places):
        values = {258: [16] * 3, 273: [end, end + 40, end + 80], 279: [40] * 3}.get(tag, [value])
        packed = struct.pack(f'<{len(values)}H', *values)
        if len(packed) > 4:
            packed, data = struct.pack('<I', end + len(data)), data + packed
        entries += struct.pack('<HHI4s', tag, 3, len(values), packed)
    return b'II*\0' + struct.pack('<IH', 8, 9) + entries + bytes(4) + data


def cut_half(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(
    'change, message',
    [
        (lambda root: shutil.rmtree(root), 'there is no .*train'),
        (lambda root: shutil.rmtree(root / 'test'), 'there is no .*test'),
        (
            lambda root: write_images(root, ['test/d/1.png']),
            "class 'd' in .*test, not in",
        ),
        (lambda root: (root / 'train/d').mkdir(), 'train/d has no images of the class .d.'),
        (lambda root: (root / 'test/c').mkdir(), 'test/c has no images'),
        (lambda root: shutil.rmtree(root / 'test/b'), 'test must contain one folder per class'),
        (
            lambda root: cut_half(root / 'train/b/1.png'),
            r'train/b/1\.png cannot be read as an',
        ),
        (lambda root: cut_half(root / 'train/c/y.jpeg'), r'train/c/y\.jpeg cannot be read as an'),
        (lambda root: (root / 'test/b/3.png').write_text('no'), r'test/b/3\.png cannot be read as'),
        (
            lambda root: write_images(root, ['test/b/4.png'], size=(4, 5)),
            r'test/b/4\.png has 4 x 5 pixels, but .*train/a/x\.webp has 5 x 4',
        ),
        (
            lambda root: Image.new('I;16', (5, 4)).save(root / 'train/b/4.png'),
            r'train/b/4\.png has more than 8 bits per channel',
        ),
        (
            lambda root: (root / 'train/b/4.tiff').write_bytes(wide_tiff()),
            r'train/b/4\.tiff has more than 8 bits per channel',
        ),
        (
            lambda root: Image.new('RGB', (5, 4)).save(root / 'train/b/4.sgi', bpc=2),
            r'train/b/4\.sgi has more than 8 bits per channel',
        ),
        (
            lambda root: (root / 'train/b/4.ppm').write_bytes(b'P6 5 4 65535 ' + bytes(120)),
            r'train/b/4\.ppm has more than 8 bits per channel',
        ),
        (
            lambda root: (root / 'train/b/4.png').symlink_to('nowhere'),
            r'train/b/4\.png is a broken link',
        ),
        (
            lambda root: (root / 'train/d').symlink_to('nowhere'),
            'train/d is a broken link',
        ),
        (
            lambda root: (root / 'train/b/more').mkdir(),
            'train/b/more is a folder, but .*train/b must',
        ),
        (
            lambda root: (root / 'test/b/3.png').write_text('no'),
            r'image \(unknown format\): it is damaged',
        ),
    ],
)
def test_malformed_image_folder(tmp_path, cached, change, message):
    root = write_images(tmp_path / 'bad', FILES, size=(5, 4))
    change(root)
    with pytest.raises(ValueError, match=message):
        load_image_folder(root)
    assert not cached.exists() or not list(cached.iterdir())


def test_images_that_unpack_to_too_much_are_not_decoded(tmp_path, cached):
    root = write_images(tmp_path / 'bomb', FILES)
    shutil.rmtree(root)
    for name in FILES[:1] + FILES[4:]:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new('1', (5000, 5000)).save(root / name)  # 75 MB in a file of a few kB
        assert (root / name).stat().st_size < 10_000
    with (
        memory.at_most(mib=4),
        pytest.raises(ValueError, match=r'1\.png has 5000 x 5000 pixels, more than 16777216'),
    ):
        load_image_folder(root)


@pytest.mark.skipif(sys.platform != 'linux', reason='the memory of C libraries')
def test_memory_of_a_decoder_is_seen():
    with pytest.raises(AssertionError), memory.at_most(mib=4):
        Image.new('RGB', (5000, 5000), 1)


def test_large_images_are_decoded_in_small_blocks(tmp_path, monkeypatch):
    root = write_images(tmp_path / 'some', FILES)
    whole = load_image_folder(root)
    monkeypatch.setattr(image_folder, 'BLOCK', 150)  # two images
    sizes = [len(block) for block in image_folder._blocks(files_of(root / 'train'), 3)]
    assert sizes == [2, 2]
    blocks = image_folder._blocks(files_of(root / 'train'), 3)
    np.testing.assert_array_equal(np.concatenate([*blocks]), whole.x_train)


def files_of(folder):
    return image_folder._files(folder, {'a': 0, 'b': 1, 'c': 2})


@pytest.mark.parametrize('name', ['x.eps', 'x.png'])
def test_a_file_for_which_pillow_starts_another_program_is_not_opened(name, tmp_path, monkeypatch):
    from PIL import EpsImagePlugin

    root = write_images(tmp_path / 'some', FILES)
    eps = '%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 5 4\n%%EndComments\n%%EOF\n'
    (root / 'train/b' / name).write_text(eps)
    with Image.open(root / 'train/b' / name) as image:
        assert image.format == 'EPS'
    monkeypatch.setattr(EpsImagePlugin, 'Ghostscript', None)
    if name == 'x.png':
        with pytest.raises(ValueError, match=r'x\.png cannot be read as an image \(unknown format'):
            load_image_folder(root)
    else:
        assert len(load_image_folder(root).x_train) == 4  # it is no image


def test_file_names_that_are_not_utf8(tmp_path):
    root = write_images(tmp_path / 'x', FILES)
    folder = os.fsdecode(b'train/\xe9')
    (root / 'train/b').rename(root / folder)
    (root / 'test/b').rename(root / os.fsdecode(b'test/\xe9'))
    (root / folder / '1.png').rename(root / folder / os.fsdecode(b'\xff.png'))
    for _ in 'decoded', 'cached':
        dataset = load_image_folder(root)
        assert dataset.y_train.tolist() == [0, 1, 2, 2]
