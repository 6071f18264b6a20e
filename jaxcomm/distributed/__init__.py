"""The processes of a job that `jax.distributed` started: what they publish to each other, their names, their devices.

May be imported by gpu and cli; imports collectives, communicator, profile, ffi and jax_compat.
"""
