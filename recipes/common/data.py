"""Real data with fixed splits: scikit-learn's digits, CIFAR-10 from a folder, and the text of Python's own help."""

from __future__ import annotations

import pickle
from importlib.util import find_spec
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, NamedTuple

import numpy as np

_SPLIT_SEED = 0  # of the order in which digits are divided, the same for every training


class Images(NamedTuple):
    """Images [count, height, width, channels] of uint8 with their labels [count] of int32."""

    images: np.ndarray
    labels: np.ndarray


class Text(NamedTuple):
    """Characters as their places in `alphabet`: one stream to train on, another to test on."""

    train: np.ndarray
    test: np.ndarray
    alphabet: str


def digits() -> tuple[Images, Images]:
    """scikit-learn's 1797 handwritten digits of 8 × 8 pixels: three quarters to train on, one to test on."""
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("No module named 'sklearn'", name="sklearn")
    # Its `load_digits` reads this file, too; but to import it takes longer than to import JAX.
    numbers = np.loadtxt(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    images, labels = numbers[:, :-1], numbers[:, -1]
    pixels = np.minimum(images * 16, 255).astype(np.uint8).reshape(-1, 8, 8, 1)
    order = np.random.default_rng(_SPLIT_SEED).permutation(len(labels))
    train, test = np.split(order, [3 * len(order) // 4])
    return tuple(Images(pixels[part], labels[part].astype(np.int32)) for part in (train, test))


def cifar10(folder: Path) -> tuple[Images, Images]:
    """CIFAR-10's 50,000 and 10,000 images of 32 × 32 pixels, from its Python or its binary version.

    Args:
      folder: `cifar-10-batches-py` or `cifar-10-batches-bin` as unpacked from cs.toronto.edu/~kriz/cifar.html. The
        Python version is a pickle: name no folder that others could have written.

    Raises:
      FileNotFoundError: the folder has neither version's files.
    """
    names = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}
    for suffix, read in (("", _python_batch), (".bin", _binary_batch)):
        if (folder / f"data_batch_1{suffix}").exists():
            parts = {which: [read(folder / f"{name}{suffix}") for name in names[which]] for which in names}
            return tuple(Images(*map(np.concatenate, zip(*parts[which], strict=True))) for which in ("train", "test"))
    raise FileNotFoundError(
        f"{folder} has neither data_batch_1 (Python version) nor data_batch_1.bin (binary version).\n"
        "  Cure: unpack one of the two from https://www.cs.toronto.edu/~kriz/cifar.html and name the folder within."
    )


def python_help() -> Text:
    """The text of Python's own `help()` topics, about 465,000 characters; every tenth block of 4096 is for testing."""
    text = "\n".join(topics[name] for name in sorted(topics))
    alphabet = "".join(sorted(set(text)))
    places = {character: place for place, character in enumerate(alphabet)}
    stream = np.array([places[character] for character in text], np.uint8)
    testing = np.arange(len(stream)) // 4096 % 10 == 9
    return Text(stream[~testing], stream[testing], alphabet)


def _python_batch(path: Path) -> tuple[np.ndarray, np.ndarray]:
    batch: dict[bytes, Any] = pickle.loads(path.read_bytes(), encoding="bytes")
    return _channels_last(batch[b"data"]), np.array(batch[b"labels"], np.int32)


def _binary_batch(path: Path) -> tuple[np.ndarray, np.ndarray]:
    rows = np.frombuffer(path.read_bytes(), np.uint8).reshape(-1, 1 + 3 * 32 * 32)
    return _channels_last(rows[:, 1:]), rows[:, 0].astype(np.int32)


def _channels_last(rows: np.ndarray) -> np.ndarray:
    return rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
