"""The programs of the page "With your framework": each trains as it is printed, where its framework is installed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jaxcomm import errors
from tests.newcomer.newcomer import blocks, shell

pytestmark = pytest.mark.slow

PAGE = "docs/guides/frameworks.md"
INITIALIZE = "jax.distributed.initialize()\n"
STATISTICS = "\nimport jaxcomm\nprint(jaxcomm.stats())\n"
IMPORTED = ["jax", "optax", "flax.nnx", "flax.linen", "equinox", "orbax.checkpoint", "jaxcomm.collectives"]
SUM, CARRIED = r"psum +data +direct +2 ", r"all-reduce +processes 0,1 "

# For each program, named by a line that only it has: the package, whether it runs in one process, the options of
# `jaxcomm launch` or None, and the outputs.
PROGRAMS = {
    "import jaxcomm.nnx": ("flax", False, "", ("loss 0.[0-2]", SUM)),
    "import jaxcomm.equinox": ("equinox", False, "", ("loss 0.0", SUM)),
    "import flax.linen as nn": ("flax", True, None, ("loss 0.[012]", SUM)),
    "import haiku as hk": ("haiku", True, None, ("loss 0.0", SUM)),
    "import orbax.checkpoint as ocp": ("orbax", True, "", ("distance 0.0", SUM)),
    "import keras": ("keras", False, "--every-collective", ("loss 0.[01]", CARRIED)),
    "import numpyro": ("numpyro", False, "--every-collective", ("distance 0.0", CARRIED)),
    "import netket as nk": ("netket", False, "--every-collective", ("energy -10", CARRIED)),
}


@pytest.mark.parametrize("line", PROGRAMS)
def test_a_program_trains(line: str, tmp_path: Path) -> None:
    package, alone, options, printed = PROGRAMS[line]
    if not errors.is_installed(package):
        pytest.skip(f"{package} is not installed")
    (program,) = [text for text in blocks(PAGE, "python") if re.search(f"^{line}( |$)", text, re.MULTILINE)]
    assert program.count(INITIALIZE) == 1
    outputs = []
    if alone:
        short = program.replace("301", "201")  # the checkpoint at step 200 is where the two processes go on
        devices = "import os\nos.environ['XLA_FLAGS'] += ' --xla_force_host_platform_device_count=2'\n"
        (tmp_path / "alone.py").write_text(devices + short.replace(INITIALIZE, ""))
        outputs.append(shell("python alone.py", tmp_path, IMPORTED))
    if options is not None:
        (tmp_path / "train.py").write_text(program + STATISTICS)
        # The library that jaxlib loads is chosen before jaxlib is imported.
        outputs.append(shell(f"jaxcomm launch -n 2 {options} train.py", tmp_path, [] if options else IMPORTED))
    for output in outputs:
        for words in printed:
            assert re.search(words, output), (words, output)


def test_every_program_is_run() -> None:
    lines = [[line for line in PROGRAMS if f"{line}\n" in re.sub(" *#.*", "", text)] for text in blocks(PAGE, "python")]
    assert lines == [[line] for line in PROGRAMS]
