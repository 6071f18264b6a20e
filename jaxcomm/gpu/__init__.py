"""Sums over GPUs: their lowering to the fused kernel within a process, and to NCCL between processes.

No GPU has run it yet: `jaxcomm check` shows on the user's own machine what works there (checks), writes that down
(certificate), and sums over GPUs use exactly that (lowering). Lowering for CUDA finds it by its name, measure and that
command import it; it may import collectives, distributed, ffi, program and schedules.
"""
