"""The errors of `value_and_grad` and `grad`, and the batches and meshes that they refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import jaxcomm
from jaxcomm import JaxcommError
from tests.collectives.lax_cases import P
from tests.collectives.regression import (
    KINDS,
    PARAMS,
    X,
    Y,
    equal,
    loss,
    make_mesh,
    outputs,
    placed,
    put,
    with_outputs,
    with_settings,
)

pytestmark = pytest.mark.usefixtures("no_plan")


@pytest.mark.parametrize("kinds", [("auto", "explicit"), ("explicit", "auto")], ids=" ".join)
def test_axes_of_both_kinds(kinds: tuple[str, str]) -> None:
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=tuple(KINDS[kind] for kind in kinds))
    with jax.set_mesh(mesh):
        found = jaxcomm.value_and_grad(loss, "data")(placed(mesh), put(mesh, X, "data"), put(mesh, Y, "data"))
    equal(found, jax.value_and_grad(loss)(PARAMS, X, Y))


def test_no_mesh() -> None:
    with pytest.raises(JaxcommError, match=r"(?s)there is no mesh here.*Cure: .*jax.set_mesh\(mesh\).*`mesh=`"):
        jax.jit(jaxcomm.grad(loss, "data"))(PARAMS, X, Y)


def test_no_such_axis(flat: Any) -> None:
    with pytest.raises(NameError, match=r"(?s)the mesh has no axis 'batch'; it has \('data',\).*Cure: "):
        jaxcomm.grad(loss, "batch")(PARAMS, X, Y)


def test_axes_of_which_some_are_taken() -> None:
    mesh = make_mesh((2, 4), AxisType.Auto)
    gradient = jaxcomm.grad(loss, ("data", "model"))
    specs = {"in_specs": (P(), P("data"), P("data")), "out_specs": P(), "axis_names": {"data"}}
    taken = r"(?s)of the axes \('data', 'model'\) the jax.shard_map .* has only \('data',\).*Cure: "
    with pytest.raises(JaxcommError, match=taken):
        jax.jit(jax.shard_map(gradient, mesh=mesh, **specs))(PARAMS, X, Y)


# The gradient function, its arguments, the error's type, and the error text.
MISTAKES: dict[str, tuple[Callable[..., Any], Any, type[Exception], str]] = {
    "batch": (
        lambda: jaxcomm.grad(with_settings, "data"),
        (PARAMS, {"x": X[:30], "y": Y[:30]}, 2, "mean"),
        ValueError,
        r"argument 1\['x'\] has the shape \(30, 6\); 8 ranks of 'data' do not divide dimension 0.*Cure: a batch size",
    ),
    "specs of too many dimensions": (
        lambda: jaxcomm.grad(loss, "data", in_specs=(P(), P("data"), P(None, "data"))),
        (PARAMS, X, Y),
        ValueError,
        r"argument 2 has the shape \(32,\); 8 ranks of 'data' do not divide dimension 1.*Cure: ",
    ),
    "no batch": (
        lambda: jaxcomm.grad(lambda params: loss(params, X, Y), "data"),
        (PARAMS,),
        ValueError,
        "no argument is split over 'data', so every rank .*Cure: make the batch an argument of the loss",
    ),
    "integer parameter": (
        lambda: jaxcomm.grad(loss, "data"),
        ({**PARAMS, "steps": np.int32(1)}, X, Y),
        TypeError,
        r"argument 0\['steps'\] is int32, which has no gradient.*Cure: .*allow_int=True",
    ),
    "a parameter that is not there": (
        lambda: jaxcomm.grad(loss, "data", argnums=(0, 3)),
        (PARAMS, X, Y),
        TypeError,
        r"argnums are \(0, 3\), but there are 3 positional arguments.*Cure: ",
    ),
    "setting without a hash": (
        lambda: jaxcomm.grad(lambda params, x, settings: loss(params, x, len(settings)), "data"),
        (PARAMS, X, {1, 2}),
        TypeError,
        r"argument 2 is of type set, which is no array and has no hash.*Cure: make it hashable.*or let the loss close",
    ),
    "no auxiliary output": (
        lambda: jaxcomm.grad(loss, "data", has_aux=True),
        (PARAMS, X, Y),
        TypeError,
        "has_aux is set, but the function returned no pair: a .*Cure: return the loss and what else there is",
    ),
    "function as a parameter": (
        lambda: jaxcomm.grad(loss, "data"),
        ({**PARAMS, "activation": jnp.tanh}, X, Y),
        TypeError,
        r"argument 0\['activation'\] is of type \w+; only arrays have a gradient.*Cure: .*pass the rest",
    ),
    "split parameters": (
        lambda: jaxcomm.grad(loss, "data", in_specs=({"first": P(), "second": P("data")}, P("data"), P("data"))),
        (PARAMS, X, Y),
        ValueError,
        r"in_specs split argument 0\['second'\] as P\('data',\).*Cure: use P\(\) for it.*psum_scatter",
    ),
    "specs over another axis": (
        lambda: jaxcomm.grad(loss, "data", in_specs=(P(None), P("data"), P("model"))),
        (PARAMS, X, Y),
        ValueError,
        "in_specs split argument 2 over 'model'; they can name 'data' only.*Cure: leave the others out",
    ),
    "specs of other arguments": (
        lambda: jaxcomm.grad(loss, "data", in_specs=(P(), P("data"))),
        (PARAMS, X, Y),
        ValueError,
        "in_specs do not fit the positional arguments.*Cure: give one PartitionSpec for each positional argument",
    ),
    "specs that are none": (
        lambda: jaxcomm.grad(loss, "data", in_specs=(P(), "data", "data")),
        (PARAMS, X, Y),
        ValueError,
        "in_specs do not fit the positional arguments: 'data' is no PartitionSpec.*Cure: give one PartitionSpec for",
    ),
    "specs of other auxiliary outputs": (
        lambda: jaxcomm.grad(with_outputs, "data", has_aux=True, aux_specs={"outputs": P("data"), "right": P("data")}),
        (PARAMS, X, Y),
        ValueError,
        "aux_specs do not fit the auxiliary outputs.*Cure: give one PartitionSpec for each auxiliary output",
    ),
    "counts": (
        lambda: jaxcomm.grad(lambda p, x, y: (loss(p, x, y), {"right": (x > 0).sum()}), "data", has_aux=True),
        (PARAMS, X, Y),
        TypeError,
        r"the auxiliary output\['right'\] is int32\[\], which has no mean over the ranks.*Cure: .*aux_specs=P\(\)",
    ),
    "an output without the dimension of a batch of one": (
        lambda: jaxcomm.grad(lambda p, x, y: (loss(p, x, y), outputs(p, x).squeeze()), "data", has_aux=True),
        (PARAMS, X[:8], Y[:8]),
        ValueError,
        r"the auxiliary output has the shape \(\) on a rank and \(8,\) for the whole batch.*Cure: leave it out",
    ),
    "pairs of examples": (
        lambda: jaxcomm.grad(lambda p, x, y: (loss(p, x, y), x @ x.T), "data", has_aux=True),
        (PARAMS, X, Y),
        ValueError,
        r"the auxiliary output has the shape \(4, 4\) on a rank and \(32, 32\) for the whole batch.*Cure: leave it out",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(flat: Any, mistake: str) -> None:
    make_gradient, args, error, message = MISTAKES[mistake]
    kwargs = {"scale": 1.0} if mistake == "batch" else {}
    with pytest.raises(error, match=f"(?s)^jaxcomm.value_and_grad: {message}"):
        jax.block_until_ready(make_gradient()(*args, **kwargs))


def test_a_batch_whose_type_does_not_say_that_it_is_split() -> None:
    with jax.set_mesh(make_mesh((8,), AxisType.Explicit)):
        with pytest.raises(ValueError, match=r"(?s)no argument is split over 'data'.*Cure: shard the batch over it"):
            jaxcomm.grad(loss, "data")(PARAMS, X, Y)
        given = jaxcomm.grad(loss, "data", in_specs=(P(), P("data"), P("data")))(PARAMS, X, Y)
    equal(given, jax.grad(loss)(PARAMS, X, Y))


def test_what_a_loss_closes_over_is_whole_on_every_rank(flat: Any) -> None:
    found = jax.jit(lambda y: jaxcomm.grad(lambda p, x: jnp.mean(outputs(p, x) - y[0]), "data")(PARAMS, X))(Y)
    equal(found, jax.grad(lambda p: jnp.mean(outputs(p, X) - Y[0]))(PARAMS))
