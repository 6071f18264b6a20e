"""Programs around snippets for several processes: each becomes a `train.py` that `jaxcomm launch` starts."""

from __future__ import annotations

import textwrap

from tests.newcomer.newcomer import blocks

# The program around the snippet of a death: process 2 dies in step 150 of its first life, and rejoins.
BEFORE_A_DEATH = """
import os
import pathlib
import signal


def batch(step, devices):
    life = pathlib.Path("life of process 2")
    if step == 150 and jax.process_index() == 2 and not life.exists():
        life.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return np.full((devices, 1000), step, np.float32)


def start():
    return np.zeros(1000, np.float32)


def train_step(params, batch):
    return params + jaxcomm.pmean(batch.sum(0), "data")
"""
AFTER_A_DEATH = """
assert (params == 400 * 399 / 2).all()
print("trained to step", step)
"""


def in_a_job(snippet: str) -> str:
    program = f"{BEFORE_A_DEATH}{snippet.replace('1000:', '400:')}{AFTER_A_DEATH}"
    return f"""
import subprocess, sys

with open("train.py", "w") as file:
    file.write({program!r})
words = [sys.executable, "-m", "jaxcomm.cli", "launch", "-n", "4", "--restart", "1", "train.py"]
job = subprocess.run(words, capture_output=True, text=True, timeout=300)
assert job.returncode == 0 and job.stderr.count("It is started again") == 1, job.stderr
ended = "process 2 was started again when the others had finished" in job.stderr
assert job.stdout.count("trained to step 400") == (3 if ended else 4), job.stdout
assert job.stdout.count("rank 2 is gone: process 2 has died") >= 3, job.stdout
"""


def launched(program: str, options: str, *prints: str) -> str:
    """Runs it in two processes, of which the first prints these words."""
    return f"""
import subprocess, sys

with open("train.py", "w") as file:
    file.write({program!r})
words = [sys.executable, "-m", "jaxcomm.cli", "launch", "-n", "2", *{options.split()}, "train.py"]
job = subprocess.run(words, capture_output=True, text=True, timeout=120)
assert job.returncode == 0, job.stderr
for words in {prints}:
    assert f"[0] {{words}}" in job.stdout, (words, job.stdout)
"""


def in_two_processes(snippet: str) -> str:
    return launched(snippet, "--devices-per-process 2", "loss 0.0")


# A program that knows only JAX, what follows it, and the row of the gradients' sum.
def unchanged(after: str = "import jaxcomm\nprint(jaxcomm.stats())") -> str:
    return blocks("docs/guides/unchanged_programs.md", "python")[0] + after


SUMS = "all-reduce  processes 0,1"


def carried(snippet: str) -> str:
    assert snippet in unchanged()
    return launched(unchanged(), "--every-collective", "distance 0.0", SUMS)


def carried_by_choice(snippet: str) -> str:
    return launched(snippet + unchanged(), "", "distance 0.0", SUMS)


def missing_process(snippet: str) -> str:
    after = f"""
import pathlib
import time

import jaxcomm

jaxcomm.init(deadline_s=1)
batch = jax.make_array_from_process_local_data(NamedSharding(mesh, P("data")), local)
ended = pathlib.Path("ended")
if jax.process_index() == 0:
{textwrap.indent(snippet, "    ")}
    ended.touch()
for _ in range(600):
    time.sleep(0 if ended.exists() else 0.1)
"""
    return launched(unchanged(after), "--every-collective", "missing (1,) of processes 0,1")
