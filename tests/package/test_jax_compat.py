"""Every private JAX name that jaxcomm uses still means what it did, on the JAX version that is installed."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive
from jax.interpreters import ad, mlir, partial_eval
from jax.sharding import AbstractMesh

from jaxcomm import jax_compat
from jaxcomm.collectives.primitive import COLLECTIVES
from tests.collectives.lax_cases import MESH_2D, P, X


def probe(name: str, rule: Any) -> Primitive:
    """A primitive that hands its operand on and calls `rule` with the context when it is lowered."""
    primitive = Primitive(name)
    primitive.def_abstract_eval(lambda aval: aval)
    jax_compat.require_devices(primitive)

    def lower(context: Any, operand: Any) -> Any:
        rule(context)
        return [operand]

    mlir.register_lowering(primitive, lower, cacheable=False)
    return primitive


def test_all_collectives_of_lax_are_known() -> None:
    names = {primitive.name for primitive in jax_compat.lax_collectives()}
    assert {"psum", "psum_invariant", "pmax", "pmin", "reduce_scatter", "all_gather", "all_gather_invariant"} <= names
    assert names <= COLLECTIVES.keys()


@pytest.mark.parametrize("primitive", jax_compat.lax_collectives(), ids=lambda primitive: primitive.name)
def test_lowering_of(primitive: Primitive) -> None:
    assert callable(jax_compat.lowering_of(primitive))


def test_lax_pvary() -> None:
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec()
    step = jax.shard_map(lambda x: jax.lax.pcast(x, "d", to="varying"), mesh=mesh, in_specs=spec, out_specs=P("d"))
    [mapped] = jax.make_jaxpr(step)(np.ones(2)).eqns
    assert [eqn.primitive for eqn in mapped.params["jaxpr"].eqns] == [jax_compat.lax_pvary()]


def test_key_value_store() -> None:
    with pytest.raises(LookupError, match=r"jax\.distributed has not been initialized"):  # where it has: test_processes
        jax_compat.key_value_store()


def test_is_recoverable() -> None:
    assert jax_compat.is_recoverable() is False
    jax.config.update("jax_enable_recoverability", True)
    try:
        assert jax_compat.is_recoverable() is True
    finally:
        jax.config.update("jax_enable_recoverability", False)


def test_coordinator_address() -> None:
    with pytest.raises(LookupError, match=r"jax\.distributed has not been initialized"):
        jax_compat.coordinator_address()


def test_place_in_job(monkeypatch: pytest.MonkeyPatch) -> None:
    assert jax_compat.place_in_job() == ("", 0, 1)
    for name, value in (("coordinator_address", "127.0.0.1:1"), ("process_id", 2), ("num_processes", 4)):
        monkeypatch.setattr(f"jax._src.distributed.global_state.{name}", value)
    assert jax_compat.place_in_job() == ("127.0.0.1:1", 2, 4)


@pytest.mark.parametrize("used", [[True, True], [False, True], [False, False]], ids=str)
def test_drop_what_nobody_reads(used: list[bool]) -> None:
    two = Primitive("two")
    two.multiple_results = True
    two.def_abstract_eval(lambda *avals: avals)
    jax_compat.drop_unused_outputs(two, but="whole")
    jaxpr = jax.make_jaxpr(lambda x, y: two.bind(x, y))(1.0, 2.0).jaxpr
    reduced, used_inputs = partial_eval.dce_jaxpr(jaxpr, used)
    assert used_inputs == used
    assert [len(eqn.invars) for eqn in reduced.eqns] == ([sum(used)] if any(used) else [])


@pytest.mark.parametrize("used", [[True, True], [False, True], [False, False]], ids=str)
def test_what_depends_on_all_operands_keeps_them(used: list[bool]) -> None:
    two = Primitive("whole_two")
    two.multiple_results = True
    two.def_abstract_eval(lambda *avals, whole: avals)
    jax_compat.drop_unused_outputs(two, but="whole")
    jaxpr = jax.make_jaxpr(lambda x, y: two.bind(x, y, whole=1))(1.0, 2.0).jaxpr
    assert partial_eval.dce_jaxpr(jaxpr, used)[1] == [any(used)] * 2


@pytest.mark.parametrize("whole", [None, 1])
@pytest.mark.parametrize("saved", [(), (0,), (1,), (0, 1)], ids=str)
def test_ask_policies_as(saved: tuple[int, ...], whole: int | None) -> None:
    """Each operand is asked about, by lax's primitive and parameters; what is not saved is computed again, or all."""
    two = Primitive("two_exps")
    two.multiple_results = True
    two.def_abstract_eval(lambda *avals, ours, whole: avals)

    def jvp(primals: Any, tangents: Any, **params: Any) -> Any:
        results = two.bind(*primals, **params)
        return results, [result * tangent for result, tangent in zip(results, tangents, strict=True)]

    ad.primitive_jvps[two] = jvp
    jax_compat.ask_policies_as(two, jax.lax.exp_p, ("ours", "whole"), but="whole")
    jax_compat.drop_unused_outputs(two, but="whole")
    asked = []

    def policy(primitive: Any, *avals: Any, **params: Any) -> bool:
        if primitive is not jax.lax.exp_p:
            return True
        asked.append((len(avals), params))
        return avals[0].size - 1 in saved

    def loss(x: Any, y: Any) -> Any:
        return sum(jnp.sum(z) for z in two.bind(x, y, ours=1, whole=whole))

    jaxpr = str(jax.make_jaxpr(jax.grad(jax.checkpoint(loss, policy=policy), (0, 1)))(jnp.ones(1), jnp.ones(2)))
    calls = [len(operands.split()) for operands in re.findall(r"two_exps\[.*?\]((?: \w+)+)", jaxpr)]
    again = 2 if whole and len(saved) < 2 else 2 - len(saved)
    assert calls == [2, again][: 1 + (again > 0)]
    assert asked == [(1, {}), (1, {})]


@pytest.mark.parametrize("vma", [True, False])
def test_checks_vma(vma: bool) -> None:
    seen = []

    def body(x: Any) -> Any:
        seen.append(jax_compat.checks_vma())
        return jax.vmap(jnp.sin)(x)

    step = jax.shard_map(body, mesh=MESH_2D, in_specs=P("a"), out_specs=P("a"), check_vma=vma)
    jax.jit(jax.grad(lambda x: step(x).sum()))(X)
    assert set(seen) == {vma}


def test_sharding_of_an_array_and_of_an_argument_of_jit() -> None:
    split, whole = jax.NamedSharding(MESH_2D, P("a")), jax.NamedSharding(MESH_2D, P())
    x = jax.device_put(X, split)
    found: list[Any] = []

    def inner(x: Any) -> None:
        found.append(jax_compat.sharding_of(x))

    def step(setting: str, first: Any, tree: Any) -> None:
        inner(first)
        inner(tree["x"])
        inner(tree["x"] + 1)
        inner(np.ones(2))
        jax.jit(inner)(tree["x"])
        jax.lax.scan(lambda _, row: (inner(row), None), None, tree["x"])
        jax.vmap(inner)(tree["x"])
        jax.jvp(inner, [tree["x"]], [tree["x"]])

    jax.jit(step, static_argnums=0)("setting", jax.device_put(X, whole), {"x": x})
    assert found == [whole, split, None, None, split, None, None, None]
    found.clear()
    jax.jit(inner, in_shardings=whole)(X)
    jax.jit(lambda x: inner(x)).lower(jax.ShapeDtypeStruct(X.shape, X.dtype, sharding=split))
    inner(x)
    assert found == [whole, split, split]


def test_rewrite_shardings() -> None:
    """Every form reaches the rewriting, with its name; None means that the program states none."""
    seen: list[tuple[str, Any]] = []
    active = False

    def rewrite(sharding: Any, where: str) -> Any:
        if active and isinstance(sharding, P | jax.NamedSharding):
            seen.append((where, getattr(sharding, "spec", sharding)))
            return P() if isinstance(sharding, P) else sharding.update(spec=P())
        return sharding

    jax_compat.rewrite_shardings(rewrite, lambda: ("b",) if active else None)
    mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)
    automatic = jax.NamedSharding(MESH_2D, P("a"))
    axes: list[Any] = []

    def of_axes(x: Any) -> Any:
        axes.extend(jax.sharding.get_abstract_mesh().auto_axes)
        return x

    active = True
    try:
        jax.eval_shape(lambda x: jax.lax.with_sharding_constraint(x, automatic), X)
        assert {*seen} == {("with_sharding_constraint", P("a"))}
        jax.eval_shape(jax.vmap(lambda x: jax.lax.with_sharding_constraint(x, automatic), spmd_axis_name="b"), X[None])
        assert ("vmap", P("b")) in seen
        jax.eval_shape(jax.jit(jnp.sin, in_shardings=automatic), X)
        assert ("jit", P("a")) in seen
        with jax.set_mesh(mesh):
            for function in (
                lambda x: jnp.einsum("ij->ji", x, out_sharding=P("b")),
                lambda x: jax.sharding.reshard(x, P("b")),
                lambda x: jnp.zeros(4, out_sharding=P("b")),
                lambda x: jax.random.normal(jax.random.key(0), (4,), out_sharding=P("b")),
            ):
                seen.clear()
                jax.eval_shape(function, X)
                assert ("out_sharding", P("b")) in seen
            jax.eval_shape(jax.sharding.auto_axes(of_axes, out_sharding=P("b")), X)
            assert ("auto_axes", P("b")) in seen and axes == ["b"]
    finally:
        active = False


def test_is_export() -> None:
    seen = []
    step = jax.jit(probe("exported", lambda context: seen.append(jax_compat.is_export(context))).bind)
    step.lower(X)
    jax.export.export(step)(X)
    assert seen == [False, True]


def test_devices_of_a_mesh_and_of_the_jit_around_an_abstract_one() -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices())[[3, 1, 7, 0, 2, 6, 5, 4]].reshape(4, 2), ("a", "b"))
    seen: list[Any] = []

    def note(context: Any) -> None:
        seen.append(
            (
                type(context.module_context.axis_context.mesh),
                jax_compat.devices(context.module_context.axis_context.mesh),
            )
        )

    hand_on = probe("hand_on", note).bind
    inner = jax.shard_map(hand_on, in_specs=P(None, "b"), out_specs=P(None, "b"), axis_names={"b"})
    step = jax.shard_map(lambda x: inner(hand_on(x)), mesh=mesh, in_specs=P("a"), out_specs=P("a"), axis_names={"a"})
    np.testing.assert_array_equal(jax.jit(step)(X), X)
    devices = tuple(mesh.devices.flat)
    assert seen == [(jax.sharding.Mesh, devices), (AbstractMesh, devices)]


def test_devices_of_an_abstract_mesh_alone() -> None:
    with pytest.raises(LookupError, match="no devices are assigned to the mesh"):
        jax_compat.devices(MESH_2D.abstract_mesh)


def test_the_same_step_on_other_devices_is_lowered_anew() -> None:
    lowered = []
    hand_on = probe("hand_on_again", lambda context: lowered.append(context)).bind
    step = jax.jit(lambda x: jax.shard_map(hand_on, in_specs=P("a"), out_specs=P("a"))(x))
    for order in ([0, 1], [1, 0], [0, 1]):
        mesh = jax.sharding.Mesh(np.array(jax.devices())[order], ("a",))
        with jax.set_mesh(mesh):
            step(jax.device_put(jnp.arange(4.0), jax.NamedSharding(mesh, P("a"))))
    assert len(lowered) == 2


def test_a_partitioner_is_asked_and_the_rule_keeps_the_sharding() -> None:
    """A custom call that XLA does not know: the partitioner answers with the sine of one shard."""
    asked = []

    def partition(operands: Any, shardings: Any, result: Any, sharding: Any, config: bytes) -> Any:
        shape = sharding.tile(result)
        asked.append((config, tuple(shape.dimensions()), shape.numpy_dtype()))
        kind = f"tensor<{'x'.join(map(str, shape.dimensions()))}xf32>"
        module = (
            f"func.func public @main(%x: {kind}) -> {kind} {{ %y = stablehlo.sine %x : {kind} return %y : {kind} }}"
        )
        return module.encode(), [sharding], sharding

    def lower(context: Any, operand: Any) -> Any:
        results = jax.ffi.ffi_lowering("jaxcomm_probe", api_version=2, backend_config="hello")(context, operand)
        rule = jax_compat.elementwise_rule([operand.type], [results[0].type], whole=())
        results[0].owner.attributes["sdy.sharding_rule"] = rule
        return results

    jax_compat.register_partitioner("jaxcomm_probe", partition)
    sine = Primitive("jaxcomm_probe")
    sine.def_abstract_eval(lambda aval: aval)
    mlir.register_lowering(sine, lower)
    x = jax.device_put(X, jax.NamedSharding(MESH_2D, P("a", "b")))
    result = jax.jit(sine.bind)(x)
    np.testing.assert_allclose(result, np.sin(X), rtol=1e-6)
    assert result.sharding.spec == P("a", "b")
    assert set(asked) == {(b"hello", (2, 3), np.dtype(np.float32))}


def test_shard_module() -> None:
    def sums(x: Any) -> list[Any]:
        return [jax.lax.ppermute(x, "a", [(0, 1)]) + jax.lax.axis_index("b").astype(x.dtype)]

    avals = [jax.ShapeDtypeStruct((2, 3), np.float32)]
    data = jax_compat.shard_module(sums, avals, MESH_2D, ("cpu",))
    context = mlir.make_ir_context()
    with context:
        text = str(mlir.ir.Module.parse(data))
    assert "tensor<2x3xf32>" in text
    assert "collective_permute" in text
    assert "source_target_pairs = dense<[[0, 2], [1, 3]]>" in text  # of all devices, b counting fastest


def test_has_devices() -> None:
    jax.devices()
    assert jax_compat.has_devices()  # where it has none yet: tests/backend/test_use.py
