"""Traffic of one training step of ResNet50 or GoogLeNet: tensors from the layers' definitions, flows from the tensors.

Sources: He et al., "Deep Residual Learning for Image Recognition", table 1; Szegedy et al., "Going Deeper with
Convolutions", table 1 (without the auxiliary classifiers).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

PACKET: Final = 1500  # bytes
PARTITION: Final = 4_096_000  # bytes; a larger tensor goes in parts of this size (BytePS, which the paper builds on)
BATCH: Final = 32  # images per worker (section 6.1.1)
FLOPS: Final = 10e12  # per second and worker: 30 ms for a step of GoogLeNet, as section 2.2 says
JITTER: Final = 0.01  # standard deviation of a worker's speed
RACKS: Final = 9


class Layer(NamedTuple):
    """One layer: parameters of each of its tensors, and multiply-adds of its forward pass for one image."""

    tensors: tuple[int, ...]
    flops: float


class Flows(NamedTuple):
    """The pushes of all tensors by all workers, then the pulls in the same order; one array element per flow."""

    src: NDArray[np.int64]  # hosts
    dst: NDArray[np.int64]
    tensor: NDArray[np.int64]
    packets: NDArray[np.float64]
    front: NDArray[np.float64]  # place of the tensor's layer, from 0 for the first to 1 for the last
    ready_s: NDArray[np.float64]  # pushes only: when backward has made the tensor; pulls follow the last push
    hosts: int
    octiles: NDArray[np.float64]  # sizes in packets that split the flows into eight equal groups


def resnet50() -> list[Layer]:
    """Bottlenecks of 1×1, 3×3 and 1×1, each with batch normalization; the stride is in the 3×3."""
    layers = [_conv(7, 3, 64, 112, norm=True)]
    inputs = 64
    for stage, (blocks, width) in enumerate([(3, 64), (4, 128), (6, 256), (3, 512)]):
        side = 56 >> stage
        for block in range(blocks):
            before = side << (block == 0 and stage > 0)
            layers.append(_conv(1, inputs, width, before, norm=True))
            layers.append(_conv(3, width, width, side, norm=True))
            layers.append(_conv(1, width, 4 * width, side, norm=True))
            if block == 0:
                layers.append(_conv(1, inputs, 4 * width, side, norm=True))
            inputs = 4 * width
    return [*layers, _conv(1, inputs, 1000, 1)]


def googlenet() -> list[Layer]:
    """Nine inception modules: 1×1 beside 1×1→3×3, 1×1→5×5 and pool→1×1."""
    layers = [_conv(7, 3, 64, 112), _conv(1, 64, 64, 56), _conv(3, 64, 192, 56)]
    inputs = 192
    modules = {
        28: [(64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)],
        14: [
            (192, 96, 208, 16, 48, 64),
            (160, 112, 224, 24, 64, 64),
            (128, 128, 256, 24, 64, 64),
            (112, 144, 288, 32, 64, 64),
            (256, 160, 320, 32, 128, 128),
        ],
        7: [(256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)],
    }
    for side, group in modules.items():
        for one, reduce3, three, reduce5, five, pool in group:
            shapes = [(1, inputs, one), (1, inputs, reduce3), (3, reduce3, three)]
            shapes += [(1, inputs, reduce5), (5, reduce5, five), (1, inputs, pool)]
            layers += [_conv(*shape, side) for shape in shapes]
            inputs = one + three + five + pool
    return [*layers, _conv(1, inputs, 1000, 1)]


def flows(layers: list[Layer], hosts_per_rack: int, compression: int, rng: np.random.Generator) -> Flows:
    """One step of one job on the whole network; every fourth host of a rack is a parameter server.

    Backward takes twice the time of forward and goes from the last layer to the first; a tensor is ready with its
    layer. Each tensor goes to the server with the fewest bytes so far. Compression divides every tensor's bytes.
    """
    hosts = np.arange(RACKS * hosts_per_rack)
    servers, workers = hosts[hosts % 4 == 3], hosts[hosts % 4 != 3]
    load = np.zeros(len(servers))
    rows = []
    for tensor, (nbytes, front, ready) in enumerate(_parts(layers)):
        least = int(load.argmin())
        load[least] += nbytes
        rows.append((tensor, servers[least], math.ceil(nbytes / compression / PACKET), front, ready))
    tensors, server, packets, fronts, ready_s = (np.repeat(column, len(workers)) for column in np.array(rows).T)
    worker = np.tile(workers, len(rows))
    speed = np.tile(1 + JITTER * rng.standard_normal(len(workers)), len(rows))
    return Flows(
        src=np.concatenate([worker, server]).astype(np.int64),
        dst=np.concatenate([server, worker]).astype(np.int64),
        tensor=np.tile(tensors, 2).astype(np.int64),
        packets=np.tile(packets, 2),
        front=np.tile(fronts, 2),
        ready_s=ready_s * speed,
        hosts=len(hosts),
        octiles=np.quantile(packets, np.arange(1, 8) / 8),
    )


def _conv(kernel: int, inputs: int, outputs: int, side: int, *, norm: bool = False) -> Layer:
    """A convolution with outputs of side × side; with a scale and shift (`norm`), or with a bias."""
    weights = kernel * kernel * inputs * outputs
    return Layer((weights, outputs, outputs) if norm else (weights, outputs), weights * side * side)


def _parts(layers: list[Layer]) -> Iterator[tuple[int, float, float]]:
    """The parts of tensors as they become ready: bytes, place of the layer, and seconds from the start of backward."""
    ready = 0.0
    for place in reversed(range(len(layers))):
        ready += 2 * 2 * BATCH * layers[place].flops / FLOPS
        for parameters in layers[place].tensors:
            for begin in range(0, 4 * parameters, PARTITION):
                yield min(PARTITION, 4 * parameters - begin), place / len(layers), ready
