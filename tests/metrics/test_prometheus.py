"""Prometheus, with the recipe's configuration, scrapes a job and has data for each panel of the dashboard."""

from __future__ import annotations

import math
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxcomm.distributed.launch.commands import local_coordinator as free_address
from tests.metrics.monitoring import DASHBOARD, RECIPE
from tests.processes import jobs

PROMETHEUS = shutil.which("prometheus")
ZERO = {"Fences", "Failed calls", "Bytes lost on purpose", "Processes that have left or failed", "Generations"}
ANY_SIGN = {"Gain of the plan"}


@pytest.fixture
def addresses(tmp_path: Path) -> Iterator[list[str]]:
    """Starts Prometheus: its address, and those of the two processes that it scrapes."""
    if PROMETHEUS is None:
        pytest.skip("prometheus is not installed")
    own, *scraped = (free_address() for _ in range(3))
    config = (RECIPE / "prometheus.yml").read_text().replace("scrape_interval: 5s", "scrape_interval: 200ms")
    for target, address in zip(("localhost:9400", "localhost:9401"), scraped, strict=True):
        assert target in config
        config = config.replace(target, address)
    (tmp_path / "prometheus.yml").write_text(config)
    words = [PROMETHEUS, "--config.file=prometheus.yml", "--storage.tsdb.path=data", f"--web.listen-address={own}"]
    with (tmp_path / "log").open("w") as log, subprocess.Popen(words, cwd=tmp_path, stderr=log) as server:
        yield [own, *scraped]
        server.kill()


@pytest.mark.slow
def test_each_panel_of_the_dashboard_has_data(addresses: list[str]) -> None:
    own, *scraped = addresses
    ports = [address.partition(":")[2] for address in scraped]
    found = jobs.run(
        "tests.metrics.monitored", own, *ports, processes=2, transport="tcp", JAXCOMM_RAILS="127.0.0.1,127.0.0.2"
    )
    assert [process.status for process in found] == [0, 0], "\n".join(process.output for process in found)
    values = found[0].reports["values"]["found"]
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            shown = values[target["expr"]]
            assert shown and all(map(math.isfinite, shown)), (panel["title"], shown)
            if panel["title"] not in ANY_SIGN:
                assert (max(shown) > 0) == (panel["title"] not in ZERO), (panel["title"], shown)
