"""Partitions from files, to files, and of Flower."""

import json
import os
import zipfile

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import jaxfed
from jaxfed.partition import from_flower, make_partition, read_indices, to_flower
from jaxfed.runs import deal
from jaxfed.runs.partition_map import deal_examples, write_indices
from jaxfed.runs.seeds import sample_cohort

CLIENTS = [[4, 0], [], [7, 2, 5]]
QUICK = {'model': 'mlp', 'rounds': 2, 'local_epochs': 1, 'clients_per_round': 2, 'num_clients': 6}


def write(path, content):
    path.write_text(json.dumps(content))
    return path


def parts_of(path, *, number=8, clients=3, **changes):
    labels = np.arange(number) % 3
    made = make_partition(
        'file', labels, num_clients=clients, seed=0, partition_file=str(path), **changes
    )
    return [part.tolist() for part in made]


@pytest.mark.parametrize(
    'content',
    [
        CLIENTS,
        {'clients': CLIENTS},
        {'clients': CLIENTS, 'num_examples': 8},
        {'data_indices': [{'train': c, 'test': [1]} for c in CLIENTS], 'separation': {}},
        {'data_indices': {str(i): {'train': c} for i, c in enumerate(CLIENTS)}},
    ],
)
def test_forms_of_json(content, tmp_path):
    assert parts_of(write(tmp_path / 'a.json', content)) == CLIENTS


def test_npz(tmp_path):
    indices, sizes = np.concatenate(CLIENTS).astype(np.uint16), [len(c) for c in CLIENTS]
    np.savez(tmp_path / 'a.npz', indices=indices, sizes=sizes)
    assert parts_of(tmp_path / 'a.npz') == CLIENTS
    np.savez(tmp_path / 'b.npz', indices=indices, sizes=[2, 1])
    with pytest.raises(ValueError, match='sizes add up to 3, but there are 5 indices'):
        parts_of(tmp_path / 'b.npz')


def test_examples_that_are_not_dealt_leave_their_clients(tmp_path):
    path = write(tmp_path / 'a.json', CLIENTS)
    dealt = np.ones(8, bool)
    dealt[[0, 3, 5]] = False  # places 1, 2, 4, 6, 7 of the training data are left
    assert parts_of(path, number=5, dealt=dealt) == [[2], [], [4, 1]]


@pytest.mark.parametrize(
    'content, message',
    [
        ([[0], [1]], 'has 2 clients; set --num_clients=2, not 3'),
        ([[0], [1], [8]], 'client 2 has the index 8, but the training data has 8 examples'),
        ([[0], [-1], [2]], 'client 1 has the index -1'),
        ([[0], [1, 5], [5]], 'example 5 is at client 1 and again at client 2'),
        ([[0], [3, 3], [5]], 'example 3 is at client 1 and again at client 1'),
        ({'clients': CLIENTS, 'num_examples': 9}, 'is for 9 training examples, .* dataset has 8'),
        ([[0], [0.5], []], 'cannot be read .*float64.* must list the indices of each client'),
        ([[0], [[1]], []], r'cannot be read .*shape \(1, 1\)'),
        ([[0], ['1'], []], 'cannot be read'),
        ([0, 1, 2], 'cannot be read'),
        ({'train': []}, "cannot be read .*'clients'"),
        ([], 'cannot be read .it lists no client.'),
        ({'data_indices': [[0]]}, 'cannot be read'),
        ('x', 'cannot be read'),
        (None, 'cannot be read'),
        ({'clients': CLIENTS, 'num_examples': 'many'}, 'cannot be read'),
    ],
)
def test_what_is_no_partition(content, message, tmp_path):
    path = write(tmp_path / 'a.json', content)
    with pytest.raises(ValueError, match=message) as error:
        parts_of(path)
    assert str(error.value).startswith(f'--partition_file={path}')
    assert '\n' not in str(error.value)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ValueError, match='--partition=file needs --partition_file'):
        make_partition('file', np.zeros(8, int), num_clients=3, seed=0)
    with pytest.raises(ValueError, match=r'must end in \.json or \.npz'):
        read_indices(tmp_path / 'partition.pkl')
    with pytest.raises(ValueError, match='is not a file'):
        read_indices(tmp_path / 'a.json')
    for name, content in {
        'a.json': b'[[0], [1',
        'deep.json': b'[' * 100_000,
        'b.npz': b'PK\x03\x04 no zip',
        'c.npz': b'',
    }.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=f'{name} cannot be read'):
            read_indices(tmp_path / name)
    np.savez(tmp_path / 'none.npz', indices=np.zeros(0, int), sizes=np.zeros(0, int))
    with pytest.raises(ValueError, match=r'none\.npz cannot be read \(it lists no client\)'):
        read_indices(tmp_path / 'none.npz')
    np.savez(tmp_path / 'other.npz', clients=np.zeros(3, int))
    with pytest.raises(ValueError, match=r'as the arrays `indices` \[m\], one client after'):
        read_indices(tmp_path / 'other.npz')
    with zipfile.ZipFile(tmp_path / 'bomb.npz', 'w') as archive:
        archive.writestr('indices.npy', b'')
        archive.infolist()[0].file_size = 3 * 2**30  # for the directory at the end
    with pytest.raises(ValueError, match=r'unpacks to 3\.0 GiB, more than 2 GiB'):
        read_indices(tmp_path / 'bomb.npz')
    np.savez(tmp_path / 'd.npz', indices=np.array([None]), sizes=[1])  # a pickle
    with pytest.raises(ValueError, match=r'd\.npz cannot be read .*allow_pickle'):
        read_indices(tmp_path / 'd.npz')


@pytest.mark.slow
@pytest.mark.parametrize('suffix', ['json', 'npz'])
def test_a_written_partition_trains_the_same_clients(suffix, tmp_path, cheap_runs):
    def run(name, **settings):
        config = jaxfed.Config(workdir=str(tmp_path / name), **{**QUICK, **settings})
        return jaxfed.simulate(config, quiet=True)

    path, common = tmp_path / f'who.{suffix}', {'alpha': 0.3, 'personal_test': 0.0}
    dealt = deal_examples(jaxfed.Config(**{**QUICK, **common}))
    write_indices(path, dealt)
    clients, number = read_indices(path)
    assert number == len(dealt.dataset.y_train)
    for ours, read in zip(dealt.partition, clients, strict=True):
        assert_array_equal(ours, read)
    evaluated = {'personal_test': 0.3, 'local_eval_every': 1}
    first = run('dealt', alpha=0.3, **evaluated)
    second = run('read', partition='file', partition_file=str(path), **evaluated)
    for a, b in zip(first.metrics, second.metrics, strict=True):
        assert {k: v for k, v in a.items() if 'seconds' not in k} == {
            k: v for k, v in b.items() if 'seconds' not in k
        }
    digests = [
        json.loads((tmp_path / name / 'partition.json').read_text())['digest']
        for name in ('dealt', 'read')
    ]
    assert digests == [dealt.digest] * 2


def test_the_digest_does_not_depend_on_the_order_of_examples(tmp_path):
    dealt = []
    for indices in ([5, 0, 2], [0, 2, 5], [0, 2, 4]):
        path = write(tmp_path / 'who.json', {'clients': [indices, [1, 3]]})
        settings = {**QUICK, 'num_clients': 2, 'partition': 'file', 'partition_file': str(path)}
        config = jaxfed.Config(**settings, personal_test=0.4, local_eval_every=1)
        dealt.append(deal_examples(config))
    first, second, other = dealt
    assert first.digest == second.digest != other.digest
    for ours, theirs in ((first.partition, second.partition), (first.personal, second.personal)):
        assert [part.tolist() for part in ours] == [part.tolist() for part in theirs]


@pytest.mark.slow
def test_a_run_continues_with_the_same_partition_only(tmp_path, cheap_runs):
    path = tmp_path / 'who.json'
    config = jaxfed.Config(
        **QUICK, partition='file', partition_file=str(path), workdir=str(tmp_path / 'run')
    )
    dealt = deal_examples(jaxfed.Config(**QUICK, partition='iid'))
    write_indices(path, dealt)
    jaxfed.simulate(config, quiet=True)
    (tmp_path / 'run' / 'summary.json').unlink()
    labels = dealt.dataset.y_train
    first, second = (part.tolist() for part in dealt.partition[:2])
    a, b = next(
        (i, j) for i, x in enumerate(first) for j, y in enumerate(second) if labels[x] == labels[y]
    )
    first[a], second[b] = second[b], first[a]  # the label counts stay
    rest = [part.tolist() for part in dealt.partition[2:]]
    write(path, {'clients': [first, second, *rest]})
    with pytest.raises(ValueError, match=r'partition\.json describes other data'):
        jaxfed.simulate(config, quiet=True)


DATA = {'data_dir': os.environ.get('JAXFED_DATA_DIR')}
CIFAR = pytest.param(
    {'dataset': 'cifar10', **DATA, 'batch_size': 500, 'local_epochs': 1, 'devices': '1'},
    id='cifar10',
    marks=[
        pytest.mark.slow,
        pytest.mark.skipif(DATA['data_dir'] is None, reason='JAXFED_DATA_DIR is not set'),
    ],
)


@pytest.mark.parametrize('data', [pytest.param({}, id='digits'), CIFAR])
def test_partitioners_of_flower_and_back(data, tmp_path, cheap_runs):
    datasets = pytest.importorskip('datasets')
    partitioner = pytest.importorskip('flwr_datasets.partitioner')
    labels = deal.deal(jaxfed.Config(**data)).dataset.y_train
    parts = from_flower(
        partitioner.DirichletPartitioner(
            num_partitions=6, partition_by='label', alpha=0.3, min_partition_size=5, seed=1
        ),
        labels,
    )
    assert sorted(np.concatenate(parts)) == list(range(len(labels)))
    path = write(tmp_path / 'flower.json', [part.tolist() for part in parts])
    config = jaxfed.Config(
        **QUICK | data, partition='file', partition_file=str(path), workdir=str(tmp_path / 'run')
    )
    assert jaxfed.simulate(config, quiet=True).metrics[-1]['clients'] == 2
    counts = np.array(json.loads((tmp_path / 'run' / 'partition.json').read_text())['label_counts'])
    want = [np.bincount(labels[part], minlength=10) for part in parts]
    assert_array_equal(counts, want)
    back = to_flower(parts)
    back.dataset = datasets.Dataset.from_dict({'label': labels})
    assert back.num_partitions == 6
    for i, part in enumerate(parts):
        assert_array_equal(back.load_partition(i)['label'], labels[part])


def test_rounds_whose_clients_have_no_examples(tmp_path):
    path = write(tmp_path / 'one.json', [list(range(20)), [], []])
    config = {
        **QUICK, 'partition': 'file', 'partition_file': str(path), 'num_clients': 3,
        'clients_per_round': 1, 'workdir': str(tmp_path / 'run'),
    }  # fmt: skip
    metrics = jaxfed.simulate(jaxfed.Config(**config | {'rounds': 8}), quiet=True).metrics
    losses = [entry['train_loss'] for entry in metrics]
    assert all(entry['clients'] == 1 for entry in metrics)
    assert None in losses and all(loss is None or loss > 0 for loss in losses) and any(losses)
    alone = next(seed for seed in range(9) if not trains(seed))
    config |= {'rounds': 1, 'cohort_seed': alone, 'workdir': None}
    with pytest.raises(ValueError, match='--rounds=1 sample no client with examples; raise it'):
        jaxfed.simulate(jaxfed.Config(**config))


def trains(seed):
    """Whether client 0, the only one with examples, trains in the first of these rounds."""
    config = jaxfed.Config(num_clients=3, clients_per_round=1, cohort_seed=seed)
    return 0 in sample_cohort(config, np.array([20, 0, 0]), 1).clients


def test_the_command_writes_indices(tmp_path, capsys, monkeypatch):
    from jaxfed.runs import partition_map

    def run(path):
        flags = {'method': 'fedavg', 'include': None, 'output': None, 'output_indices': path}
        values = type('Values', (), flags)
        monkeypatch.setattr(partition_map, 'flags', type('Flags', (), {'FLAGS': values}))
        return partition_map.main(['partition'])

    monkeypatch.setattr(partition_map.command_line, 'quiet_libraries', lambda: None)
    monkeypatch.setattr(partition_map.config_flags, 'from_flags', jaxfed.Config)
    assert run(str(tmp_path / 'who.json')) == 0
    digest = json.loads((tmp_path / 'who.json').read_text())['digest']
    assert f'digest of the partition: {digest}' in capsys.readouterr().out
    assert run(str(tmp_path / 'who.txt')) == 2
    assert 'who.txt must end in .json or .npz' in ' '.join(capsys.readouterr().err.split())
    assert run(str(tmp_path / 'no' / 'who.npz')) == 2
    assert '--output_indices=' in capsys.readouterr().err
