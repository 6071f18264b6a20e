"""The processes of a `jax.distributed` job: their start, names and connections, and the values that they publish.

May be imported by auto_plan, collectives, initialize, gpu, measure and cli; imports ffi and jax_compat.
"""
