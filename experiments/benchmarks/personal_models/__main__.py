"""Accuracy of personal models: jaxfed and PFLlib on the same clients.

FedAvg, FedPer, FedRep, FedBN, Ditto and APFL on a part of CIFAR-10 with PFLlib's settings: 20
clients that all train in every round, Dirichlet 0.1 with a cap, a quarter of each client's examples
for its test, PFLlib's CNN (FedBN: the same with batch normalisation), batches of 10, one local
epoch, SGD with learning rate 0.005. Both programs read the same examples of each client, normalised
in the same way, and start from the same parameters. Each client's examples are cut to a multiple of
40, because PFLlib drops the last short batch of an epoch and jaxfed trains on it.

jaxfed tests a client's model after its local training. PFLlib tests it when it has received the new
global parameters; `pfllib_work` also tests it after local training. Two variants explain
differences of APFL: PFLlib with a fixed share, and PFLlib's rule in jaxfed. FedAvg with other
batches in jaxfed shows how much the choice of batches matters.

--protocol=one_batch gives each client 30 training examples and batches of 30. A local epoch is then
one step without a random choice, so equal rules give equal accuracies.

git clone https://github.com/TsingZ0/PFLlib
python -m experiments.benchmarks.personal_models --data_dir=DIR --pfllib=PFLlib
    --folder=runs/personal --output=experiments/results/personal_models

--python names the Python that has the packages PFLlib imports: torch, h5py, matplotlib,
scikit-learn. A second call continues: finished runs in --folder are not repeated. The result is
OUTPUT.json and OUTPUT.md.
"""

import json
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import app, flags

import jaxfed
from experiments.benchmarks.measuring import reporting
from experiments.benchmarks.personal_models import networks
from experiments.benchmarks.personal_models.clients import (
    PROTOCOLS,
    Protocol,
    choose_images,
    write_clients,
    write_partition,
    write_start,
)
from jaxfed.internal import console


class Run(NamedTuple):
    """A method of one of the programs."""

    name: str
    method: str  # of jaxfed, or PFLlib's algorithm
    settings: dict[str, Any]  # hyper-parameters of jaxfed, or settings of PFLlib
    local_epochs: int = 1  # of jaxfed; PFLlib counts FedRep's epochs of the classifier apart
    model: str = 'unpadded_cnn'
    batch_seed: int | None = None  # of jaxfed, instead of the seed


JAXFED = (
    Run('fedavg', 'fedavg', {}),
    Run('fedavg_batches', 'fedavg', {}, batch_seed=1000),
    Run('fedper', 'fedper', {}),
    Run('fedrep', 'fedrep', {'body_epochs': 1}, local_epochs=2),
    Run('fedbn', 'fedbn', {}, model='normalised_cnn'),
    Run('ditto', 'ditto', {'lam': 1.0}),
    Run('apfl', 'apfl', {'alpha': 0.5}),
    Run('apfl_overwritten', 'apfl_overwritten', {'alpha': 0.5}),
)
PFLLIB = (
    Run('fedavg', 'FedAvg', {}),
    Run('fedper', 'FedPer', {}),
    Run('fedrep', 'FedRep', {}),
    Run('fedbn', 'FedBN', {}, model='normalised_cnn'),
    Run('ditto', 'Ditto', {'mu': 1.0}),
    Run('apfl', 'APFL', {}),
    Run('apfl_fixed', 'APFL', {'alpha': 0.5, 'fixed_alpha': True}),
)


class Comparison(NamedTuple):
    """A row of the table: a score of each program."""

    text: str
    jaxfed: tuple[str, str]  # run and field
    pfllib: tuple[str, str]


ROWS = (
    Comparison('FedAvg, global model', ('fedavg', 'global'), ('fedavg', 'received')),
    Comparison('FedAvg, local models', ('fedavg', 'trained'), ('fedavg', 'trained')),
    Comparison('the same with other batches', ('fedavg_batches', 'trained'), ('fedavg', 'trained')),
    Comparison('FedPer', ('fedper', 'trained'), ('fedper', 'trained')),
    Comparison('FedRep', ('fedrep', 'trained'), ('fedrep', 'trained')),
    Comparison('FedBN', ('fedbn', 'trained'), ('fedbn', 'trained')),
    Comparison('Ditto, lambda 1', ('ditto', 'trained'), ('ditto', 'trained')),
    Comparison(
        'APFL: share 0.5 in jaxfed, adapted from 1 in PFLlib',
        ('apfl', 'trained'),
        ('apfl', 'trained'),
    ),
    Comparison('APFL, share 0.5 in both', ('apfl', 'trained'), ('apfl_fixed', 'trained')),
    Comparison(
        "APFL, share 0.5 and PFLlib's rule in both",
        ('apfl_overwritten', 'trained'),
        ('apfl_fixed', 'trained'),
    ),
)
# Score of a run and field: one number for each seed, in percent.
Scores = dict[str, dict[str, list[float]]]


def make_config(protocol: Protocol, run: Run, seed: int, folder: Path) -> jaxfed.Config:
    """The settings of a run of jaxfed."""
    return jaxfed.Config(
        method=run.method,
        hyperparameters=run.settings,
        partition='file',
        partition_file=str(folder / f'seed{seed}' / 'partition.json'),
        personal_test=protocol.held_out,
        num_clients=protocol.clients,
        clients_per_round=protocol.clients,
        rounds=protocol.rounds,
        eval_every=protocol.eval_every,
        local_eval_every=protocol.eval_every,
        local_epochs=run.local_epochs,
        batch_size=protocol.batch_size,
        learning_rate=protocol.learning_rate,
        momentum=0.0,
        weight_decay=0.0,
        model=run.model,
        init_from=str(folder / f'seed{seed}' / f'{run.model}.safetensors'),
        seed=seed,
        batch_seed=run.batch_seed,
    )


def prepare(protocol: Protocol, dataset: jaxfed.Dataset, folder: Path) -> None:
    """Writes clients and initial parameters of all seeds, unless they are there.

    Raises:
      UsageError: if the folder holds runs of another protocol.
    """
    described = json.dumps(protocol._asdict(), indent=2) + '\n'
    path = folder / 'protocol.json'
    if path.exists() and path.read_text() != described:
        raise app.UsageError(f'--folder={folder} holds runs of another protocol; name a new one.')
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(described)
    for seed in range(protocol.seeds):
        place = folder / f'seed{seed}'
        if (place / 'system').exists():
            continue
        place.mkdir(exist_ok=True)
        write_partition(protocol, dataset.y_train, seed, place / 'partition.json')
        config = make_config(protocol, JAXFED[0], seed, folder)
        sizes = write_clients(config, dataset, place / 'dataset' / 'Cifar10')
        (place / 'sizes.json').write_text(json.dumps(sizes))
        for model in ('unpadded_cnn', 'normalised_cnn'):
            write_start(model, dataset, seed, place / f'{model}.safetensors')
        (place / 'system').mkdir()


def run_jaxfed(
    protocol: Protocol, dataset: jaxfed.Dataset, folder: Path, runs: Iterable[Run]
) -> None:
    """Trains each method with all seeds in one program; finished methods are not repeated."""
    for run in runs:
        output = folder / 'jaxfed' / f'{run.name}.json'
        if output.exists():
            continue
        configs = {
            f'seed{seed}': make_config(protocol, run, seed, folder)
            for seed in range(protocol.seeds)
        }
        results = jaxfed.simulate_all(configs, folder / 'jaxfed' / run.name, dataset=dataset)
        curves = []
        for result in results.values():
            if isinstance(result, Exception):
                raise result
            entries = [line for line in result.metrics if line['personal_accuracy'] is not None]
            curves.append(
                {
                    'trained': {line['round']: line['personal_accuracy'] for line in entries},
                    'global': {line['round']: line['personal_global_accuracy'] for line in entries},
                }
            )
        output.write_text(json.dumps(curves))
        reporting.console.print(f'jaxfed: {run.name} is done.')


def make_jobs(protocol: Protocol, folder: Path, runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The jobs of `pfllib_work`, one seed after another."""
    return [
        {
            'algorithm': run.method,
            'settings': {
                'num_clients': protocol.clients,
                'batch_size': protocol.batch_size,
                'local_learning_rate': protocol.learning_rate,
                'global_rounds': protocol.rounds,
                'eval_gap': protocol.eval_every,
                **run.settings,
            },
            'normalised': run.model == 'normalised_cnn',
            'start': str(folder / f'seed{seed}' / f'{run.model}.npz'),
            'folder': str(folder / f'seed{seed}' / 'system'),
            'output': str(folder / 'pfllib' / f'{run.name}_seed{seed}.json'),
            'seed': seed,
        }
        for seed in range(protocol.seeds)
        for run in runs
    ]


def run_pfllib(
    protocol: Protocol, folder: Path, runs: Sequence[Run], *, checkout: Path, python: str
) -> None:
    """Runs PFLlib in its own process; its output goes to a file.

    Raises:
      UsageError: if it fails; the message has the last line of its output.
    """
    (folder / 'pfllib').mkdir(exist_ok=True)
    work, log = folder / 'work.json', folder / 'pfllib' / 'log.txt'
    jobs = make_jobs(protocol, folder, runs)
    work.write_text(json.dumps({'pfllib': str(checkout), 'jobs': jobs}, indent=2))
    with log.open('w') as out:
        status = subprocess.run(
            [python, '-m', 'experiments.benchmarks.personal_models.pfllib_work', str(work)],
            stdout=out,
            stderr=subprocess.STDOUT,
        ).returncode
    if status:
        raise app.UsageError(
            f'PFLlib in --python={python} failed ({reporting.last_line(log)}), see {log}.'
        )


def score(curve: dict[str, Any], last: int) -> float:
    """Mean of the last evaluations, in percent."""
    rounds = sorted(curve, key=int)[-last:]
    return 100 * statistics.fmean(curve[number] for number in rounds)


def pfllib_curves(found: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Mean over clients of each evaluation in a result of `pfllib_work`; `pooled` is its own mean.

    PFLlib divides the correct predictions of all clients by all examples.
    """
    tested = np.array(found['tested'])
    curves = {
        field: {n: float(np.mean(np.array(c) / tested)) for n, c in found[field].items()}
        for field in ('received', 'trained')
    }
    pooled = {n: float(sum(c) / tested.sum()) for n, c in found['received'].items()}
    return {**curves, 'pooled': pooled}


def read_scores(protocol: Protocol, folder: Path) -> dict[str, Scores]:
    """The scores of both programs, of all finished runs."""
    scores: dict[str, Scores] = {'jaxfed': {}, 'pfllib': {}}
    for run in JAXFED:
        path = folder / 'jaxfed' / f'{run.name}.json'
        if path.exists():
            curves = json.loads(path.read_text())
            scores['jaxfed'][run.name] = by_field(curves, protocol.last)
    for run in PFLLIB:
        paths = [
            folder / 'pfllib' / f'{run.name}_seed{seed}.json' for seed in range(protocol.seeds)
        ]
        if all(path.exists() for path in paths):
            found = [json.loads(path.read_text()) for path in paths]
            scores['pfllib'][run.name] = by_field([pfllib_curves(f) for f in found], protocol.last)
            if found[0]['alpha'] is not None:
                shares = [100 * statistics.fmean(f['alpha']) for f in found]
                scores['pfllib'][run.name]['alpha'] = shares
    return scores


def by_field(curves: Sequence[dict[str, Any]], last: int) -> dict[str, list[float]]:
    """Field -> score of each seed; for `pooled` also the best evaluation, as PFLlib reports."""
    result = {field: [score(curve[field], last) for curve in curves] for field in curves[0]}
    if 'pooled' in result:
        result['best_pooled'] = [100 * max(curve['pooled'].values()) for curve in curves]
    return result


def describe(values: Sequence[float], *, signed: bool = False) -> str:
    """Mean over seeds, and sample standard deviation if there are several."""
    mean = round(statistics.fmean(values), 1) + 0.0  # no -0.0
    text = f'{mean:+.1f}' if signed else f'{mean:.1f}'
    return text if len(values) == 1 else f'{text} ± {statistics.stdev(values):.1f}'


def table(scores: dict[str, Scores]) -> list[str]:
    """The table in Markdown: jaxfed, PFLlib, their difference, and PFLlib at its own moment."""
    lines = [
        '| Method | jaxfed | PFLlib | Difference | PFLlib before local training |',
        '|---|---|---|---|---|',
    ]
    for row in ROWS:
        (run, field), (other, other_field) = row.jaxfed, row.pfllib
        if run not in scores['jaxfed'] or other not in scores['pfllib']:
            continue
        ours, theirs = scores['jaxfed'][run][field], scores['pfllib'][other][other_field]
        paired = [a - b for a, b in zip(ours, theirs, strict=True)]
        cells = [
            row.text,
            describe(ours),
            describe(theirs),
            describe(paired, signed=True),
            describe(scores['pfllib'][other]['received']),
        ]
        lines.append(f'| {" | ".join(cells)} |')
    return lines


def document(report: dict[str, Any]) -> str:
    """The result as Markdown."""
    protocol = report['protocol']
    steps = ', '.join(f'{name} {value}' for name, value in protocol.items())
    versions = ', '.join(f'{name} {value}' for name, value in report['versions'].items())
    shares = report['scores']['pfllib'].get('apfl', {}).get('alpha', [])
    share = describe(shares) if shares else 'not run'
    tested = sum(tested for _, tested in report['sizes'][0])
    lines = [
        '# Personal models: jaxfed and PFLlib on the same clients',
        '',
        "Accuracy in percent of the clients' models on their own held-out examples: mean over "
        f'clients and over the last {protocol["last"]} evaluations; mean ± standard deviation over '
        f'{console.counted(protocol["seeds"], "seed")}. The {protocol["clients"]} clients of seed '
        f'0 hold out {tested} examples. Models are tested after local training; the last column '
        'tests them before it, as PFLlib does. The difference is that of the same seed.',
        '',
        *table(report['scores']),
        '',
        f"PFLlib's adapted share at the end, in percent: {share}.",
        '',
        f'Protocol: {steps}.',
        '',
        f'Versions: {versions}. Command:',
        '',
        '```sh',
        report['command'],
        '```',
        '',
    ]
    return '\n'.join(lines)


def command_of(args: flags.FlagValues) -> str:
    """The command, with DIR for folders of this machine."""
    values = {name: args[name].value for name in ('protocol', 'rounds', 'seeds')}
    values['runs'] = ','.join(args.runs)
    chosen = [f'--{name}={value}' for name, value in values.items() if value]
    folders = ['--data_dir=DIR', '--pfllib=DIR', '--folder=DIR', '--output=FILE']
    return ' '.join(['python -m experiments.benchmarks.personal_models', *chosen, *folders])


def main(args: flags.FlagValues) -> None:
    """Runs both programs and writes the result."""
    checkout, folder = Path(args.pfllib).absolute(), Path(args.folder).absolute()
    if not (checkout / 'system' / 'flcore').is_dir():
        raise app.UsageError(
            f'--pfllib={args.pfllib} has no folder system/flcore; name a checkout of '
            'https://github.com/TsingZ0/PFLlib.'
        )
    chosen = [run.name for run in (*JAXFED, *PFLLIB)]
    if unknown := [name for name in args.runs if name not in chosen]:
        raise app.UsageError(
            f'--runs names {unknown[0]}; choose of {", ".join(dict.fromkeys(chosen))}.'
        )
    networks.register()
    jaxfed.use_every_core()
    changes: Any = {name: args[name].value for name in ('rounds', 'seeds') if args[name].value}
    protocol = PROTOCOLS[args.protocol]._replace(**changes)
    dataset = choose_images(protocol, args.data_dir)
    prepare(protocol, dataset, folder)
    names = args.runs or chosen
    run_jaxfed(protocol, dataset, folder, [run for run in JAXFED if run.name in names])
    runs = [run for run in PFLLIB if run.name in names]
    run_pfllib(protocol, folder, runs, checkout=checkout, python=args.python)
    torch = next((folder / 'pfllib').glob('*_seed0.json'), None)
    report: dict[str, Any] = {
        'protocol': protocol._asdict(),
        'versions': {
            'jaxfed': jaxfed.__version__,
            'jax': jax.__version__,
            'PFLlib': reporting.commit_of(checkout),
            'torch': json.loads(torch.read_text())['torch'] if torch else 'unknown',
        },
        'command': command_of(args),
        'sizes': [
            json.loads((folder / f'seed{seed}' / 'sizes.json').read_text())
            for seed in range(protocol.seeds)
        ],
        'scores': read_scores(protocol, folder),
    }
    reporting.console.print('\n'.join(table(report['scores'])), markup=False, soft_wrap=True)
    if args.output:
        Path(f'{args.output}.json').write_text(json.dumps(report, indent=2) + '\n')
        Path(f'{args.output}.md').write_text(document(report))


if __name__ == '__main__':
    flags.DEFINE_string('data_dir', None, 'Directory of TFDS datasets.')
    flags.DEFINE_string('pfllib', None, "PFLlib's working tree.", required=True)
    flags.DEFINE_string('python', sys.executable, "The Python that has PFLlib's packages.")
    flags.DEFINE_enum('protocol', 'settings', list(PROTOCOLS), 'The work, see above.')
    for name in ('rounds', 'seeds'):
        reporting.define_positive(name, None, f"{name.capitalize()} [the protocol's].")
    flags.DEFINE_string('folder', 'runs/personal', 'Folder of clients and runs.')
    flags.DEFINE_list('runs', [], f'Of {", ".join(run.name for run in (*JAXFED, *PFLLIB))} [all].')
    flags.DEFINE_string('output', None, 'Files to write, without suffix: .json and .md.')
    reporting.run(main)
