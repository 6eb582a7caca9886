"""The commands of README.md, as experiments.stress.newcomer runs them."""

import os

from experiments.stress.newcomer import ROOT, Step, adapt, run, steps

TEXT = """# Title

```sh
# a comment
echo one \\
    two
python -m jaxfed --data_dir=DIR
```

```text
output
```

```python
# mine.py; then: python3 mine.py --strength=1
import sys
print(sys.argv[1:])
```

```python
raise SystemExit('no')
```
"""


def test_the_blocks_of_a_text_are_steps(tmp_path):
    found = list(steps(TEXT))
    assert [step.shown for step in found] == [
        'echo one      two',
        'python -m jaxfed --data_dir=DIR',
        'python3 mine.py --strength=1',
        "raise SystemExit('no')",
    ]
    environment = dict(os.environ)
    assert run(found[0], tmp_path, environment) == run(found[2], tmp_path, environment) == ''
    assert (tmp_path / 'mine.py').read_text().startswith('# mine.py')
    assert run(found[3], tmp_path, environment) == 'no\n'
    assert run(Step('', 'echo why; false; true'), tmp_path, environment) == 'why\n'


def test_names_of_data_are_replaced():
    assert adapt('x --data_dir=DIR', None) is None
    assert adapt('x --data_dir=DIR', '/data') == 'x --data_dir=/data --rounds=1'
    assert adapt('x --npz=FILE.npz', None) == 'x --npz=own.npz'


def test_readme_has_steps():
    commands = [step.command for step in steps((ROOT / 'README.md').read_text())]
    assert commands[0].startswith('python3 -m venv') and len(commands) > 10
    assert any('jaxfed.report' in command for command in commands)
