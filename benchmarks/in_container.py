"""Runs a command as in a container with Docker's defaults, without Docker. Needs root and Debian's python3-seccomp.

    /usr/bin/python3 benchmarks/in_container.py jaxcomm launch -n 4 -- jaxcomm bench
    /usr/bin/python3 benchmarks/in_container.py --without-reads pytest tests/backend/test_use.py

The command gets namespaces of its own for mounts, IPC and processes, 64 MB of /dev/shm, Docker's capabilities, no new
privileges, and the system calls that Docker's default seccomp profile allows to processes without further capabilities.
With --without-reads, it may not read other processes' memory either, as before Linux 4.8.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys

import seccomp

DENIED = (
    "acct add_key bpf clock_adjtime clock_settime create_module delete_module fanotify_init finit_module fsconfig "
    "fsmount fsopen fspick get_mempolicy init_module io_uring_enter io_uring_register io_uring_setup ioperm iopl "
    "kcmp kexec_file_load kexec_load keyctl lookup_dcookie mbind mount move_mount move_pages name_to_handle_at "
    "open_by_handle_at open_tree perf_event_open personality pivot_root process_madvise quotactl reboot request_key "
    "set_mempolicy setdomainname sethostname setns settimeofday swapoff swapon syslog "
    "umount2 unshare uselib userfaultfd vhangup"
)
READS = "process_vm_readv process_vm_writev ptrace"
CAPABILITIES = (
    "audit_write chown dac_override fowner fsetid kill mknod net_bind_service net_raw setfcap setgid setpcap setuid "
    "sys_chroot"
)
CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWPID = 0x20000, 0x8000000, 0x20000000  # from linux/sched.h
EPERM = 1


def main(words: list[str]) -> int:
    """Runs the command and returns its exit code."""
    denied = f"{DENIED} {READS}" if words[0] == "--without-reads" else DENIED
    words = words[words[0] == "--without-reads" :]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWPID):
        raise OSError(ctypes.get_errno(), "unshare")
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    for mount in ("--make-rprivate /", "-t tmpfs -o size=64m tmpfs /dev/shm", "-t proc proc /proc"):
        subprocess.run(["mount", *mount.split()], check=True)
    profile = seccomp.SyscallFilter(defaction=seccomp.ALLOW)
    for call in denied.split():
        with contextlib.suppress(RuntimeError):  # this machine's kernel has no such call
            profile.add_rule(seccomp.ERRNO(EPERM), call)
    profile.load()
    capabilities = ",".join(["-all", *(f"+{each}" for each in CAPABILITIES.split())])
    limits = ["--no-new-privs", "--bounding-set", capabilities, "--inh-caps", capabilities]
    os.execvp("setpriv", ["setpriv", *limits, *words])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
