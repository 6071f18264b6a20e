"""Makes jaxcomm's core run the collectives of unchanged JAX programs between CPU processes, in place of Gloo.

jaxlib can load an MPI library for its collectives on CPUs. `libjaxcomm_backend.so` has the functions of such a library,
and passes XLA's calls to the core. `jaxlib_variables` turns this library on, `gloo_replacement` keeps it on if the
program asks for Gloo, and `loaded_jaxlib` turns it on if JAX is already imported. `start` runs when JAX makes its CPU
client. `groups` makes the communicator of each group of devices before XLA first asks for the communicator.

May be imported by cli; imports auto_plan, collectives, distributed, ffi and jax_compat.
"""

from jaxcomm.backend.jaxlib_variables import use

__all__ = ["use"]
