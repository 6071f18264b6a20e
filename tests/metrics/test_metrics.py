"""The same statistics as metrics of Prometheus, as instruments of OpenTelemetry and as scalars."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import jaxcomm
from jaxcomm import metrics, statistics
from jaxcomm.statistics import Stats
from tests.metrics.monitoring import RECIPE, expressions

PROMTOOL = shutil.which("promtool")


def site(name: str = "psum", **fields: Any) -> dict[str, Any]:
    """A sum among 2 ranks. In each of 10 calls rank 1 is 20 ms late, and the transfer then takes 1 ms."""
    record = {"name": name, "axes": "data", "plan": "direct", "ranks": 2, "bytes": 4096, "calls": 10, "failed": 1}
    record |= {"transfer_s": 0.01, "early_bytes_share": 0.25, "wait_s": [0.2, 0.0], "late": [0, 10], "lost_bytes": 5}
    return record | {"arrivals": [[0.0, 0.02]] * 10, "work_s": [], "after_arrival_s": [1e-3] * 10} | fields


TRIAL = {"outcome": "kept", "plan_s": 0.003, "default_s": 0.004}
RAIL = {"process": 1, "rail": "eth1", "is_open": False, "fences": 3, "bytes": 4096, "shares": [[0, 0], [65536, 256]]}
GROUPED = site("gossip", work_s=[[0.1] * 2] * 10)
NEVER = site("pmax", calls=0, failed=0, arrivals=[], after_arrival_s=[], wait_s=[], late=[])
STATS = Stats(
    [site(trial=TRIAL), GROUPED, NEVER],
    rails=[RAIL],
    plans=[{"axes": ["data", "model"], "plan": "3f9a01c2"}],
    gone=[{"process": 1, "at_s": 1.0, "has_left": False, "why": "killed"}],
    generations=[{"number": 300}],
)
SITE = {"plan": "direct", "site": "psum.data.2x4096"}
TO_1 = {"process": "1", "rail": "eth1"}
# By OpenTelemetry's name: Prometheus's name, and some of the values.
EXPECTED: dict[str, tuple[str, list[tuple[dict[str, str], float]]]] = {
    "jaxcomm.calls": ("jaxcomm_calls_total", [(SITE, 10)]),
    "jaxcomm.call.failures": ("jaxcomm_call_failures_total", [(SITE, 1)]),
    "jaxcomm.call.size": ("jaxcomm_call_size_bytes_total", [(SITE, 40960)]),
    "jaxcomm.call.wait": (
        "jaxcomm_call_wait_seconds_total",
        [(SITE | {"rank": "0"}, 0.2), (SITE | {"rank": "1"}, 0)],
    ),
    "jaxcomm.call.transfer": ("jaxcomm_call_transfer_seconds_total", [(SITE, 0.01)]),
    "jaxcomm.call.last": ("jaxcomm_call_last_total", [(SITE | {"rank": "0"}, 0), (SITE | {"rank": "1"}, 10)]),
    "jaxcomm.call.lost": ("jaxcomm_call_lost_bytes_total", [(SITE, 5)]),
    "jaxcomm.trial.gain": ("jaxcomm_trial_gain_seconds", [(SITE, 0.001)]),
    "jaxcomm.plan.followed": ("jaxcomm_plan_followed", [({"axes": "data,model", "plan": "3f9a01c2"}, 1)]),
    "jaxcomm.rail.sent": ("jaxcomm_rail_sent_bytes_total", [(TO_1, 4096)]),
    "jaxcomm.rail.fences": ("jaxcomm_rail_fences_total", [(TO_1, 3)]),
    "jaxcomm.rail.open": ("jaxcomm_rail_open", [(TO_1, 0)]),
    "jaxcomm.rail.share": ("jaxcomm_rail_share_ratio", [(TO_1, 0.25)]),
    "jaxcomm.generations": ("jaxcomm_generations_total", [({}, 300)]),
    "jaxcomm.processes.gone": ("jaxcomm_processes_gone", [({}, 1)]),
}


@pytest.fixture(autouse=True)
def fixed_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "stats", lambda: STATS)


def scraped() -> str:
    registry = prometheus_client.CollectorRegistry()
    metrics.register(registry)
    return prometheus_client.generate_latest(registry).decode()


def test_prometheus_scrapes_the_current_statistics() -> None:
    registry = prometheus_client.CollectorRegistry(auto_describe=True)
    metrics.register(registry)
    for name, values in EXPECTED.values():
        for labels, value in values:
            assert registry.get_sample_value(name, labels) == pytest.approx(value), name
    names = set(re.findall(r"^# TYPE (\w+) ", prometheus_client.generate_latest(registry).decode(), re.MULTILINE))
    assert names == {name for name, _ in EXPECTED.values()}
    assert "pmax" not in scraped()
    with pytest.raises(ValueError, match="Duplicated"):
        metrics.register(registry)


def test_opentelemetry_collects_the_same_values() -> None:
    reader = InMemoryMetricReader()
    metrics.instrument(MeterProvider([reader]))
    data = reader.get_metrics_data()
    assert data is not None
    [scope] = data.resource_metrics[0].scope_metrics
    assert scope.scope.name == "jaxcomm"
    found = {
        each.name: {frozenset(p.attributes.items()): p.value for p in each.data.data_points} for each in scope.metrics
    }
    assert found.keys() == EXPECTED.keys()
    for name, (_, values) in EXPECTED.items():
        for labels, value in values:
            assert found[name][frozenset(labels.items())] == pytest.approx(value), name
    assert {each.unit for each in scope.metrics} >= {"s", "By", "1", "{call}"}


def test_scalars_are_flat_finite_and_grouped_by_site() -> None:
    scalars = jaxcomm.metrics.scalars()
    assert scalars["psum.data.2x4096.direct/wait_s"] == 0.02
    assert scalars["psum.data.2x4096.direct/lead_s"] == 0.02
    assert scalars["psum.data.2x4096.direct/transfer_s"] == 1e-3
    assert scalars["psum.data.2x4096.direct/trial_gain_s"] == pytest.approx(1e-3)
    assert scalars["rail.1.eth1/share"] == 0.25
    assert scalars["rail.1.eth1/is_open"] == 0.0
    cards = {name.partition("/")[0] for name in scalars}
    assert cards == {"psum.data.2x4096.direct", "gossip.data.2x4096.direct", "rail.1.eth1"}
    assert {name.partition("/")[2] for name in scalars if "gossip" in name} == {
        *("calls", "failed", "early_bytes_share", "transfer_s"),
    }
    assert all(type(value) is float and math.isfinite(value) for value in scalars.values())


def test_each_metric_of_the_dashboard_exists() -> None:
    used = {name for each in expressions() for name in re.findall(r"\bjaxcomm_\w+", each)}
    assert used == {name for name, _ in EXPECTED.values()}


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
def test_promtool_accepts_the_metrics_the_configuration_and_the_queries(tmp_path: Path) -> None:
    rules = [{"record": f"panel:{i}", "expr": each} for i, each in enumerate(expressions())]
    file = tmp_path / "rules.yml"
    file.write_text(str({"groups": [{"name": "panels", "rules": rules}]}).replace("$__rate_interval", "1m"))
    for words, given in (
        (["metrics"], scraped()),
        (["config", str(RECIPE / "prometheus.yml")], ""),
        (["rules", str(file)], ""),
    ):
        done = subprocess.run([str(PROMTOOL), "check", *words], input=given, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
