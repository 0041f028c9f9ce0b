"""torch.func: what is transformed becomes a graph in the graph, also where transforms are nested."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.differential import assert_same_as_eager
from torch import nn
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    stack_module_state,
    vjp,
    vmap,
)

import fxjit

LINEAR = nn.Linear(3, 2).requires_grad_(False)
MODELS = [nn.Linear(3, 2).requires_grad_(False) for _ in range(3)]
STACKED = tuple({name: tensor.detach() for name, tensor in each.items()} for each in stack_module_state(MODELS))
SKELETON = copy.deepcopy(MODELS[0]).to("meta")
PARAMETERS = {name: tensor.detach() for name, tensor in LINEAR.named_parameters()}
WEIGHT = torch.randn(3)


def loss(parameters, x):
    return functional_call(LINEAR, parameters, (x,)).square().sum()


def with_aux(x):
    y = x.sin()
    return (y * WEIGHT).sum(), {"y": y, "all": [y * 2]}


def made_outside(x):
    return GRADIENT(x) * 2


def pulled(x, y):
    (out, rest), pull = vjp(lambda x, y: (x * y["k"], x.sum()), x, {"k": y})
    return out, pull((out * 2, rest)), pull((out, rest + 1))


def pulled_with_aux(x):
    out, pull, aux = vjp(lambda x: (x.exp(), x.cos()), x, has_aux=True)
    return pull(out)[0] + aux


def linear_twice(x):
    out, pushed = linearize(lambda x: (x * WEIGHT).tanh(), x)
    return out, pushed(x), pushed(x * 2)


def in_no_grad(x):
    with torch.no_grad():
        inside = grad(lambda x: (x ** 3).sum())(x)
    return inside, torch.is_grad_enabled()


def partly_without_grad(x):
    def f(x):
        with torch.no_grad():
            fixed = x * 2
        return (x * fixed).sum()
    return grad(f)(x)


def writing_inside(x):
    def f(row):
        made = torch.zeros_like(row)
        made += row
        made[0] = 5
        return made
    return vmap(f)(x)


GRADIENT = grad(lambda x: (x.sin() * WEIGHT).sum())
TRANSFORMS = {
    "grad": lambda x: grad(lambda x: (x ** 3).sum())(x),
    "grad, made outside": made_outside,
    "grad, argnums": lambda x: grad(lambda a, b, c: (a * b * c).sum(), argnums=(2, 0))(x, x + 1, x.cos()),
    "grad, dict": lambda x: grad(lambda d, k: (d["a"] * d["b"][0] * k).sum())({"a": x, "b": [x * 2]}, k=x),
    "grad, aux": lambda x: grad(with_aux, has_aux=True)(x),
    "grad_and_value": lambda x: grad_and_value(with_aux, has_aux=True)(x),
    "grad of grad": lambda x: grad(lambda x: grad(lambda x: (x ** 4).sum())(x).sum())(x),
    "grad, no_grad around": in_no_grad,
    "grad, no_grad inside": partly_without_grad,
    "functional_call": lambda x: functional_call(LINEAR, {"weight": x[:2]}, (x,)),
    "parameters": lambda x: grad(loss)(PARAMETERS, x),
    "per sample": lambda x: vmap(grad(loss), in_dims=(None, 0))(PARAMETERS, x),
    "ensemble": lambda x: vmap(lambda p, b, x: functional_call(SKELETON, (p, b), (x,)), (0, 0, None))(*STACKED, x),
    "vmap": lambda x: vmap(lambda row: (row * WEIGHT).sum())(x),
    "vmap, dims": lambda x: vmap(torch.dot, in_dims=(0, 1))(x, x.t().contiguous()),
    "vmap, out_dims": lambda x: vmap(lambda row: (row * WEIGHT, {"s": row.sum()}), out_dims=(1, 0))(x),
    "vmap, dict": lambda x: vmap(lambda d, k: d["a"] * d["b"] + k, ({"a": 1, "b": None}, None))({"a": x, "b": WEIGHT[:1]}, 2),
    "vmap of vmap": lambda x: vmap(vmap(lambda a, b: a * b, (0, None)), (0, 0))(x, x[:, 0]),
    "vmap, chunks": lambda x: vmap(lambda row: row.cumsum(0), chunk_size=2)(x),
    "vmap, the same": lambda x: vmap(lambda row: row)(x),
    "vmap, random": lambda x: vmap(lambda row: row + torch.rand(3), randomness="different")(x),
    "vmap, dropout": lambda x: vmap(lambda row: nn.functional.dropout(row), randomness="same")(x),
    "vmap, writing to what it made": writing_inside,
    "vjp": lambda x: pulled(x, x.cos()),
    "vjp, aux": pulled_with_aux,
    "jvp": lambda x: jvp(lambda a, b: {"r": a * b, "s": a.sin()}, (x, x + 1), (x * 2, x)),
    "linearize": lambda x: linearize(torch.sin, x)[1](x.cos()),
    "linearize, twice": linear_twice,
    "linearize, dict": lambda x: linearize(lambda d, y: {"p": d["a"] * y, "q": [y.exp()]}, {"a": x}, x + 1)[1]({"a": x}, x),
    "linearize, a batch of tangents": lambda x: vmap(linearize(lambda row: (row ** 3).sum(), x[0])[1])(x),
    "jacrev": lambda x: jacrev(lambda x: x.sin())(x),
    "jacrev, argnums": lambda x: jacrev(lambda a, b: a * b.sum(), argnums=(0, 1))(x, x[0]),
    "jacfwd": lambda x: jacfwd(lambda x: x.sin() * WEIGHT)(x),
    "jacfwd, aux": lambda x: jacfwd(lambda x: (x.sin(), x.cos()), has_aux=True)(x),
    "hessian": lambda x: hessian(lambda x: (x ** 3).sum())(x),
}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_values(assert_same_as_eager, name):
    assert_same_as_eager(TRANSFORMS[name], torch.randn(4, 3))


@pytest.mark.parametrize("name", ["grad", "grad, aux", "per sample", "vmap", "vmap, out_dims", "vjp", "jvp", "hessian"])
def test_gradients_of_what_is_around(assert_same_as_eager, name):
    assert_same_as_eager(TRANSFORMS[name], torch.randn(4, 3, requires_grad=True))


def several_jacobians(x):
    return jacrev(lambda x: (x.sin(), x.sum()))(x)


def test_a_jacobian_of_several_results(assert_same_as_eager):
    x = torch.randn(4, 3)
    torch.testing.assert_close(fxjit.compile(several_jacobians, backend="eager")(x), several_jacobians(x))
    if torch.__version__ >= "2.13":  # older ones take them apart in a way that breaks the graph
        assert_same_as_eager(several_jacobians, x)


def test_native():
    x = torch.randn(4, 3)
    for name in ("per sample", "ensemble", "jacfwd"):
        torch.testing.assert_close(fxjit.compile(TRANSFORMS[name], fullgraph=True)(x), TRANSFORMS[name](x))


def pushed_from_parts(x):
    return jvp(torch.sin, (x[1:],), (x[:-1],))


def pushed_row_by_row(x):
    return vmap(lambda row, tangent: jvp(torch.sin, (row,), (tangent,)))(x, x.cos())


@pytest.mark.parametrize("fn", [*(TRANSFORMS[name] for name in ("per sample", "jacfwd", "hessian", "jvp")), pushed_from_parts,
                                pushed_row_by_row])
def test_other_batches(fn):
    compiled = fxjit.compile(fn, backend="aot_eager", fullgraph=True)
    for rows in (4, 5, 6):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(compiled(x), fn(x))


def normed(weight, x):
    return nn.functional.layer_norm(x * weight, (3,)).square().sum()


@fxjit.allow_in_graph
def allowed(x):
    return vmap(grad(normed))(x, x.cos())


@pytest.mark.parametrize("fn", [lambda x: vmap(grad(normed))(x, x.cos()), lambda x: allowed(x * 2)])
def test_operators_that_the_dispatcher_does_not_know(fn):
    """A layer norm of batched tensors with symbolic sizes asks for them by TorchScript's own `aten::size`."""
    compiled = fxjit.compile(fn, backend="eager", fullgraph=True, dynamic=True)
    for rows in (4, 5):
        x = torch.randn(rows, 6, 3)
        torch.testing.assert_close(compiled(x), fn(x))


def test_the_module_keeps_its_parameters():
    compiled = fxjit.compile(TRANSFORMS["per sample"], backend="eager", fullgraph=True)
    weight = LINEAR.weight
    compiled(torch.randn(4, 3))
    assert LINEAR.weight is weight
    assert dict(LINEAR.named_parameters())["weight"] is weight


class Inside:
    """What a function finds of the tensors that a transform gives it."""

    @staticmethod
    def grad(x):
        seen = []

        def f(x):
            seen.append((x.requires_grad, x.is_leaf, torch.is_grad_enabled(), (x * 2).requires_grad))
            return x.sum() * (2 if x.requires_grad else 1)
        return grad(f)(x)

    @staticmethod
    def vmap(x):
        return vmap(lambda row: row * (2 if row.requires_grad else 1) * len(row) + row.stride(0), in_dims=1)(x)


def test_what_it_is_given():
    for fn in (Inside.grad, Inside.vmap):
        for given in (torch.randn(4, 3), torch.randn(4, 3, requires_grad=True)):
            torch.testing.assert_close(fxjit.compile(fn, backend="eager")(given), fn(given))


def remembering(x):
    seen = []

    def f(x):
        seen.append(x.shape)
        return x.sum()
    return grad(f)(x), seen


def writing_outside(x):
    total = torch.zeros(3)

    def f(x):
        total.add_(1)
        return x.sum()
    return grad(f)(x)


def deciding(x):
    return grad(lambda x: x.sum() if x.sum() > 0 else -x.sum())(x)


def pulled_later(x):
    out, pull = vjp(torch.sin, x)
    torch._dynamo.graph_break()
    return out, pull(out)


def linear_later(x):
    out, pushed = linearize(torch.sin, x)
    torch._dynamo.graph_break()
    return out, pushed(x.detach())


def linear_random(x):
    torch.manual_seed(3)
    out, pushed = linearize(lambda x: x * torch.rand(3), x)
    return out, pushed(x.detach()), torch.rand(1)


def linear_constant(x):
    return linearize(lambda x: (x * 2, torch.ones(2)), x)[1](x.detach())


def linear_of_what_changes(x):
    y = x.detach() * 2
    pushed = linearize(lambda x: x ** 2, y)[1]
    y.add_(1)
    return pushed(torch.ones_like(y))


def linear_with_gradients(x):
    out, pushed = linearize(lambda x: x ** 2, x)
    made = pushed(torch.ones(4, 3))
    return out, made, made.requires_grad, out.requires_grad


def linear_misfits(x):
    pushed, found = linearize(torch.sin, x)[1], []
    for tangents in ((x[0],), (x.double(),), (x, x), ((x,),)):
        try:
            found.append(pushed(*tangents))
        except RuntimeError as error:
            found.append(str(error))
    return found


def pulled_random(x):
    torch.manual_seed(3)
    out, pull = vjp(lambda x: x * torch.rand(3), x)
    return out, pull(out), torch.rand(1)


@pytest.mark.parametrize("fn", [
    remembering, deciding, pulled_later, pulled_random, linear_later, linear_random, linear_constant, linear_of_what_changes,
    linear_with_gradients,
])
def test_runs_as_it_stands(fn):
    compiled = fxjit.compile(fn, backend="eager")
    for given in (torch.randn(4, 3), torch.randn(4, 3, requires_grad=True)):
        torch.testing.assert_close(compiled(given), fn(given))


def test_tangents_that_do_not_fit():
    x = torch.randn(4, 3)
    assert fxjit.compile(linear_misfits, backend="eager")(x) == linear_misfits(x)


def test_a_linear_map_that_leaves():
    def fn(x):
        return linearize(torch.sin, x * 2)[1]
    x = torch.randn(3)
    torch.testing.assert_close(fxjit.compile(fn, backend="eager")(x)(x), fn(x)(x))


def test_a_pullback_that_leaves():
    def fn(x):
        return vjp(torch.sin, x * 2)[1]
    x = torch.randn(3)
    torch.testing.assert_close(fxjit.compile(fn, backend="eager")(x)(x), fn(x)(x))


def raising(x):
    def f(row):
        if row.shape == (3,):
            raise KeyError("row")
        return row
    return vmap(f)(x)


ERRORS = {
    "of the function": raising,
    "a tensor of the outside": writing_outside,
    "no scalar": lambda x: grad(lambda x: x * 2)(x),
    "no tensor": lambda x: grad(lambda x: 3.0)(x),
    "argnums": lambda x: grad(lambda x: x.sum(), argnums=4)(x),
    "nothing to map over": lambda x: vmap(lambda x: x, in_dims=None)(x),
    "batches that differ": lambda x: vmap(torch.mul)(x, x[:2]),
    "no number inside": lambda x: vmap(lambda row: row.sum().item())(x),
    "random numbers": lambda x: vmap(lambda row: row + torch.rand(3))(x),
    "integers": lambda x: grad(lambda x: x.sum())(x.long()),
    "cotangents": lambda x: vjp(torch.sin, x)[1]((x, x)),
    "tangents": lambda x: jvp(torch.sin, (x,), (x[0],)),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    x, fn = torch.randn(4, 3), ERRORS[name]
    with pytest.raises(Exception) as theirs:
        fn(x)
    with pytest.raises(type(theirs.value)) as ours:
        fxjit.compile(fn, backend="eager")(x)
    assert str(ours.value) == str(theirs.value)


def test_the_setting(breaks):
    with fxjit.config.patch(capture_func_transforms=False):
        assert breaks(TRANSFORMS["grad"], torch.randn(4, 3)) == "call-higher-order"


def test_a_transform_that_fails_on_fake_tensors_leaves_nothing_behind():
    def laplacian(x):
        return vmap(lambda row: hessian(lambda row: torch.sin(row).prod())(row).trace())(x)
    x = torch.rand(3, 4)
    for backend in ("eager", "aot_eager"):
        torch.testing.assert_close(fxjit.compile(laplacian, backend=backend)(x), laplacian(x))
        torch.testing.assert_close(fxjit.compile(TRANSFORMS["jvp"], backend=backend)(x), TRANSFORMS["jvp"](x))


NET = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))


def at_points(x):
    """A loss of derivatives, whose gradient is for the parameters."""
    def value(row):
        return NET(row).squeeze()
    slopes, curves = vmap(grad(value))(x), vmap(hessian(value))(x)
    return (slopes[:, 0] + vmap(value)(x) * slopes[:, 1] - curves[:, 2, 2]).square().mean()


def learning_to_learn(x):
    def loss(parameters):
        return functional_call(NET, parameters, (x,)).square().mean()
    parameters = dict(NET.named_parameters())
    for _ in range(2):
        gradients = grad(loss)(parameters)
        parameters = {name: each - 0.1 * gradients[name] for name, each in parameters.items()}
    return loss(parameters)


@pytest.mark.parametrize("fn", [at_points, learning_to_learn])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_gradients_of_parameters(fn, backend):
    x, found = torch.randn(4, 3), []
    for each in (fn, fxjit.compile(fn, backend=backend, fullgraph=True)):
        NET.zero_grad()
        loss = each(x)
        loss.backward()
        found.append([loss.detach(), *(parameter.grad.clone() for parameter in NET.parameters())])
    torch.testing.assert_close(found[1], found[0])


def test_functions_of_functorch() -> None:
    """Those of the package that torch.func comes from: each warns at the caller's line, and calls torch's."""
    import functorch

    with pytest.warns(FutureWarning, match="functorch"):
        functional, parameters, buffers = functorch.make_functional_with_buffers(nn.Sequential(LINEAR, nn.Tanh()))

    def by_samples(x):
        return functorch.vmap(functorch.grad(lambda x: (x.sin() * x).sum()))(x), functorch.jacrev(torch.sin)(x[0])

    def functionally(x, *parameters):
        return functorch.grad(lambda x: functional(parameters, buffers, x).sum())(x)

    for f, args in (by_samples, ()), (functionally, parameters):
        with pytest.warns(FutureWarning, match="functorch"):
            assert_same_as_eager(f, torch.randn(4, 3), *args)
