"""The checks of `jaxcomm check` on a machine with GPUs: sections, each a process of its own (sections).

The GPUs (machine), the fused kernel on one GPU (virtual), the masks' kernel (kernels), psum over GPUs of a process
(devices) and between processes (ranks starts nccl_rank). Only the command imports this folder.
"""
