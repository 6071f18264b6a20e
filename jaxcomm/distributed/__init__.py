"""The processes of a job that `jax.distributed` started: how they are started, named and connected, what they publish.

May be imported by auto_plan, collectives, initialize, gpu, measure and cli; imports ffi and jax_compat.
"""
