"""How `jaxcomm top` reads the statistics of running processes: each process answers at a Unix socket of its user.

May be imported by collectives and cli; imports statistics and jax_compat.
"""
