"""10 000 steps of a Flax training in four processes: by jax.lax, by jaxcomm, and by jaxcomm on two rails that get cut.

    python benchmarks/long_training.py                  # about 17 minutes; the rails need root
    python benchmarks/long_training.py --steps 500 --seed 2

All use the same seeds. The first two run with `jaxcomm launch`, the third with `jaxcomm testbed run` on four hosts with
two rails of 500 Mbit/s. There a link is cut at random moments, in five ways (one only lowers its rate), and repaired
after 0.5 to 3 s. Prints how far losses are from lax's, whether all ranks have the same bits, and a process's memory,
files and threads after a tenth of the steps and at the end. The exit status is 1 if the ranks' bits differ, or a loss
differs from lax's by more than a thousandth.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from jaxcomm.report.tables import table  # noqa: E402
from tests.processes.resources import held  # noqa: E402

PROCESSES, LOOKS = 4, 10
ROWS, FEATURES, UNITS = 4, 64, 720  # 2.2 MiB of gradients: messages of several segments, which take both rails
EVERY_S, REPAIRED_S = 4.0, (0.5, 3.0)
RATE_MBIT = 500
FURTHEST = 1e-3  # greatest relative difference of a loss
KINDS = ("silent", "one-way", "down", "slow", "reset")


def testbed(seed: int, seconds: float) -> tuple[str, int]:
    """A testbed's file with cuts during these seconds, and the number of cuts."""
    draw = random.Random(seed)
    hosts, rails = [f"h{i}" for i in range(PROCESSES)], ("eth0", "eth1")
    lines = [f'[[rails]]\nname = "{rail}"\nmbit = {RATE_MBIT}\n' for rail in rails]
    lines += [f'[[hosts]]\nname = "{host}"\n' for host in hosts]
    at, cuts = 15.0, 0
    while at < seconds:
        kind = draw.choice(KINDS)
        rate = f"mbit = {draw.choice((10, 50, 200))}\n" if kind == "slow" else ""
        lines.append(
            f'[[cuts]]\nhost = "{draw.choice(hosts)}"\nrail = "{draw.choice(rails)}"\nkind = "{kind}"\n{rate}'
            f"at_s = {at:.3f}\nrepaired_s = {at + draw.uniform(*REPAIRED_S):.3f}\n"
        )
        at, cuts = at + draw.uniform(1.0, 1.5) * EVERY_S, cuts + 1
    return "\n".join(lines), cuts


def train(by: str, steps: int, out: Path) -> None:
    """Runs in each process of the job: trains, and writes the results to a file in `out`."""
    import flax.linen as nn
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax
    from jax.sharding import Mesh
    from jax.sharding import PartitionSpec as P

    import jaxcomm

    jax.distributed.initialize()
    mesh = Mesh(jax.devices(), ("data",))
    net = nn.Sequential(
        [nn.Dense(UNITS), nn.gelu, nn.Dense(UNITS), nn.gelu, nn.Dense(1)]
    )  # smooth, as a kink could turn rounding into different trainings
    optimizer = optax.sgd(0.02, 0.9)
    pmean = {"lax": jax.lax.pmean, "jaxcomm": jaxcomm.pmean}[by]

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, in_specs=(), out_specs=P(), check_vma=False)
    def start() -> Any:
        params = net.init(jax.random.key(0), jnp.ones((1, FEATURES)))
        return jnp.uint32(0), params, optimizer.init(params)

    @partial(jax.jit, donate_argnums=0)
    @partial(jax.shard_map, mesh=mesh, in_specs=(P(),), out_specs=(P(), P()), check_vma=False)
    def step(state: Any) -> Any:
        count, params, moments = state
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(1), count), jax.lax.axis_index("data"))
        x = jax.random.normal(key, (ROWS, FEATURES))
        y = jnp.sin(x[:, :1])
        loss, grads = pmean(
            jax.value_and_grad(lambda params: jnp.mean((net.apply(params, x) - y) ** 2))(params), "data"
        )
        updates, moments = optimizer.update(grads, moments, params)
        return (count + 1, optax.apply_updates(params, updates), moments), loss

    state, losses, looks, began = start(), [], [], time.perf_counter()
    for number in range(1, steps + 1):
        state, loss = step(state)
        losses.append(float(loss))
        if number % (steps // LOOKS) == 0:
            looks.append(held())
    seconds = time.perf_counter() - began
    bits = hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state))).hexdigest()
    fences = sum(rail["fences"] for rail in jaxcomm.stats().rails) if by == "jaxcomm" else 0
    found = {"losses": losses, "held": looks, "seconds": seconds, "bits": bits, "fences": fences}
    (out / str(jax.process_index())).write_text(json.dumps(found))


def run(how: list[str], by: str, steps: int, folder: Path) -> list[dict[str, Any]]:
    """Runs one training. Returns the results of each process."""
    out = folder / f"{by} {how[0]}"
    out.mkdir()
    words = [sys.executable, __file__, "--by", by, "--steps", str(steps), "--out", str(out)]
    subprocess.run([str(Path(sys.executable).with_name("jaxcomm")), *how, "--", *words], check=True)
    return [json.loads((out / str(process)).read_text()) for process in range(PROCESSES)]


def furthest(found: list[dict[str, Any]], lax: list[dict[str, Any]]) -> float:
    """The greatest relative difference of a step's loss from lax's."""
    return max(abs(a - b) / abs(b) for a, b in zip(found[0]["losses"], lax[0]["losses"], strict=True))


def are_same(found: list[dict[str, Any]]) -> bool:
    """Whether all ranks have the same bits and losses."""
    return all((each["bits"], each["losses"]) == (found[0]["bits"], found[0]["losses"]) for each in found)


def differs(found: list[dict[str, Any]], lax: list[dict[str, Any]]) -> bool:
    """Whether the ranks' bits differ, or a loss differs from lax's by more than `FURTHEST`."""
    return not are_same(found) or furthest(found, lax) > FURTHEST


def row(name: str, found: list[dict[str, Any]], lax: list[dict[str, Any]]) -> list[str]:
    far, same = furthest(found, lax), are_same(found)
    end = sum(found[0]["losses"][-100:]) / 100
    first, last = found[0]["held"][0], found[0]["held"][-1]
    kept = [f"{first['rss'] / 2**20:.0f} to {last['rss'] / 2**20:.0f} MiB"]
    kept += [f"{first[name]} to {last[name]}" for name in ("files", "threads")]
    step = f"{found[0]['seconds'] / len(found[0]['losses']) * 1e3:.2f} ms"
    fences = str(sum(each["fences"] for each in found))
    return [name, step, f"{end:.3e}", f"{far:.1e}", "same" if same else "DIFFERENT", *kept, fences]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="of the cuts")
    parser.add_argument("--seconds", type=float, default=600.0, help="for how long links are cut")
    parser.add_argument("--by", choices=("lax", "jaxcomm"), help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.by:
        train(args.by, args.steps, args.out)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text, cuts = testbed(args.seed, args.seconds)
        (folder / "rails.toml").write_text(text)
        here = ["launch", "-n", str(PROCESSES)]
        lax = run(here, "lax", args.steps, folder)
        ours = run(here, "jaxcomm", args.steps, folder)
        rows, differing = [row("lax", lax, lax), row("jaxcomm", ours, lax)], differs(ours, lax)
        if os.geteuid() == 0:
            found = run(["testbed", "run", str(folder / "rails.toml")], "jaxcomm", args.steps, folder)
            rows.append(row(f"jaxcomm, two rails, up to {cuts} cuts", found, lax))
            differing += differs(found, lax)
    header = ["by", "step", "loss at the end", "from lax's", "bits of ranks", "memory", "files", "threads", "fences"]
    print(table(header, rows))
    sys.exit(differing > 0)


if __name__ == "__main__":
    main()
