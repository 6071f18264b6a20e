"""Lowers sums over GPUs: to the fused kernel within a process, and to NCCL between processes.

The bits of the results were checked on one GPU. This code has never run on several GPUs. `jaxcomm check` tests the
executors on the user's machine (module `checks`) and records the results (module `certificate`). Sums over GPUs use
only executors that passed (module `lowering`). The package `collectives` imports `lowering` by its name, for the
platform CUDA. The packages `measure` and `cli` import this package. This package may import `collectives`,
`distributed`, `ffi`, `program` and `schedules`.
"""
