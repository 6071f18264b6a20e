"""The drop policy: optima compared with every combination, times, bounds, errors, plans and texts."""

from __future__ import annotations

import copy
import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcomm import cli, plan, planner, profile
from jaxcomm.errors import JaxcommError, PlanError, ProfileError
from jaxcomm.plan import files
from jaxcomm.plan.drops import Drops, front_first
from jaxcomm.plan.queue_drops import switch_drops
from jaxcomm.planner.drops import decide
from jaxcomm.planner.drops.budget import STEPS, cheapest
from jaxcomm.planner.drops.ring_cost import bounded, reliable
from jaxcomm.profile import PacketLoss, Profile
from jaxcomm.report.plan import explanation
from tests.planner.profiles import with_tolerance

few = settings(max_examples=25, deadline=None)
loads = st.sampled_from([0.05, 0.5, 0.9, 0.999999, 1.0, 1.000001, 1.4, 3.0])
shares = st.sampled_from([0.2, 0.5, 0.7])
TABLES = {"small": [{"share": 0.1, "rounds": 1.0}], "large": [{"share": 0.01, "rounds": 4.0}]}


def document(layers: int = 5, *, tables: bool = False, **tolerance: Any) -> dict[str, Any]:
    return with_tolerance(layers, tables=TABLES if tables else None, **tolerance)


def read(content: dict[str, Any]) -> Profile:
    return profile.validate(content, "profile.json")


def policy(*args: Any, bound: float | None = None, budget: float | None = None, **kwargs: Any) -> Drops:
    found = decide(read(document(*args, **kwargs)), bound=bound, budget=budget)
    assert found
    return found


# Thresholds


def test_front_layers_are_dropped_first() -> None:
    """The first queue has the smallest thresholds, and loses the most under overload."""
    buffer = policy(8, switch={"queues": 4, "buffer_packets": 60, "load": 1.02}).buffer
    assert buffer
    assert [queue.small for queue in buffer.queues] == sorted(queue.small for queue in buffer.queues)
    assert buffer.queues[0].small_drops > buffer.queues[-1].small_drops
    assert all(queue.small_drops >= queue.large_drops for queue in buffer.queues)


# Shares


@few
@given(data=st.data(), layers=st.integers(1, 3), part=st.floats(0.05, 1))
def test_shares_are_the_best_of_all(data: st.DataObject, layers: int, part: float) -> None:
    sizes = [data.draw(st.integers(1, 1000)) for _ in range(layers)]
    ends = [[0.0, *sorted(data.draw(st.integers(0, 1000)) / 10 for _ in range(3))] for _ in range(layers)]
    knots = [0.0, 0.03, 0.07, 0.1]
    costs = [lambda share, end=end: np.interp(share, knots, end) for end in ends]
    found = cheapest(sizes, costs, 0.1, 0.1 * part, time_limit=10.0, seed=0)
    lost = sum(share * nbytes for share, nbytes in zip(found.shares, sizes, strict=True))
    assert max(found.shares) <= 0.1
    assert 0.1 * part * sum(sizes) - 0.1 * max(sizes) / STEPS - 1e-6 < lost <= 0.1 * part * sum(sizes) + 1e-9
    target = sum(sizes) * STEPS if part == 1 else int(sum(sizes) * STEPS * ((0.1 * part) / 0.1))
    grid = 0.1 * np.arange(STEPS + 1) / STEPS
    steps = np.stack(np.meshgrid(*[np.arange(STEPS + 1)] * layers, indexing="ij"))
    spent = sum(size * axis for size, axis in zip(sizes, steps, strict=True))
    price = sum(cost(grid)[axis] for cost, axis in zip(costs, steps, strict=True))
    best = price[(spent <= target) & (spent > target - max(sizes))].min()
    mine = sum(float(cost(share)) for cost, share in zip(costs, found.shares, strict=True))
    assert found.status == "OPTIMAL"
    assert mine == pytest.approx(best, abs=1e-5)


def test_without_tables_front_layers_lose_first() -> None:
    assert front_first([100, 100, 100], 0.2, 0.1) == pytest.approx([0.2, 0.1, 0])
    assert [layer.share for layer in policy(3, budget=0.05).layers] == pytest.approx([0.1, 0.1, 0])


def test_tables_decide_who_loses() -> None:
    content = document(3, tables=True)
    content["tolerance"]["layers"][2]["small"] = [{"share": 0.5, "rounds": 0.001}]
    found = decide(read(content), budget=0.03)
    assert found
    assert found.layers[2].share > 0.05
    assert found.layers[0].share == found.layers[1].share == 0
    assert found.rounds == pytest.approx(0.002 * found.layers[2].share / 0.5)  # small gradients, half of all, first


@few
@given(
    sizes=st.lists(st.integers(1, 2**40), min_size=1, max_size=30),
    bound=st.floats(0, 0.999),
    part=st.floats(0, 1),
    queues=st.integers(1, 64),
    tables=st.booleans(),
)
def test_nothing_loses_more_than_it_may(sizes: list[int], bound: float, part: float, queues: int, tables: bool) -> None:
    content = document(len(sizes), tables=tables, switch={"queues": queues, "buffer_packets": 400, "load": 0.3})
    for layer, nbytes in zip(content["tolerance"]["layers"], sizes, strict=True):
        layer["bytes"] = nbytes
    try:
        found = decide(read(content), bound=bound, budget=bound * part, time_limit=1.0)
    except ProfileError as error:
        assert "no thresholds" in str(error) and bound < 0.01
        return
    assert found
    for i, layer in enumerate(found.layers):
        assert layer.priority == math.floor(i * queues / len(sizes))
        assert 0 <= layer.share <= bound
        assert found.segments(layer.name) * found.segment_bytes <= bound * layer.bytes * (1 + 1e-12)
    lost = sum(layer.share * layer.bytes for layer in found.layers)
    assert lost <= bound * part * sum(sizes) * (1 + 1e-9)
    assert found.seconds <= found.bsp_seconds


def test_a_share_of_whole_segments_is_not_one_less() -> None:
    content = document(1)
    content["tolerance"]["layers"][0]["bytes"] = 70 * 4096
    found = decide(read(content), bound=0.7)
    assert found
    assert found.segments("layer0") == 49


# Time


def test_without_losses_it_is_a_ring_over_the_rest() -> None:
    ring = 14 * (3e-6 + 2**20 * 1e-9 / 8)
    assert reliable(8, 2**20, 3e-6, 1e-9, None) == pytest.approx(ring)
    assert bounded(8, 2**20, 3e-6, 1e-9, None, 0.25) == pytest.approx(14 * (3e-6 + 0.75 * 2**20 * 1e-9 / 8))


@pytest.mark.parametrize("packets", [25, 2])
def test_timeouts_are_those_of_drawn_packets(packets: int) -> None:
    """A round takes as many timeouts as its unluckiest packet. Three later packets save a lost packet a timeout."""
    lost = np.random.default_rng(0).geometric(0.9, (20_000, 4, packets)) - 1
    early = lost[:, :, : max(0, packets - 3)]
    waits = np.concatenate([early - 1, lost[:, :, early.shape[2] :]], axis=2).max(axis=(1, 2))
    repeats = early.any(axis=(1, 2)).mean()
    loss = PacketLoss(rate=0.1, packet_bytes=1000, timeout_s=1.0)
    expected = 6 * (waits.mean() + 0.01 * (1 + 2 * repeats))
    assert reliable(4, 4000 * packets, 0.01, 0.0, loss) == pytest.approx(expected, rel=0.02)


def test_resends_are_those_of_drawn_packets() -> None:
    """A round ends when enough packets of every rank have arrived. Each retransmission costs three latencies."""
    rate, packets, allowed = 0.1, 40, 4
    tries = np.random.default_rng(0).geometric(1 - rate, (20_000, 4, packets))
    needed = np.sort(tries, axis=2)[:, :, packets - 1 - allowed].max(axis=1) - 1
    loss = PacketLoss(rate=rate, packet_bytes=1000, timeout_s=1.0)
    assert bounded(4, 160_000, 1.0, 0.0, loss, 0.1) == pytest.approx(6 * (1 + 3 * needed.mean()), rel=0.02)


def test_messages_of_many_packets_lose_as_those_of_few() -> None:
    loss = PacketLoss(rate=0.1, packet_bytes=1000)
    few_packets, many = (bounded(4, 4000 * count, 1.0, 0.0, loss, 0.1) for count in (65536, 65550))
    assert few_packets == pytest.approx(many, rel=0.01)


@pytest.mark.parametrize("rate", [0.0, 1e-6, 1e-3, 0.05, 0.5])
def test_bounded_loss_waits_less(rate: float) -> None:
    loss = PacketLoss(rate=rate, timeout_s=0.01)
    assert bounded(8, 2**22, 3e-6, 1e-10, loss, 0.1) < reliable(8, 2**22, 3e-6, 1e-10, loss)


# Source of the bound


@pytest.mark.parametrize(
    ("options", "bound", "source"),
    [
        ({}, 0.1, "default"),
        ({"model": " vgg 16"}, 0.17, "published for VGG16: 0.17 with front layers and small gradients first, 0.008 at"),
        ({"model": "WIDERESNET50"}, 0.17, "published for Wide ResNet50"),
        ({"model": "GoogleNet", "bound": 0.03}, 0.03, "measured"),
    ],
)
def test_source_of_the_bound(options: dict[str, Any], bound: float, source: str) -> None:
    content = document(**options)
    found = decide(read(content))
    assert found
    assert (found.bound, found.budget) == (bound, bound)
    assert found.source.startswith(source)


def test_given_bound_goes_before_a_measured_one() -> None:
    content = document()
    content["tolerance"]["bound"] = 0.2
    found = decide(read(content), bound=0.05)
    assert found
    assert (found.bound, found.source) == (0.05, "given")


def buckets(*named: tuple[str, float]) -> dict[str, Any]:
    content = document()
    del content["tolerance"]
    content["buckets"] = [{"name": name, "bytes": 4096, "ready_s": ready} for name, ready in named]
    return content


def test_buckets_are_layers_from_the_last_ready_on() -> None:
    content = read(buckets(("head", 0.01), ("body", 0.02), ("stem b", 0.03), ("stem a", 0.03)))
    assert decide(content) is None
    found = decide(content, model="ResNet50")
    assert found
    assert [layer.name for layer in found.layers] == ["stem a", "stem b", "body", "head"]
    assert [layer.priority for layer in found.layers] == [0, 2, 4, 6]
    assert found.layer("body").bytes == 4096


# Errors


@pytest.mark.parametrize(
    ("content", "options", "error", "words"),
    [
        (
            buckets(),
            {"bound": 0.1},
            ProfileError,
            ["neither tolerance.layers nor buckets", "Cure: add a model's layers"],
        ),
        (buckets(("a", 0.0), ("a", 0.0)), {"bound": 0.1}, ProfileError, ['buckets[1].name is "a"', "of buckets[0]"]),
        (buckets(("", 0.0)), {"budget": 0.1}, ProfileError, ['buckets[0].name is ""', "by name"]),
        (
            document(model="LeNet"),
            {},
            ProfileError,
            ["'LeNet'", "known models: GoogleNet, AlexNet", "Cure: did you mean AlexNet? Else name"],
        ),
        (document(), {"bound": 1.0}, JaxcommError, ["bound is 1.0", "below 1"]),
        (document(), {"budget": 0.2}, JaxcommError, ["budget is 0.2", "the bound 0.1", "(default)"]),
        (document(), {"budget": -0.1}, JaxcommError, ["budget is -0.1"]),
        (
            document(switch={"buffer_packets": 20, "load": 1.5}),
            {},
            ProfileError,
            ["tolerance.switch: with 20 packets of buffer and a load of 1.5", "at or below 0.1", "Cure: a larger"],
        ),
    ],
)
def test_decisions_that_cannot_be(
    content: dict[str, Any], options: dict[str, Any], error: type[JaxcommError], words: list[str]
) -> None:
    with pytest.raises(error) as raised:
        decide(read(content), **options)
    assert all(word in str(raised.value) for word in words), str(raised.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda layers: layers[1].update(name="layer0"), 'tolerance.layers[1].name is "layer0"'),
        (lambda layers: layers[1].update(small=[], large=[]), 'tolerance.layers[1], "layer1", has no small'),
        (lambda layers: layers[2].update(large=[]), 'tolerance.layers[2], "layer2", has no large'),
        (lambda layers: layers[0].update(small=TABLES["small"] * 2), '"layer0", small[1], must ascend'),
        (lambda layers: layers[0].update(small=[{"share": 0.0, "rounds": 1.0}]), '"layer0", small[0], must ascend'),
    ],
)
def test_profiles_that_cannot_be(change: Any, words: str) -> None:
    content = document(tables=True)
    change(content["tolerance"]["layers"])
    with pytest.raises(ProfileError) as raised:
        read(content)
    assert words in str(raised.value)


@pytest.fixture(scope="module")
def made() -> plan.Plan:
    switch = {"queues": 4, "buffer_packets": 60, "load": 0.9}
    return planner.plan(read(document(tables=True, switch=switch)), drop_budget=0.05)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda drops: drops["layers"][4].update(priority=0),
            "drops.layers[4].priority is 0; layer 4 of 5 in 4 queues",
        ),
        (lambda drops: drops["layers"][4].update(share=0.2), "drops.layers[4].share is 0.2; drops.bound allows 0.1"),
        (lambda drops: drops["layers"][4].update(name="layer0"), 'drops.layers[4].name is "layer0"'),
        (lambda drops: drops.update(budget=0.5), "drops.budget is 0.5; with drops.bound 0.1"),
        (lambda drops: drops.update(budget=0.01), "of all bytes; drops.budget allows 0.01"),
        (lambda drops: drops.update(queues=5), "priority"),
        (lambda drops: drops["buffer"]["queues"].pop(), "drops.buffer.queues has 3 entries; drops.queues is 4"),
        (
            lambda drops: drops["buffer"]["queues"][1].update(small=59),
            "queues[1].small is 59; it must be at most large",
        ),
        (lambda drops: drops["buffer"].update(packets=9), "packets; drops.buffer.packets is 9"),
        (
            lambda drops: drops["buffer"]["queues"][0].update(load=0.01),
            "drops.buffer.queues[0].load is 0.01; by the bytes",
        ),
        (lambda drops: drops["buffer"]["queues"][0].update(small_drops=0.01), "queues[0].small_drops is 0.01; its"),
        (lambda drops: drops["buffer"]["queues"][3].update(large_drops=0.01), "queues[3].large_drops is 0.01; its"),
        (lambda drops: drops.update(segment_bytes=4100), "drops.segment_bytes is 4100; it must be a multiple of 8"),
        (lambda drops: drops.update(bound=1.5), "drops.bound is 1.5"),
        (lambda drops: drops.update(seconds=math.nan), "drops.seconds"),
        (lambda drops: drops.update(layers=[]), "drops.layers"),
    ],
)
def test_policies_that_cannot_be(made: plan.Plan, change: Any, words: str) -> None:
    content = made.model_dump(mode="json", exclude={"hash"})
    change(content["drops"])
    with pytest.raises(PlanError) as raised:
        files.validate(content, "plan.json")
    assert words in str(raised.value)
    assert str(raised.value).startswith("plan.json: ")


def test_queue_that_loses_more_than_the_bound(made: plan.Plan) -> None:
    content = copy.deepcopy(made.model_dump(mode="json", exclude={"hash"}))
    queues = content["drops"]["buffer"]["queues"]
    queues[3].update(small=0, large=queues[3]["large"])
    limits = [(queue["small"], queue["large"]) for queue in queues]
    *_, lost = switch_drops([queue["load"] for queue in queues], 0.5, limits)
    queues[3].update(small_drops=float(lost.small), large_drops=float(lost.large))
    with pytest.raises(PlanError, match=r"queues\[3\] loses 0.5\d* of its packets; drops.bound allows 0.1"):
        files.validate(content, "plan.json")


def test_unknown_layer(made: plan.Plan) -> None:
    assert made.drops
    with pytest.raises(PlanError, match=r"no layer 'head'; its layers are: layer0, layer1, layer2, layer3, layer4"):
        made.drops.segments("head")


# Plans


def test_plans_carry_and_prove_the_policy(made: plan.Plan, tmp_path: Path) -> None:
    plan.save(made, tmp_path / "plan.json")
    again = plan.load(tmp_path / "plan.json")
    assert again == made
    assert plan.verify(again).counts["layers that may drop"] == 5
    assert again.drops
    tampered = again.model_copy(update={"drops": again.drops.model_copy(update={"bound": 0.01})})
    with pytest.raises(PlanError, match=r"drops.bound allows 0.01"):
        plan.verify(tampered)


def test_equal_arguments_give_equal_bytes(made: plan.Plan) -> None:
    content = document(tables=True, switch={"queues": 4, "buffer_packets": 60, "load": 0.9})
    assert planner.plan(read(content), drop_budget=0.05).canonical_bytes() == made.canonical_bytes()


def test_plans_without_a_policy_do_not_mention_it() -> None:
    bare = planner.plan(read(buckets()))
    assert bare.drops is None


def test_words(made: plan.Plan) -> None:
    text = explanation.explanation(made)
    assert "Gradients that may be dropped" in text
    assert "0.05 of all (default)" in text
    assert "A switch with 60 packets" in text
    assert all(f"  layer{i} " in text for i in range(5))
    many = explanation.explanation(planner.plan(read(document(40))))
    assert "layer0 … layer4 (5)" in many
    assert "The cost of drops in each layer was not measured" in many
    assert "A switch" not in many


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "profile.json", tmp_path / "plan.json"
    source.write_text(json.dumps(buckets(("head", 0.01), ("stem", 0.02))))
    options = ["--model", "vgg16", "--drop-bound", "5%", "--drop-budget", "2%", "--out", str(target)]
    assert cli.main(["plan", str(source), *options]) == 0
    assert "Up to 0.05 of each gradient may be dropped, 0.02 of all (given)" in capsys.readouterr().out
    found = plan.load(target).drops
    assert found
    assert [(layer.name, layer.share) for layer in found.layers] == [("stem", 0.04), ("head", 0.0)]
    assert cli.main(["plan", str(source), "--model", "LeNet"]) != 0
    assert "known models" in capsys.readouterr().err


def test_published_bounds_are_greater_for_selected_losses() -> None:
    from jaxcomm.planner.drops.published_bounds import PUBLISHED, published

    assert all(row.random < row.selective for row in PUBLISHED)
    assert all(published(row.model.upper().replace(" ", "")) == row for row in PUBLISHED)
    assert len({row.model for row in PUBLISHED}) == 16


def test_priorities_spread_evenly() -> None:
    for layers, queues in itertools.product((1, 3, 8, 50), (1, 2, 8, 64)):
        found = policy(layers, switch={"queues": queues, "buffer_packets": 1000, "load": 0.2})
        counts = np.bincount([layer.priority for layer in found.layers], minlength=queues)
        assert max(counts) - min(counts) <= 1
        assert [layer.priority for layer in found.layers] == sorted(layer.priority for layer in found.layers)
