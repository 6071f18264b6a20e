"""Stands for Python: has a server fork what runs a module or a script, and ends as the fork does.

Usage: fork_client.py FOLDER [-m MODULE|SCRIPT] [ARGUMENTS]; the folder has the servers' sockets, and what calls this.
"""

import json
import os
import signal
import socket
import sys


def main(folder: str, *words: str) -> None:
    if not words or (words[0].startswith("-") and words[0] != "-m"):
        os.execv(sys.executable, [sys.executable, *words])
    servers = len(os.listdir(folder)) - 1
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(os.path.join(folder, str(int(os.environ.get("SLURM_PROCID", "0")) % servers)))
        program, environment = os.path.join(folder, "python"), dict(os.environ)
        order = {"program": program, "words": words, "environment": environment, "folder": os.getcwd()}
        socket.send_fds(server, [json.dumps(order).encode()], [0, 1, 2])
        status = int(server.recv(16))
    if status < 0:
        signal.signal(-status, signal.SIG_DFL) if -status != signal.SIGKILL else None
        os.kill(os.getpid(), -status)
    os._exit(status)


if __name__ == "__main__":
    main(*sys.argv[1:])
