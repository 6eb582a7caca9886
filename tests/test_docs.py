"""The documentation: complete docstrings, examples that run, valid links, pages that build."""

import dataclasses
import importlib
import importlib.util
import inspect
import os
import pkgutil
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import jaxfed
from experiments import figures, tables
from experiments.benchmark import __main__ as benchmark
from experiments.search import __main__ as search
from jaxfed import methods
from jaxfed.data.prepare import RECIPES
from jaxfed.data.prepare import __main__ as prepare_command
from jaxfed.engine.cohorts import SAMPLINGS
from jaxfed.engine.optimizers import OPTIMIZERS
from jaxfed.flower.project import write_project
from jaxfed.methods import METHODS
from jaxfed.metrics.measures import MEASURES
from jaxfed.models import MODELS
from jaxfed.partition import PARTITIONS
from jaxfed.recording import entries
from jaxfed.report import __main__ as report_command
from jaxfed.runs import checks, config_flags, deal
from jaxfed.runs.own_optimizer import name_optimizers
from jaxfed.sweeps import grid, sweep
from jaxfed.sweeps.halving import parse_halving

ROOT = Path(__file__).parent.parent
PAGES = sorted(ROOT.glob('docs/*.md'))
TEXTS = [ROOT / name for name in ('README.md', 'CONTRIBUTING.md', 'BUILD_NOTES.md')]
GRIDS = {
    'experiments.benchmark': benchmark,
    'experiments.figures': figures,
    'experiments.search': search,
    'experiments.tables': tables,
}


def public():
    """(name, thing) of all modules, functions, classes and methods without a leading underscore."""
    for info in pkgutil.walk_packages(jaxfed.__path__, 'jaxfed.'):
        if any(part.startswith('_') for part in info.name.split('.')):
            continue
        module = importlib.import_module(info.name)
        yield info.name, module
        for name, thing in vars(module).items():
            if name.startswith('_') or getattr(thing, '__module__', None) != info.name:
                continue
            if inspect.isfunction(thing):
                yield f'{info.name}.{name}', thing
            if inspect.isclass(thing):
                yield f'{info.name}.{name}', thing
                for key, member in vars(thing).items():
                    # Defaults of a tuple's fields are functions that were written elsewhere.
                    is_member = getattr(member, '__qualname__', '') == f'{name}.{key}'
                    if not key.startswith('_') and inspect.isfunction(member) and is_member:
                        yield f'{info.name}.{name}.{key}', member


PUBLIC = dict(public())


def test_public_names_are_found():
    found = {
        'jaxfed.runs.simulate.simulate',
        'jaxfed.methods.method.LocalView.mean',
        'jaxfed.types.Batch',
    }
    assert found < PUBLIC.keys()
    assert len(PUBLIC) > 250


# Rooms whose public functions are public API, in addition to the exports of `jaxfed`.
PUBLIC_ROOMS = ('jaxfed.losses', 'jaxfed.metrics', 'jaxfed.partition')
EXPORTED = {getattr(jaxfed, name) for name in jaxfed.__all__ if callable(getattr(jaxfed, name))}
EXPORTED |= {*METHODS.values()}
for room in PUBLIC_ROOMS:
    module = importlib.import_module(room)
    EXPORTED |= {f for f in map(vars(module).get, module.__all__) if inspect.isfunction(f)}


def faults(thing, exported):
    """Every docstring begins with a sentence; the public API's name all arguments and results."""
    text = inspect.getdoc(thing) or ''
    first, _, rest = text.partition('\n')
    if not first.endswith(('.', ':')) or rest.partition('\n')[0]:
        yield 'its first line is not one sentence'
    if not inspect.isfunction(thing):
        return
    parameters = {name for name in inspect.signature(thing).parameters if name != 'self'}
    section = re.search(r'^Args:\n((?:  .*\n?|\n)*)', text, re.MULTILINE)
    described = set(re.findall(r'^  \*{0,2}(\w+):', section[1], re.MULTILINE)) if section else set()
    if (exported or section) and parameters != described:
        yield f'it takes {sorted(parameters)} and Args describe {sorted(described)}'
    returns = inspect.signature(thing).return_annotation is not None
    if exported and parameters and returns and not re.search(r'^(Returns|Yields):', text, re.M):
        yield 'it does not say what it returns'


def test_every_docstring_is_complete():
    found = [
        f'{name}: {fault}'
        for name, thing in PUBLIC.items()
        for fault in faults(thing, thing in EXPORTED)
    ]
    assert not found, '\n'.join(found)


def whole(a, b):
    """One sentence.

    Args:
      a: one.

    Returns:
      Nothing.
    """
    return a, b


def test_incomplete_docstrings_are_found():
    assert list(faults(whole, False)) == ["it takes ['a', 'b'] and Args describe ['a']"]
    assert next(faults(lambda a: a, True)) == 'its first line is not one sentence'


def blocks(language):
    """(page:line, text) of the code blocks of a language in all pages and the README."""
    pattern = re.compile(rf'^```{language}\n(.*?)^```', re.MULTILINE | re.DOTALL)
    for page in [ROOT / 'README.md', *PAGES]:
        text = page.read_text()
        for found in pattern.finditer(text):
            line = text.count('\n', 0, found.start()) + 2
            yield pytest.param(found[1], id=f'{page.name}:{line}')


def of_sweep(arguments):
    """(flags of many experiments, the others)."""
    pairs = [argument.lstrip('-').partition('=')[::2] for argument in arguments]
    known = ('sweep', 'seeds', 'halving', 'together', 'dry_run')
    others = [a for a, (name, _) in zip(arguments, pairs) if name not in known]
    return {name: value for name, value in pairs if name in known}, others


@pytest.mark.parametrize('text', list(blocks('sh')))
def test_every_command_has_valid_flags(text, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)  # flag files are named from here
    lines = text.replace('\\\n', ' ').replace('$seed', '0').splitlines()
    for part in [part for line in lines for part in re.split(r'&&|;(?= )', line)]:
        _, python, command = part.partition('python -m ')
        words = shlex.split(command)
        if not python or words[0] in ('pytest', 'sphinx'):
            continue
        module, *arguments = words
        if module == 'jaxfed.data.prepare':
            assert arguments[0] in RECIPES
            known = inspect.getsource(prepare_command.define_flags)
            for argument in arguments[1:]:
                assert f"'{argument.partition('=')[0].lstrip('-')}'" in known
            continue
        if module == 'jaxfed.report':
            report_command.make_parser().parse_args(arguments)
            continue
        if module == 'jaxfed.flower':
            assert arguments[0] == 'init'
            write_project(tmp_path / arguments[1], arguments[2:])
            continue
        if module in GRIDS:
            cut = arguments.index('--') if '--' in arguments else len(arguments)
            # The plan of a benchmark reads data and trains a round.
            check = '--report_only' if GRIDS[module] is benchmark else '--dry_run'
            planned = [*arguments[:cut], check, f'--output={tmp_path}', *arguments[cut:]]
            assert GRIDS[module].main(planned) == 0
            continue
        if module.startswith(('experiments.benchmarks.', 'tests.')):
            assert importlib.util.find_spec(module)
            continue
        if module == 'jaxfed.partition':
            arguments = [a for a in arguments if not a.startswith('--output=')]
        else:
            assert module in ('jaxfed', 'jaxfed.main')
            of_process = {f'--{name}' for name in config_flags.COMMAND_FLAGS}
            arguments = [a for a in arguments if a.partition('=')[0] not in of_process]
        if arguments == ['--version']:
            continue
        sweeps = module in ('jaxfed', 'jaxfed.main')
        ours, arguments = of_sweep(arguments) if sweeps else ({}, arguments)
        settings = config_flags.parse(arguments)
        if ours:
            parse_halving(ours.get('halving'), settings)
            points = grid.parse_grid(ours.get('sweep', ''), settings)
            sweep.expand(settings, points, int(ours.get('seeds', 1)), tmp_path)
        if 'list' in (settings.method, settings.measure):
            continue
        if module == 'jaxfed.partition':
            sampled = min(settings.clients_per_round, settings.num_clients)
            settings = dataclasses.replace(settings, clients_per_round=sampled)
        checks.check(settings)
        parts = methods.resolve(settings.method, settings.hyperparameters)
        methods.build(parts, switch_round=settings.switch_round)


@pytest.fixture
def registries():
    """Removes what an example registers."""
    every = (methods.METHODS, MEASURES, MODELS, PARTITIONS, SAMPLINGS, OPTIMIZERS)
    held = [(registry, dict(registry)) for registry in every]
    yield
    for registry, before in held:
        registry.clear()
        registry.update(before)


SMALL = {
    'model': 'mlp', 'rounds': 1, 'num_clients': 4, 'clients_per_round': 2, 'devices': '1',
    'lanes': 1, 'workdir': None,
}  # fmt: skip


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """A small run, which replaces the runs of examples that register nothing."""
    folder = str(tmp_path_factory.mktemp('trained') / 'out')
    return jaxfed.simulate(jaxfed.Config(**{**SMALL, 'workdir': folder}))


SAVED = r'Save this as `(\w+\.py)`[^\n]*\n\n```python\n(.*?)```'


@pytest.mark.slow
@pytest.mark.parametrize('text', list(blocks('python')))
def test_every_example_runs(text, trained, registries, cheap_runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(jaxfed, 'use_every_core', lambda: None)  # JAX has been used already
    networks, known = set(MODELS), set(methods.METHODS)
    simulate = jaxfed.simulate

    def short(settings, *, method=None, **options):
        parts = [] if method else methods.resolve(settings.method, settings.hyperparameters)
        if method is None:
            methods.build(parts)
        small = SMALL if settings.model in networks else {**SMALL, 'model': settings.model}
        (settings,) = name_optimizers([dataclasses.replace(settings, **small)])
        checks.check(settings)
        deal.deal(settings)
        new = {part.name for part in parts} - known or {settings.model} - networks
        new = new or {settings.measure} - {'none'} or settings.save_clients
        return simulate(settings, method=method, **options) if method or new or options else trained

    def all_short(configs, folder):
        return {name: short(settings) for name, settings in configs.items()}

    monkeypatch.setattr(jaxfed, 'simulate', short)
    monkeypatch.setattr(jaxfed, 'simulate_all', all_short)
    for folder in re.findall(r"'(runs/\S+)/metrics\.jsonl'", text):  # of commands before it
        shutil.copytree(trained.workdir, folder)
    for page in PAGES:
        for name, saved in re.findall(SAVED, page.read_text(), re.DOTALL):
            (tmp_path / name).write_text(saved)
            monkeypatch.delitem(sys.modules, name.removesuffix('.py'), raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    names = {'__name__': 'example'}
    exec(compile(text, 'example', 'exec'), names)
    for test in [value for name, value in names.items() if name.startswith('test_')]:
        test(*[tmp_path] * len(inspect.signature(test).parameters))


def test_every_field_of_the_records_is_explained(trained):
    explained = set(re.findall(r'`(\w+)`', (ROOT / 'docs' / 'records.md').read_text()))
    fields = trained.metrics[0].keys() | trained.summary.keys() | trained.summary['cost'].keys()
    assert fields <= explained


def test_measures_cannot_take_the_name_of_another_field(trained):
    assert trained.metrics[0].keys() | trained.summary.keys() <= entries.RESERVED
    explained = set(re.findall(r'`(\w+)`', (ROOT / 'docs' / 'records.md').read_text()))
    assert explained >= entries.RESERVED


def anchors(page):
    """The anchors of a Markdown page, by the rule of GitHub and MyST."""
    text = re.sub(r'^```.*?^```', '', page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r'^#+ (.*)$', text, re.MULTILINE)
    plain = [re.sub(r'\[([^\]]*)\]\([^)]*\)|`', r'\1', title) for title in titles]
    return {re.sub(r'[^\w\- ]', '', title.lower()).replace(' ', '-') for title in plain}


@pytest.mark.parametrize('page', [*TEXTS, *PAGES], ids=lambda page: page.name)
def test_every_link_has_a_target(page):
    text = re.sub(r'^```(?!{image).*?^```', '', page.read_text(), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r'`[^`\n]+`', 'code', text)
    links = re.findall(r'\]\(([^)\s]+)\)|^```{image} (\S+)', text, re.MULTILINE)
    broken = []
    for link in [inline or image for inline, image in links]:
        path, _, anchor = link.partition('#')
        if re.match(r'https?:|mailto:', link) or path.startswith('reference/'):
            continue  # pages of the reference are made by the build, which checks these links
        target = (page.parent / path) if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


def test_no_page_is_lost():
    listed = set(re.findall(r'^([a-z_]+)$', (ROOT / 'docs' / 'index.md').read_text(), re.M))
    assert {page.stem for page in PAGES} == listed | {'index'}


def test_no_placeholder_is_left():
    for page in [*TEXTS, *PAGES]:
        assert not re.search(r'YOUR|TODO|FIXME|@@', page.read_text()), page.name


def test_the_messages_of_the_page_are_those_of_the_code(docs_modules):
    page = (ROOT / 'docs' / 'troubleshooting.md').read_text()
    shown = docs_modules('messages').updated(page)
    assert 'no error' not in shown
    assert shown == page, 'run python docs/messages.py'


@pytest.fixture
def docs_modules(monkeypatch):
    """Imports a module of docs/."""
    monkeypatch.syspath_prepend(ROOT / 'docs')
    return importlib.import_module


def test_every_method_and_loss_has_a_typeset_equation(docs_modules):
    pytest.importorskip('latex2mathml')
    equations, mathml = docs_modules('equations'), docs_modules('mathml')
    pages = ('label_skew.md', 'beyond_averaging.md')
    page = ''.join((ROOT / 'docs' / name).read_text() for name in pages)
    for function in [*METHODS.values(), *(vars(jaxfed.losses)[n] for n in jaxfed.losses.__all__)]:
        paragraphs = map(equations.normalised, inspect.getdoc(function).split('\n\n'))
        latex = [equations.EQUATIONS[p] for p in paragraphs if p in equations.EQUATIONS]
        name = function.__name__
        assert len(latex) == 1, f'docs/equations.py must have one paragraph of the text of {name}'
        if function in METHODS.values():
            for line in mathml.lines_of(latex[0]):
                assert f'$${line}$$' in page, f'{" or ".join(pages)} must show $${line}$$ of {name}'
    texts = {
        equations.normalised(paragraph)
        for thing in PUBLIC.values()
        for paragraph in (inspect.getdoc(thing) or '').split('\n\n')
    }
    assert equations.EQUATIONS.keys() <= texts, 'no docstring has this equation any more'


def test_pages_have_the_numbers_of_methods_and_partitions():
    words = {11: 'eleven', 12: 'twelve', 13: 'thirteen'}
    methods_, partitions = f'{len(METHODS)} methods', f'{words[len(PARTITIONS)]} partitions'
    for page in ('README.md', 'docs/index.md'):
        text = ' '.join((ROOT / page).read_text().split())
        assert methods_ in text and partitions in text, page
    assert (
        f'`--method=list` shows all {len(METHODS)} |' in (ROOT / 'docs/quickstart.md').read_text()
    )
    for name in PARTITIONS:
        assert f'`{name}`' in (ROOT / 'docs/partitions.md').read_text(), name


def test_lines_of_an_equation(docs_modules):
    pytest.importorskip('latex2mathml')
    lines_of = docs_modules('mathml').lines_of
    cases = r'\begin{cases} a \\ b \end{cases}'
    assert lines_of(rf'x \\ {cases} \\ y') == ['x', cases, 'y']


@pytest.mark.slow
def test_the_pages_build_without_a_warning(tmp_path):
    for package in ('sphinx', 'furo', 'myst_parser', 'latex2mathml', 'sphinx_copybutton'):
        pytest.importorskip(package)
    source, pages = tmp_path / 'docs', tmp_path / 'html'
    shutil.copytree(ROOT / 'docs', source, ignore=shutil.ignore_patterns('_build', 'reference'))
    (tmp_path / 'experiments').symlink_to(ROOT / 'experiments')
    # In another process, because autodoc changes the defaults of functions.
    environment = {**os.environ, 'PYTHONPATH': str(ROOT)}
    command = [sys.executable, '-m', 'sphinx', '-q', '-W', str(source), str(pages)]
    built = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    methods_page = (pages / 'reference' / 'jaxfed.methods.html').read_text()
    assert methods_page.count('<math') >= len(METHODS) and 'tau^2' not in methods_page
    text = re.sub(r'<[^>]+>', '', (pages / 'reference' / 'jaxfed.html').read_text())
    assert '[B, H, W, channels] float32, normalised and augmented' in text  # a field's comment
    assert 'rounds between evaluations on the test data' in text  # a flag's help
    text = re.sub(r'<[^>]+>', '', (pages / 'reference' / 'jaxfed.engine.html').read_text())
    assert re.search(r'clients_per_round . S\.', text)  # a letter and a full stop are no list
    html = ''.join(page.read_text() for page in (pages / 'reference').glob('*.html'))
    shown = set(re.findall(r' id="(?:module-)?(jaxfed[\w.]*)"', html))
    assert PUBLIC.keys() <= shown
    table = (pages / 'methods.html').read_text()
    assert all(f'>{name}</span>' in table for name in methods.METHODS)
    # A browser opens a page of results, and saves its numbers.
    links = re.findall(
        r'<a class="reference download[^>]*>', (pages / 'which_method.html').read_text()
    )
    results = {link for link in links if '.html"' in link}
    assert len(results) == 4 and not [link for link in results if 'download=""' in link]
    assert len(links) > 3 and all('download=""' in link for link in set(links) - results)
    # A page loads nothing from the network.
    html += ''.join(page.read_text() for page in pages.glob('*.html'))
    loaded = re.findall(r'<(?:script|link|img)[^>]* (?:src|href)="([^"]*)"', html)
    assert loaded and not [url for url in loaded if url.startswith(('http', '//'))]
