"""Arrivals at collectives that the core does not run: who is late, and which rank holds up a job that hangs.

Custom calls before and after such a collective record when each device arrives and when the collective ends
(`records`). A thread of each process (`watcher`) looks for calls that are open for too long, reads from the job's
key-value store where the other ranks are (`exchange`, `rows`), and logs the culprit (`deadline_error`). `totals` makes
the records of `jaxcomm.stats()`. May import distributed, dump, ffi, jax_compat and report.
"""
