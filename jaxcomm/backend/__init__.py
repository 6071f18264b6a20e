"""Every collective of unchanged JAX programs between CPU processes, carried by jaxcomm's core in place of Gloo.

jaxlib can load an MPI library for its collectives on CPUs. `libjaxcomm_backend.so` is one by name only: it hands what
XLA calls to the core. `jaxlib_variables` says whether it is turned on, `loaded_jaxlib` turns it on where JAX is
imported already, `start` runs when JAX makes its CPU client, and `groups` makes each group of devices known before XLA
first asks for it.

May be imported by cli; imports auto_plan, choice, collectives, communicator, distributed, ffi and jax_compat.
"""

from jaxcomm.backend.jaxlib_variables import use

__all__ = ["use"]
