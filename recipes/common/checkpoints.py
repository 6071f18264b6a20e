"""A run's state on disk, by Orbax, with the settings that made it: taken up again, it goes on with the same bits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from common.devices import is_first
from jaxcomm import files
from jaxcomm.errors import JaxcommError


class Checkpoints:
    """The two latest states of a run in `folder`/checkpoints."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Opens or makes them.

        Args:
          folder: of the run.
          settings: what the states depend on; JSON values.

        Raises:
          JaxcommError: the folder holds a run with other settings.
        """
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "settings.json"
        text = json.dumps(settings, indent=2, sort_keys=True) + "\n"
        if not path.exists():
            if is_first():
                files.write(path, text)  # whole or not at all, as another process may be about to read it
        elif path.read_text() != text:
            before = json.loads(path.read_text())
            changed = [
                f"{key} was {before.get(key)!r} and is {settings.get(key)!r}"
                for key in sorted({*before, *settings})
                if before.get(key) != settings.get(key)
            ]
            raise JaxcommError(
                f"{folder} holds a run with other settings: {'; '.join(changed)}.\n"
                "  Cure: name another folder with --out, or give the settings of that run to go on with it."
            )
        # Else Orbax compiles a slice for each array and worker, to divide the saving of what all workers have.
        arrays = ocp.type_handlers.ArrayHandler(use_replica_parallel=False)
        registry = ocp.type_handlers.create_type_handler_registry((jax.Array, arrays))
        self._manager = ocp.CheckpointManager(
            (folder / "checkpoints").absolute(),
            options=ocp.CheckpointManagerOptions(max_to_keep=2),
            item_handlers=ocp.PyTreeCheckpointHandler(type_handler_registry=registry),
        )

    def latest(self, like: Any) -> Any:
        """The latest state, placed as `like` is, or `like` itself if there is none."""
        step = self._manager.latest_step()
        if step is None:
            return like
        shapes = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
        placed = ocp.checkpoint_utils.construct_restore_args(shapes)
        return self._manager.restore(step, args=ocp.args.PyTreeRestore(shapes, restore_args=placed))

    def save(self, step: int, state: Any) -> None:
        """Writes the state; returns once it is there, so that the next step may reuse its memory."""
        self._manager.save(step, args=ocp.args.PyTreeSave(state))
        self._manager.wait_until_finished()
