"""The checks of `jaxcomm check` on a machine with GPUs. The module `sections` runs each section in its own process.

The other modules check the GPUs (`machine`), the fused kernel on one GPU (`virtual`), the kernel of importance masks
(`kernels`), psum over GPUs of one process (`devices`), and psum between processes (`ranks`, which starts `rank`). Only
the command imports this folder.
"""
