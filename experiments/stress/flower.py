"""Flower's engines give the result of a simulation: all methods, and a node that is killed.

python -m experiments.stress.flower --output=experiments/results/flower_cpu.json

Needs the extra `flower`. The simulation engine runs 5 nodes. The deployment engine has a SuperLink
and two SuperNodes as processes on 127.0.0.1, one with the clients 0 to 2, one with 3 and 4.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import app, flags

import jaxfed
from experiments.benchmarks.measuring import reporting
from jaxfed.engine.distributed.gate import free_port

METHODS = ('fedavg', 'fedlmd', 'fedcad', 'scaffold', 'fedlmd+fedavgm')
ENGINES = ('simulation', 'deployment')
SETTINGS = {
    'num_clients': 5, 'clients_per_round': 3, 'rounds': 3, 'local_epochs': 2, 'alpha': 0.5,
    'model': 'mlp',
}  # fmt: skip
NODES = ('0,1,2', '3,4')
LIMIT = 900  # seconds for a run; a busy machine needs a few minutes


class Flower(NamedTuple):
    """The commands of Flower, and their home folder."""

    home: Path

    @property
    def environment(self) -> dict[str, str]:
        """Of its processes."""
        path = f'{Path(sys.executable).parent}{os.pathsep}{os.environ["PATH"]}'
        extra = {'FLWR_HOME': str(self.home), 'FLWR_TELEMETRY_ENABLED': '0', 'PATH': path}
        return {**os.environ, **extra}

    def start(self, *command: str, log: str) -> subprocess.Popen[bytes]:
        """Starts a process of its own group."""
        with (self.home / f'{log}.log').open('wb') as file:
            return subprocess.Popen(
                command, stdout=file, stderr=subprocess.STDOUT, env=self.environment,
                cwd=self.home, start_new_session=True,
            )  # fmt: skip

    def run(self, project: Path, *options: str) -> str:
        """Runs a project to its end and returns what Flower printed."""
        done = subprocess.run(
            ['flwr', 'run', str(project), *options, '--stream'], env=self.environment,
            cwd=self.home, timeout=LIMIT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done.stdout + done.stderr


def project_of(folder: Path, method: str, **settings: Any) -> Path:
    """Writes the Flower project of a method."""
    flags_ = [f'--{name}={value}' for name, value in {**SETTINGS, **settings}.items()]
    command = [sys.executable, '-m', 'jaxfed.flower', 'init', str(folder), f'--method={method}']
    done = subprocess.run([*command, *flags_], capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f'{command} failed']
        raise app.UsageError(lines[-1].removeprefix('error: '))
    return folder


def stop(process: subprocess.Popen[bytes], number: int = signal.SIGTERM) -> None:
    """Ends a process and its children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Deployment(NamedTuple):
    """A SuperLink and its SuperNodes."""

    flower: Flower
    nodes: list[subprocess.Popen[bytes]]
    connection: str = 'here'


@contextlib.contextmanager
def deployment(home: Path) -> Iterator[Deployment]:
    """Starts a SuperLink and two SuperNodes on 127.0.0.1."""
    flower, port = Flower(home), free_port()
    (home / 'config.toml').write_text(
        f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{port}"\n'
        'insecure = true\n'
    )
    local = ('--insecure', '--host=127.0.0.1')
    processes = [flower.start('flower-superlink', *local, f'--port={port}', log='superlink')]
    wait_for(port, processes[0])
    try:
        for number, clients in enumerate(NODES):
            processes.append(
                flower.start(
                    'flower-supernode', *local, f'--superlink=127.0.0.1:{port}',
                    f'--port={free_port()}', '--node-config', f'clients="{clients}"',
                    log=f'node{number}',
                )
            )  # fmt: skip
        yield Deployment(flower, processes[1:])
    finally:
        for process in reversed(processes):
            stop(process)


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    """Waits until a process listens; raises a RuntimeError if it ends before."""
    while process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(('127.0.0.1', port), 1):
            return
        time.sleep(0.1)
    raise RuntimeError(f'it ended with {process.returncode} before it listened at port {port}')


def difference(method: str, workdir: Path, folder: Path) -> float:
    """The largest difference of a final parameter from that of `jaxfed.simulate`."""
    config = jaxfed.Config(**SETTINGS, method=method, workdir=str(folder), csv=False)  # type: ignore[arg-type]
    result = jaxfed.simulate(config, quiet=True)
    pairs = zip(
        jax.tree.leaves(result.params), jax.tree.leaves(jaxfed.load(workdir).params), strict=True
    )
    return max(float(np.abs(a - b).max()) for a, b in pairs)


def compare(engine: str, methods: list[str], folder: Path) -> dict[str, float]:
    """Runs methods in an engine; method -> difference from simulation."""
    differences = {}
    home = folder / engine
    home.mkdir()
    with contextlib.ExitStack() as stack:
        if engine == 'deployment':
            flower, options = stack.enter_context(deployment(home)).flower, []
        else:
            flower = Flower(home)
            options = ['--federation-config', f'num-supernodes={SETTINGS["num_clients"]}']
            stack.callback(end_local_superlink, home)
        for method in methods:
            project = project_of(home / method.replace('+', '_'), method)
            printed = flower.run(project, *options)
            finished = list(project.glob('runs/*/summary.json'))
            if not finished:
                raise RuntimeError(f'{engine}, {method}:\n{printed[-3000:]}')
            alone = folder / f'{engine}_{project.name}'
            differences[method] = difference(method, finished[0].parent, alone)
            reporting.console.print(f'{engine}, {method}: {differences[method]:.1e}')
    return differences


def end_local_superlink(home: Path) -> None:
    """Ends the SuperLink that `flwr run` started for simulations."""
    subprocess.run(['pkill', '-f', f'flower-superlink.*{home}'], check=False)


def kill_a_node(folder: Path) -> list[int]:
    """Kills the second SuperNode during a run; the clients whose updates arrived in each round."""
    home = folder / 'killed'
    home.mkdir()
    with deployment(home) as running:
        settings = {'rounds': 6, 'clients_per_round': 5}
        workdir = home / 'records'
        project = project_of(home / 'project', 'fedlmd', workdir=workdir, **settings)
        records = workdir / 'metrics.jsonl'
        run = running.flower.start('flwr', 'run', str(project), '--stream', log='run')
        deadline = time.monotonic() + LIMIT
        killed = False
        while time.monotonic() < deadline and not (workdir / 'summary.json').exists():
            if not killed and records.exists() and records.read_text().count('\n') >= 2:
                stop(running.nodes[1], signal.SIGKILL)
                killed = True
            time.sleep(0.2)
        stop(run)
    return [json.loads(line)['clients'] for line in records.read_text().splitlines()]


def main(args: flags.FlagValues) -> None:
    """Runs, prints and writes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        report: dict[str, Any] = {'machine': reporting.machine(), 'settings': SETTINGS}
        for engine in args.engines:
            report[engine] = compare(engine, args.methods, folder)
        if args.kill:
            report['clients_with_a_killed_node'] = kill_a_node(folder)
    print(json.dumps(report, indent=2))
    reporting.write(report, args.output)


if __name__ == '__main__':
    flags.DEFINE_list('methods', list(METHODS), 'Methods.')
    flags.DEFINE_list('engines', list(ENGINES), f'Engines of {", ".join(ENGINES)}.')
    flags.DEFINE_bool('kill', True, 'Also kill a node during a run.')
    flags.DEFINE_string('output', None, reporting.JSON_FILE)
    reporting.run(main)
