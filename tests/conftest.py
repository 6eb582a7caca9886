"""The tests see four devices, so that what is shared out among devices is."""

import jax

jax.config.update('jax_num_cpu_devices', 4)
