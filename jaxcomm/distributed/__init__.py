"""The processes of a job that `jax.distributed` started: how they are started, named and connected, what they publish.

May be imported by collectives, communicator, gpu, measure and cli; imports ffi, jax_compat and shares.
"""
