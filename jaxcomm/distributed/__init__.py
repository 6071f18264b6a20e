"""The processes of a job that `jax.distributed` started: how they are started, named and connected, what they publish.

May be imported by gpu and cli; imports collectives, communicator, profile, ffi and jax_compat.
"""
