"""The checks of `jaxcomm check` on a machine with GPUs. Each section runs in its own process (sections).

The sections check the GPUs (machine), the fused kernel on one GPU (virtual), the masks' kernel (kernels), psum over
GPUs of one process (devices), and psum between processes (ranks, which starts rank). Only the command imports this
folder.
"""
