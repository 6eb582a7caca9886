"""The tests see four devices, so that what is shared out among devices is.

Compiling takes most of their time, and half as long where programs need not be fast; what the
compiler makes of the convolutions is tested as users run it (`test_ops`), and so are whole runs in
processes of their own (`test_main`).
"""

import jax

jax.config.update('jax_num_cpu_devices', 4)
jax.config.update('jax_disable_most_optimizations', True)
