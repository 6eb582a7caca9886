"""Show how data is dealt: python -m jaxfed.partition --alpha=0.1 --num_clients=20."""

import runpy

# The command needs settings and data, which stand above partitions, so it is a module of its own.
runpy.run_module('jaxfed.runs.partition_map', run_name='__main__', alter_sys=True)
