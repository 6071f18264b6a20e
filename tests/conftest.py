"""Eight CPU devices for every test; must come before the first import of JAX.

Hypothesis draws the same examples in every run; `--hypothesis-profile=default` draws others.
On a machine with a GPU, `JAX_PLATFORMS=cuda,cpu python -m pytest -m gpu` runs the tests that need one.
"""

import gc
import os
import sys
from collections.abc import Iterator

import hypothesis
import pytest

from tests.quick_compilation import xla_flag

hypothesis.settings.register_profile("same examples", derandomize=True)
hypothesis.settings.load_profile("same examples")

XLA = f"--xla_force_host_platform_device_count=8 {xla_flag()}"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {XLA}"
os.environ.setdefault("JAXCOMM_TRIAL", "0")  # calls run the schedules that tests give them
os.environ.setdefault("PJRT_NPROC", "32")  # XLA's own threads: fewer can hang programs of eight devices on two cores
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # LLVM's: what tests compile runs once or twice


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first, and what needs a GPU is skipped where there is none."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)  # of two workers none is left alone with a long file
    needing = [item for item in items if item.get_closest_marker("gpu")]
    if not needing:
        return
    from jaxcomm.gpu import core

    if reason := core.why_off():
        for item in needing:
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Keeps the collected tests out of the garbage collector's repeated searches."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture
def no_plan() -> Iterator[None]:
    """No plan is active before and after a test, in any thread, and statistics begin with it."""
    import jaxcomm

    leave_no_plan()
    jaxcomm.reset_stats()
    yield
    leave_no_plan()


@pytest.fixture(scope="module", autouse=True)
def no_plan_for_the_next_file() -> Iterator[None]:
    """Ends the plans and settings that a file's tests, or the programs that they run, have made active."""
    yield
    if "jaxcomm.collectives.active_plan" in sys.modules:
        leave_no_plan()


def leave_no_plan() -> None:
    """For all threads, and for this one."""
    import jaxcomm

    jaxcomm.init(plan={})
    jaxcomm.use_plan(None)
