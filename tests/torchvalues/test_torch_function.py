"""Modes and subclasses with a `__torch_function__` see what they see in eager: modes that a function enters are traced with it,
and a subclass's own is never called while tracing."""

from __future__ import annotations

import typing
from typing import Any

import pytest
import torch
from tests.differential import assert_same
from torch.overrides import BaseTorchFunctionMode, TorchFunctionMode

import fxjit
from fxjit.testing import CompileCounter, same


class Counting(TorchFunctionMode):
    def __init__(self):
        self.seen = []
        super().__init__()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(getattr(func, "__name__", None))
        return func(*args, **(kwargs or {}))


class Doubling(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {})) * (2 if func is torch.add else 1)


class Named(torch.Tensor):
    """A tensor with a name, which its results take over; each look at it is counted."""

    looks = 0

    def __new__(cls, data, name):
        made = data.as_subclass(cls)
        made.label = name
        return made

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        Named.looks += 1
        names = [each.label for each in args if isinstance(each, cls)]
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        return cls(result, "+".join(names)) if isinstance(result, torch.Tensor) and names else result


def inner(x):
    return torch.add(x, 1).sin()


def entering(x, mode):
    with mode:
        y = inner(x) + 1
    return y * 2


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("mode", [Counting, Doubling])
def test_a_mode_that_is_entered(backend, mode):
    theirs, ours = mode(), mode()
    compiled = fxjit.compile(entering, backend=backend, fullgraph=True)
    for _ in range(2):
        assert torch.equal(compiled(torch.ones(3), ours), entering(torch.ones(3), theirs))
    assert getattr(ours, "seen", None) == getattr(theirs, "seen", None)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("mode", [Counting, Doubling])
def test_a_mode_that_is_active(backend, mode):
    theirs, ours, compiled = mode(), mode(), fxjit.compile(inner, backend=backend)
    x = torch.ones(3)
    for _ in range(2):
        with theirs:
            expected = inner(x)
        with ours:
            got = compiled(x)
        assert torch.equal(got, expected)
        assert torch.equal(compiled(x), inner(x))
    assert getattr(ours, "seen", None) == getattr(theirs, "seen", None)


class Telling(TorchFunctionMode):
    """Keeps all that it is told, as text."""

    def __init__(self):
        super().__init__()
        self.told = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.told.append((func.__name__, types, len(args), None if kwargs is None else list(kwargs)))
        return func(*args, **(kwargs or {}))


def operators(x, i):
    y = 2 - x + 1 / x - (x ** 2) * (3 ** x) // 2
    z = -y @ x + abs(y).sum() - (x > 1).float().mean() + (~(i == 1)).sum() + (i & 1).sum() + (2 % (x + 1)).sum()
    y += 1
    y *= x
    y[1:] = x[0]
    return y, z, y[..., 1], len(x), (1.0 in x) if False else None


def attributes(x, i):
    y = x.reshape(1, -1)
    return y.T, y.shape, y.dtype, y.ndim, y.device.type, y.requires_grad, y.real, x.size(0), x.dim(), x.is_floating_point()


def functions(x, i):
    y = torch.stack([x, x * 2]).softmax(0)
    first, second = torch.split(y, 1)
    z = torch.nn.functional.linear(x, torch.ones(2, 3), bias=torch.zeros(2))
    made = torch.tensor([1.0, 2.0]), torch.arange(3), torch.Tensor.mul(x, 3)
    summed = torch.add(x, x, alpha=2), torch.einsum("i,i->", x, x)
    return summed, torch.cat((x, x)), first, second, torch.nn.functional.relu(z), made


class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4), torch.nn.GELU())
        for parameter in self.parameters():
            torch.nn.init.constant_(parameter, 0.3)

    def forward(self, x):
        return self.layers(x)


SMALL = Small()


def module(x, i):
    return SMALL(x), SMALL.layers[0].weight * 2


@pytest.mark.parametrize("body", [operators, attributes, functions, module])
def test_a_mode_is_told_what_torch_tells_it(body):
    def run(x, i, mode):
        with mode:
            result = body(x, i)
        return result, torch.add(x, 1)

    given = torch.tensor([1.0, 2.0, 3.0]), torch.arange(3)
    theirs, ours = Telling(), Telling()
    expected = run(*given, theirs)
    got = fxjit.compile(run, backend="eager", fullgraph=True)(*given, ours)
    assert_same(got, expected, "result")
    assert ours.told == theirs.told


class Replacing(TorchFunctionMode):
    """Other functions in the place of some, by what they are."""

    others = {torch.sin: torch.cos, torch.Tensor.add: torch.Tensor.sub}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in (torch.zeros, torch.ones):
            kwargs = {"dtype": torch.float64} | kwargs
        if func is torch.nn.functional.relu:
            return args[0] * 0
        return self.others.get(func, func)(*args, **kwargs)


def test_a_mode_that_calls_others():
    def run(x):
        with Replacing():
            y = torch.sin(x) + 1
            return y, torch.nn.functional.relu(x), torch.zeros(2), torch.ones(2, dtype=torch.int32), x.sin()
    torch.testing.assert_close(fxjit.compile(run, backend="eager", fullgraph=True)(torch.ones(3)), run(torch.ones(3)))


def test_modes_inside_modes():
    class Scaling(TorchFunctionMode):
        def __init__(self, factor):
            super().__init__()
            self.factor = factor

        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {})) * self.factor

    def run(x, outer, inner, counting):
        with outer, inner, counting:
            y = torch.add(x, 1)
        try:
            with inner:
                raise ValueError
        except ValueError:
            pass
        return y, torch.add(x, 1)

    given, theirs, ours = (torch.ones(3), Scaling(2), Scaling(5)), Counting(), Counting()
    expected = run(*given, theirs)
    torch.testing.assert_close(fxjit.compile(run, backend="eager", fullgraph=True)(*given, ours), expected)
    assert ours.seen == theirs.seen


def overridable(a, b):
    if torch.overrides.has_torch_function((a, b)):
        return torch.overrides.handle_torch_function(overridable, (a, b), a, b=b)
    return a + b


def test_a_function_of_the_program_that_can_be_overridden():
    def run(x, mode):
        with mode:
            return overridable(x, x * 2)
    theirs, ours = Telling(), Telling()
    assert torch.equal(fxjit.compile(run, backend="eager", fullgraph=True)(torch.ones(3), ours), run(torch.ones(3), theirs))
    assert ours.told == theirs.told


@pytest.mark.parametrize("inside", [
    "torch._dynamo.graph_break()", "y = [part * 2 for part in y][0]", "y.requires_grad_(False).requires_grad = True",
    "y = y.item() if y.numel() == 1 else y", "torch.set_grad_enabled(True)", "y = y + int(y[0])",
    "y = torch.zeros(3) + (torch.no_grad().__enter__() is None)",
])
def test_what_is_left_to_eager_under_a_mode(inside):
    namespace = {"torch": torch}
    exec(f"def run(x, mode):\n    with mode:\n        y = x + 1\n        {inside}\n        z = y * 2\n    return z", namespace)
    with torch.enable_grad():
        theirs, ours = Counting(), Counting()
        expected = namespace["run"](torch.ones(3), theirs)
        torch.set_grad_enabled(True)
        got = fxjit.compile(namespace["run"], backend="eager")(torch.ones(3), ours)
    assert torch.equal(got, expected) and ours.seen == theirs.seen


def test_a_mode_that_is_entered_by_a_call():
    def run(x, mode):
        mode.__enter__()
        y = torch.add(x, 1)
        mode.__exit__(None, None, None)
        return y
    assert torch.equal(fxjit.compile(run, backend="eager")(torch.ones(3), Doubling()), run(torch.ones(3), Doubling()))


def test_the_mode_that_does_nothing():
    def fn(x):
        with BaseTorchFunctionMode():
            y = x + 1
        return y * 2
    assert torch.equal(fxjit.compile(fn, backend="eager", fullgraph=True)(torch.ones(3)), fn(torch.ones(3)))

    def broken(x):
        with BaseTorchFunctionMode():
            y = x + 1
            torch._dynamo.graph_break()
            y = y + len(torch.overrides._get_current_function_mode_stack())
        return y * 2
    assert torch.equal(fxjit.compile(broken, backend="eager")(torch.ones(3)), broken(torch.ones(3)))


def naming(x):
    y = x + 1
    return y * y, y.label, x.label


def made_inside(x):
    return naming(Named(x, "inside"))


def test_a_subclass_is_asked_as_often_as_in_eager():
    for fn, given in ((naming, Named(torch.ones(3), "x")), (made_inside, torch.ones(3))):
        Named.looks = 0
        expected = fn(given)
        looks, Named.looks = Named.looks, 0
        got = fxjit.compile(fn, backend="eager")(given)
        assert Named.looks == looks
        assert (type(got[0]), got[0].label, got[1:]) == (Named, expected[0].label, expected[1:])
        assert torch.equal(got[0].as_subclass(torch.Tensor), expected[0].as_subclass(torch.Tensor))


class Scaled(typing.NamedTuple):
    value: torch.Tensor
    scale: torch.Tensor


class ScaledTensor(Scaled):
    """A named tuple that stands for a tensor, as those of quantization libraries do."""

    def __new__(cls, value, scale):
        return super().__new__(cls, value, scale if isinstance(scale, torch.Tensor) else torch.tensor(scale))

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func in (torch.stack, torch.cat):
            return NotImplemented
        def plain(arg):
            return arg.value * arg.scale if isinstance(arg, ScaledTensor) else arg

        return cls(func(*map(plain, args), **{name: plain(arg) for name, arg in (kwargs or {}).items()}), 2.0)


@pytest.mark.parametrize("run", [
    lambda x, w: torch.nn.functional.linear(x, ScaledTensor(w, 3.0)),
    lambda x, w: torch.mul(ScaledTensor(x, 2.0), ScaledTensor(w, x)),
    lambda x, w: torch.stack(ScaledTensor(x, w)),
    lambda x, w: torch.cat([ScaledTensor(x, 2.0), w]),
    lambda x, w: torch.stack(ScaledTensor(Named(x, "x"), w)),
    lambda x, w: torch.relu(input=ScaledTensor(x, w)),
    lambda x, w: torch.max(ScaledTensor(x, w), dim=0),
], ids=["of a constructor", "two", "as a sequence", "in a sequence", "of a subclass", "by name", "several results"])
def test_a_tuple_that_stands_for_a_tensor(run):
    def guarded(x, w):
        try:
            return run(x, w)
        except TypeError as error:
            return str(error)

    counter = CompileCounter()
    compiled = fxjit.compile(guarded, backend=counter)
    for _ in range(2):
        x, w = torch.arange(9.0).view(3, 3), torch.eye(3)
        expected, got = guarded(x, w), compiled(x, w)
        assert type(expected) is type(got) and same(expected, got)
    assert counter.frame_count <= 1


class Describing(TorchFunctionMode):
    """What loggers write down: a function of Python has its address in its text."""

    def __init__(self):
        super().__init__()
        self.told = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.told.append((getattr(func, "__name__", str(func)), str(func), repr(func)))
        return func(*args, **(kwargs or {}))


def test_a_mode_that_writes_down_texts_of_functions():
    def run(x, mode):
        with mode:
            return torch.nn.functional.relu(torch.nn.functional.linear(x, x)) + 1

    theirs, ours = Describing(), Describing()
    x = torch.ones(3, 3)
    assert torch.equal(fxjit.compile(run, backend="eager", fullgraph=True)(x, ours), run(x, theirs))
    assert ours.told == theirs.told


def shown_by_the_program(x):
    return x + 1, str(naming), f"{naming!r}"


def test_texts_of_functions(monkeypatch):
    compiled = fxjit.compile(shown_by_the_program, backend="eager", fullgraph=True)
    for _ in range(2):
        assert compiled(torch.ones(2))[1:] == shown_by_the_program(torch.ones(2))[1:]
    monkeypatch.setattr(naming, "__qualname__", "another")
    assert compiled(torch.ones(2))[1:] == shown_by_the_program(torch.ones(2))[1:]
    monkeypatch.setitem(globals(), "naming", lambda x: x)
    assert compiled(torch.ones(2))[1:] == shown_by_the_program(torch.ones(2))[1:]

    def given(x, fn):
        return x + 1, str(fn)

    compiled = fxjit.compile(given, backend="eager")
    for fn in (naming, shown_by_the_program, lambda x: x):
        assert compiled(torch.ones(2), fn)[1:] == given(torch.ones(2), fn)[1:]


class Carries(torch.Tensor):
    """Gives back its own class, made anew."""

    def __init__(self, data: torch.Tensor) -> None:
        super().__init__()
        self.data_within = data

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*(arg.data_within if isinstance(arg, cls) else arg for arg in args), **(kwargs or {}))
        return cls(out) if isinstance(out, torch.Tensor) else out


class AsGiven(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


@pytest.mark.parametrize("made_inside", [False, True])
def test_a_function_that_gives_its_argument_back_keeps_the_class(made_inside: bool) -> None:
    def fn(x: torch.Tensor) -> Any:
        given = Carries(x) if made_inside else x
        result = AsGiven.apply(given)
        return type(result) is Carries, result is given

    x = torch.ones(3)
    fxjit.reset()
    made = x if made_inside else Carries(x)
    assert fxjit.compile(fn, backend="eager")(made) == fn(made) == (True, False)


def test_the_state_is_read_as_the_program_set_it() -> None:
    def fn(x: torch.Tensor) -> Any:
        states = [torch._C._get_torch_function_state()]
        for off in (torch._C.DisableTorchFunctionSubclass, torch._C.DisableTorchFunction):
            with off():
                states.append(torch._C._get_torch_function_state())
        return x + 1, [str(state) for state in states]

    fxjit.reset()
    assert fxjit.compile(fn, backend="eager")(torch.ones(3))[1] == fn(torch.ones(3))[1]
