"""Show the partition of the data: python -m jaxfed.partition --alpha=0.1 --num_clients=20."""

import runpy

# The command needs settings and data, which this package may not import.
runpy.run_module('jaxfed.runs.partition_map', run_name='__main__', alter_sys=True)
