"""Lowers sums over GPUs: to the fused kernel within a process, and to NCCL between processes.

The bits of the results were checked on one GPU. This code has never run on several GPUs. `jaxcomm check` tests what
works on the user's machine (checks) and records the result (certificate). Sums over GPUs use only what passed
(lowering). The lowering for CUDA finds this package by name. measure and the command `jaxcomm check` import it. This
package may import collectives, distributed, ffi, program and schedules.
"""
