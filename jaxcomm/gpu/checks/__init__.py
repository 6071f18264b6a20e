"""The checks of `jaxcomm check` on a machine with GPUs: sections, each a process of its own (sections).

The fused kernel on one GPU (virtual), the kernels' speed (kernels), psum over GPUs of a process (devices), of processes
of one host and of several (ranks starts processes_rank and hosts_rank). Only the command imports this folder.
"""
