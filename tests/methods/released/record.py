"""Record what released code computes on a small problem; needs PyTorch and a checkout of the code.

PFLlib also needs h5py, matplotlib and scikit-learn, FedRep pandas, FedTorch the packages of its
requirements.txt. FedRep and FedTorch were written for PyTorch before 2.0, where `zero_grad` set
gradients to 0 instead of None; their recorders choose.

python -m tests.methods.released.record --reference=fedntd --checkout=DIR

Writes tests/methods/released/REFERENCE.json: for each algorithm the parameters of every client
after its local training, and the global ones after every round. What surrounds the training
(Weights & Biases, measuring accuracy, reading data, processes) is replaced, and a step, a loop or
a part of it where the runner in `recorders` says so.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from unittest import mock

import torch
from absl import app, flags

from tests.methods.released.problem import JOBS
from tests.methods.released.recorders import (
    byzantine,
    fedbn,
    feddecorr,
    feddyn,
    fedgkd,
    fednova,
    fedntd,
    fedrep,
    fedrs,
    fedtorch,
    moon,
    pfllib,
)

# reference -> (address, folder of its program, runner)
REFERENCES = {
    'fedntd': ('https://github.com/Lee-Gihun/FedNTD', '.', fedntd.run),
    'fedlmd': ('https://github.com/wnma3mz/FedLMD', 'src', fedntd.run),
    'fedrs': ('https://github.com/lxcnju/FedRepo', '.', fedrs.run),
    'fedgkd': ('https://github.com/CGCL-codes/FedGKD', '.', fedgkd.run),
    'feddecorr': ('https://github.com/bytedance/FedDecorr', '.', feddecorr.run),
    'feddyn': ('https://github.com/alpemreacar/FedDyn', '.', feddyn.run),
    'fednova': ('https://github.com/JYWa/FedNova', '.', fednova.run),
    'fedrep': ('https://github.com/lgcollins/FedRep', '.', fedrep.run),
    'fedbn': ('https://github.com/med-air/FedBN', 'federated', fedbn.run),
    'fedtorch': ('https://github.com/MLOPTPSU/FedTorch', '.', fedtorch.run),
    'byzantine': ('https://github.com/LPD-EPFL/ByzantineMomentum', '.', byzantine.run),
    'moon': ('https://github.com/QinbinLi/MOON', '.', moon.run),
    'pfllib': ('https://github.com/TsingZ0/PFLlib', 'system', pfllib.run),
}


def main(_: list[str]) -> None:
    """Records all algorithms of the reference."""
    reference = flags.FLAGS.reference
    url, folder, run = REFERENCES[reference]
    os.chdir(Path(flags.FLAGS.checkout) / folder)
    sys.path.insert(0, os.getcwd())
    commit = subprocess.check_output(['git', 'rev-parse', 'HEAD'], text=True).strip()
    jobs = {name: job for name, job in JOBS.items() if job.reference == reference}
    with mock.patch('torch.cuda.is_available', lambda: False):  # everything runs on the CPU
        rounds = {name: run(job) for name, job in jobs.items()}
    recorded = {'reference': url, 'commit': commit, 'torch': torch.__version__, 'rounds': rounds}
    text = json.dumps(recorded, indent=0)
    text = re.sub(r'(?<=\d),\n(?=[-\d])', ', ', text)  # a line for each vector of parameters
    (Path(__file__).parent / f'{reference}.json').write_text(text + '\n')


if __name__ == '__main__':
    flags.DEFINE_string('checkout', None, "The reference's working tree.", required=True)
    flags.DEFINE_enum('reference', None, list(REFERENCES), 'The code.', required=True)
    app.run(main)
