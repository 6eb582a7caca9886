"""Datasets of Hugging Face's library, made on the spot."""

import dataclasses
import io
import os
import shutil

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from PIL import Image

import jaxfed
from jaxfed.data import Columns, from_huggingface, huggingface, load_dataset
from jaxfed.runs.experiment import make_experiment, set_up
from jaxfed.sweeps.runner import share_images
from tests import memory

hf = pytest.importorskip('datasets')

PIXELS = np.random.default_rng(0).integers(0, 256, (60, 6, 5, 3)).astype(np.uint8)
LABELS = np.arange(60) % 3


def images(first=0, last=60, *, mode='RGB', **columns):
    """A split with a column of images and one of class labels."""
    features = hf.Features({'img': hf.Image(), 'fine': hf.ClassLabel(names=['a', 'b', 'c'])})
    values = {
        'img': [Image.fromarray(p).convert(mode) for p in PIXELS[first:last]],
        'fine': LABELS[first:last],
    }
    for name, column in columns.items():
        features[name], values[name] = hf.Value('string'), column
    return hf.Dataset.from_dict(values, features=features)


def splits(**columns):
    return hf.DatasetDict({'train': images(0, 40, **columns), 'test': images(40)})


def check(dataset, users=None):
    assert_array_equal(dataset.x_train, PIXELS[:40])
    assert_array_equal(dataset.x_test, PIXELS[40:])
    assert_array_equal(dataset.y_train, LABELS[:40])
    assert_array_equal(dataset.y_test, LABELS[40:])
    assert dataset.num_classes == 3
    assert_array_equal(dataset.users, users)


def test_a_saved_folder_and_files(tmp_path, monkeypatch):
    monkeypatch.setenv('JAXFED_CACHE_DIR', str(tmp_path / 'cache'))
    writers = [f'w{i % 4}' for i in range(40)]
    made = splits(writer=writers)
    made.save_to_disk(tmp_path / 'saved')
    columns = Columns(user='writer')
    for _ in range(2):  # the second time from the cache
        found = load_dataset('hf:saved', data_dir=tmp_path, columns=columns)
        check(found, [i % 4 for i in range(40)])
        assert found.name == 'saved'
    (tmp_path / 'files').mkdir()
    for name, split in made.items():
        split.to_parquet(tmp_path / 'files' / f'{name}.parquet')
    check(load_dataset('hf:files', data_dir=tmp_path))


def test_the_cache_of_load_dataset(tmp_path, monkeypatch):
    monkeypatch.setenv('JAXFED_CACHE_DIR', str(tmp_path / 'cache'))
    (tmp_path / 'name').mkdir()
    for name, split in splits().items():
        split.to_parquet(tmp_path / 'name' / f'{name}.parquet')
    hf.load_dataset(str(tmp_path / 'name'), cache_dir=str(tmp_path / 'built'))
    (built,) = (tmp_path / 'built').rglob('dataset_info.json')
    downloaded = tmp_path / 'downloads' / 'org___name' / 'default' / '0.0.0' / 'revision'
    shutil.copytree(built.parent, downloaded)  # what a download of org/name leaves
    found = load_dataset('hf:org/name', data_dir=tmp_path / 'downloads')
    check(found)
    assert found.name == 'org_name'
    with pytest.raises(ValueError, match=r'--dataset=hf:org/none cannot be read .*save_to_disk'):
        load_dataset('hf:org/none', data_dir=tmp_path)


def test_grey_images_and_validation(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv('JAXFED_CACHE_DIR', str(tmp_path))
    grey = {'train': images(0, 40, mode='L'), 'validation': images(40, mode='L')}
    dataset = from_huggingface(grey, 'dataset')
    assert "dataset has no split 'test'; its 'validation' replaces it." in caplog.text
    assert dataset.x_train.shape == (40, 6, 5, 1) and dataset.x_test.shape == (20, 6, 5, 1)
    want = np.asarray(Image.fromarray(PIXELS[7]).convert('L'))
    assert_array_equal(dataset.x_train[7, ..., 0], want)


def rows(**changes):
    values = {'x': np.arange(200.0).reshape(40, 5).tolist(), 'y': ['u', 'v'] * 20} | changes
    return hf.Dataset.from_dict(values)


def test_vectors_and_labels_of_text():
    dataset = from_huggingface(
        {'train': rows(), 'test': rows(y=['v'] * 40)}, 'dataset', Columns(label='y')
    )
    assert dataset.x_train.shape == (40, 1, 1, 5) and dataset.x_train[1, 0, 0, 2] == 7
    assert dataset.y_train[:3].tolist() == [0, 1, 0] and dataset.y_test.tolist() == [1] * 40


@pytest.mark.parametrize(
    'feature, shape, expected',
    [
        (hf.List(hf.Value('uint8')), (5,), (1, 1, 5)),
        (hf.List(hf.List(hf.Value('uint8'))), (6, 5), (6, 5, 1)),
        (hf.Array2D((6, 5), 'uint8'), (6, 5), (6, 5, 1)),
        (hf.Array3D((6, 5, 3), 'uint8'), (6, 5, 3), (6, 5, 3)),
    ],
    ids=['row', 'rows', 'grey', 'colour'],
)
def test_columns_of_bytes_are_no_token_ids(feature, shape, expected):
    values = np.random.default_rng(0).integers(0, 256, (40, *shape)).astype(np.uint8)
    features = hf.Features({'x': feature, 'label': hf.Value('int64')})
    split = hf.Dataset.from_dict({'x': values.tolist(), 'label': [0, 1] * 20}, features=features)
    dataset = from_huggingface({'train': split, 'test': split}, 'dataset')
    assert dataset.x_train.dtype == np.uint8 and not dataset.vocabulary
    assert_array_equal(dataset.x_train, values.reshape(40, *expected))


def test_a_cached_dataset_has_the_name_of_the_call(tmp_path, monkeypatch):
    monkeypatch.setenv('JAXFED_CACHE_DIR', str(tmp_path))
    made = splits()
    names = [from_huggingface(made, 'dataset', name=name).name for name in ('first', 'second')]
    assert names == ['first', 'second']


@pytest.mark.parametrize(
    'made, columns, message',
    [
        ({'train': rows()}, {}, 'has the splits train; it needs train, and test or validation'),
        ({'train': rows(), 'test': rows()}, {}, 'set --label_column to one of x, y'),
        ({'train': rows(), 'test': rows()}, {'label': 'z'}, '--label_column=z is none of x, y'),
        (
            {'train': rows(w=[[1]] * 40), 'test': rows()},
            {'label': 'y'},
            'set --image_column to one of x, w',
        ),
        (
            {'train': rows(), 'test': rows().remove_columns('x')},
            {'label': 'y'},
            'test lacks the column x of train',
        ),
        (
            {'train': rows(), 'test': rows(y=['w'] * 40)},
            {'label': 'y'},
            "test has the label 'w', which train lacks",
        ),
        (
            {'train': rows(), 'test': rows(y=['u', 'v', None, 'v'] * 10)},
            {'label': 'y'},
            r'example 2 of test has no label in y; remove such examples with the filter\(\)',
        ),
        (
            {'train': rows(y=[0, 1] * 19 + [0, None]), 'test': rows(y=[0, 1] * 20)},
            {'label': 'y'},
            'example 39 of train has no label',
        ),
        (
            {'train': rows(x=[[1.0], [2.0, 3.0]] * 20), 'test': rows()},
            {'label': 'y'},
            'the column x cannot be used .* numbers of one shape',
        ),
        ({'train': rows(), 'test': rows()}, {'label': 'y', 'user': 'u'}, '--user_column=u is none'),
    ],
)
def test_what_cannot_be_used(made, columns, message):
    with pytest.raises(ValueError, match=message) as error:
        from_huggingface(made, 'dataset', Columns(**columns))
    assert '\n' not in str(error.value)


def test_images_of_several_sizes(tmp_path, monkeypatch):
    monkeypatch.setenv('JAXFED_CACHE_DIR', str(tmp_path))
    values = {'img': [Image.new('L', (4, 4)), Image.new('L', (4, 5))], 'label': [0, 1]}
    split = hf.Dataset.from_dict(
        values, features=hf.Features({'img': hf.Image(), 'label': hf.Value('int64')})
    )
    with pytest.raises(
        ValueError, match=r'train: image 1 is 4 x 5 L, the first 4 x 4; .* one size'
    ):
        from_huggingface({'train': split, 'test': split}, 'dataset')


def encoded(image, kind='png', **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


SMALL = encoded(Image.fromarray(PIXELS[0]))
EPS = b'%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 5 6\n%%EndComments\n%%EOF\n'


def files(*contents):
    """A split with these image files."""
    features = hf.Features({'img': hf.Image(), 'label': hf.Value('int64')})
    values = [content and {'bytes': content, 'path': None} for content in contents]
    return hf.Dataset.from_dict(
        {'img': values, 'label': [i % 2 for i in range(len(values))]}, features=features
    )


@pytest.mark.parametrize('first', [False, True])
@pytest.mark.parametrize(
    'content, message',
    [
        (encoded(Image.new('1', (20000, 20000))), r'cannot be read as an image \(Image size'),
        (encoded(Image.new('1', (5000, 5000))), 'has 5000 x 5000 pixels, more than 16777216'),
        (SMALL[:60], r'cannot be read as an image \(.*\): it is damaged'),
        (b'no image', r'cannot be read as an image \(unknown format\)'),
        (EPS, r'cannot be read as an image \(unknown format\)'),
        (encoded(Image.fromarray(np.ones((6, 5), np.uint16))), 'is 5 x 6 I;16, the first 5 x 6'),
        (None, r'cannot be read as an image \(it is missing\)'),
    ],
    ids=['bomb', 'large', 'cut', 'text', 'eps', '16 bits', 'missing'],
)
@pytest.mark.filterwarnings('error')
def test_hostile_images_are_named(tmp_path, monkeypatch, content, message, first):
    monkeypatch.setenv('JAXFED_CACHE_DIR', str(tmp_path / 'cache'))
    bad = files(content, SMALL) if first else files(SMALL, content)
    with (
        memory.at_most(mib=4),
        pytest.raises(ValueError, match=f'^data: test: image {1 - first} {message}') as error,
    ):
        from_huggingface({'train': files(SMALL), 'test': bad}, 'data')
    assert '\n' not in str(error.value)


def test_images_in_files_and_of_other_columns(tmp_path, monkeypatch):
    monkeypatch.setenv('JAXFED_CACHE_DIR', str(tmp_path / 'cache'))
    photo = Image.fromarray(PIXELS[0])
    exif = photo.getexif()
    exif[0x0112] = 6  # turned by a quarter
    path = tmp_path / 'turned.png'
    photo.save(path, exif=exif)
    split = hf.Dataset.from_dict(
        {'img': [str(path)] * 2, 'mask': [{'bytes': EPS, 'path': None}] * 2, 'label': [0, 1]},
        features=hf.Features({'img': hf.Image(), 'mask': hf.Image(), 'label': hf.Value('int64')}),
    )
    dataset = from_huggingface({'train': split, 'test': split}, 'data', Columns(image='img'))
    assert_array_equal(dataset.x_train[1], np.rot90(PIXELS[0], -1))
    path.unlink()
    with pytest.raises(ValueError, match=r'image 0 cannot be read .*turned\.png'):
        from_huggingface({'train': split, 'test': split.select([0])}, 'data', Columns(image='img'))


def test_images_are_decoded_in_small_blocks(monkeypatch):
    monkeypatch.setattr(huggingface, 'BLOCK', 200)  # two images
    blocks = [*huggingface._images(images(0, 5), 'img', 'RGB', 'data')]
    assert [len(block) for block in blocks] == [2, 2, 1]
    assert_array_equal(np.concatenate(blocks), PIXELS[:5])


def test_images_are_grey_only_if_all_are(tmp_path, monkeypatch):
    monkeypatch.setenv('JAXFED_CACHE_DIR', str(tmp_path))
    made = [Image.fromarray(p) for p in PIXELS[:4]]
    mixed = files(*(encoded(image) for image in (made[0].convert('L'), *made[1:])))
    found = from_huggingface({'train': mixed, 'test': mixed}, 'x')
    assert_array_equal(found.x_train[1:], PIXELS[1:4])
    assert found.x_train.shape[-1] == 3


def test_files_that_change_are_read_again(tmp_path, monkeypatch):
    monkeypatch.setenv('JAXFED_CACHE_DIR', str(tmp_path / 'cache'))
    path = tmp_path / 'a.png'

    def read(pixels):
        Image.fromarray(pixels).save(path)
        os.utime(path, ns=(int(pixels[0, 0, 0]), int(pixels[0, 0, 0])))
        features = hf.Features({'img': hf.Image(), 'label': hf.ClassLabel(names=['a', 'b'])})
        split = hf.Dataset.from_dict({'img': [str(path)], 'label': [1]}, features=features)
        return from_huggingface({'train': split, 'test': split}, 'x').x_train

    for pixels in PIXELS[:2]:
        assert_array_equal(read(pixels)[0], pixels)


def test_classes_in_another_order_are_refused():
    made = splits()
    names = hf.ClassLabel(names=['b', 'a', 'c'])
    other = {'train': made['train'], 'test': made['test'].cast_column('fine', names)}
    with pytest.raises(ValueError, match='the label 0 of fine is a in train and b in test: cast'):
        from_huggingface(other, 'x')


def test_a_streaming_dataset_is_refused():
    streaming = splits() | {'train': images(0, 4).to_iterable_dataset()}
    with pytest.raises(ValueError, match='got IterableDataset: load it without streaming'):
        from_huggingface(streaming, 'dataset')


def test_an_empty_split_is_named():
    with pytest.raises(ValueError, match=r'^dataset: test has no examples\.$'):
        from_huggingface(splits() | {'test': images(0, 0)}, 'dataset')


def test_flags_that_need_such_a_dataset():
    with pytest.raises(ValueError, match=r'--user_column=w needs --dataset=hf:NAME, got .*digits'):
        jaxfed.simulate(jaxfed.Config(user_column='w'))


@pytest.mark.slow
def test_splits_from_python(tmp_path, cheap_runs, monkeypatch):
    monkeypatch.setenv('JAXFED_CACHE_DIR', str(tmp_path / 'cache'))
    config = jaxfed.Config(
        model='mlp', rounds=1, num_clients=2, clients_per_round=2, partition='iid',
        local_epochs=1, workdir=str(tmp_path / 'run'),
    )  # fmt: skip
    result = jaxfed.simulate(config, dataset=splits(), quiet=True)
    assert result.summary['dataset'].startswith('arrays/datasets-')
    again = jaxfed.Dataset.from_arrays(PIXELS[:40], LABELS[:40], PIXELS[40:], LABELS[40:].tolist())
    same = jaxfed.simulate(
        jaxfed.Config(**{**config.__dict__, 'workdir': str(tmp_path / 'again')}),
        dataset=again, quiet=True,
    )  # fmt: skip
    assert same.metrics[0]['test_loss'] == result.metrics[0]['test_loss']


@pytest.mark.parametrize('kind', ['numpy', 'custom'])
def test_a_format_is_ignored_and_a_transform_refused(kind, monkeypatch, tmp_path):
    monkeypatch.setenv('JAXFED_CACHE_DIR', str(tmp_path / 'cache'))
    made = splits()
    if kind == 'numpy':
        check(from_huggingface(made.with_format('numpy', columns=['img', 'fine']), 'dataset'))
        check(from_huggingface(made.with_format('numpy', columns=['img']), 'dataset'))
        return
    for changed in (made, hf.DatasetDict({'train': rows(), 'test': rows()})):
        with pytest.raises(ValueError, match=r'dataset: train has a transform, which .*: remove'):
            from_huggingface(changed.with_transform(lambda rows: rows), 'dataset')


def test_columns_of_splits_from_python(tmp_path):
    split = rows(z=(-np.arange(200.0)).reshape(40, 5).tolist(), y=[0, 1] * 20)
    made = {'train': split, 'test': split}
    hf.DatasetDict(made).save_to_disk(tmp_path / 'saved')
    config = jaxfed.Config(
        model='mlp', num_clients=2, clients_per_round=1, partition='iid', label_column='y'
    )
    first, second = (dataclasses.replace(config, image_column=name) for name in ('x', 'z'))
    with pytest.raises(ValueError, match='the columns of dataset must be the same in all of them'):
        jaxfed.simulate_all({'x': first, 'z': second}, tmp_path / 'runs', dataset=made)
    of_python = [
        set_up(dataclasses.replace(c, workdir=str(tmp_path / c.image_column)), dataset=made)
        for c in (first, second)
    ]
    named = {'dataset': 'hf:saved', 'data_dir': str(tmp_path)}
    of_files = share_images(
        make_experiment(dataclasses.replace(c, **named)) for c in (first, second, first)
    )
    for found in of_python, of_files:
        assert found[0].dealt.dataset.x_train.max() == 199
        assert found[1].dealt.dataset.x_train.max() == 0
    assert of_files[0].dealt.dataset.x_train is of_files[2].dealt.dataset.x_train
