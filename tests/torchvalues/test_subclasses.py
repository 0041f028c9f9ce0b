"""Tensors of subclasses with a `__torch_function__`, and objects with one, compute in one graph what they compute in eager."""

from __future__ import annotations

import pytest
import torch
from tests.differential import assert_same, assert_same_as_eager

import fxjit
from fxjit.testing import EagerAndRecordGraphs


class Plain(torch.Tensor):
    """A name of its own, and torch's `__torch_function__`: results are of the class."""


class Derived(Plain):
    """Goes before the class that it derives from."""


class Swapped(torch.Tensor):
    """Calls another function than was asked for."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__({torch.add: torch.mul}.get(func, func), types, args, kwargs or {})


class Labelled(torch.Tensor):
    """Carries a label, which its results take over."""

    @staticmethod
    def __new__(cls, data, label):
        made = torch.as_tensor(data).as_subclass(cls)
        made.label = label
        return made

    def __init__(self, data, label):
        super().__init__()

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        labels = [each.label for each in args if isinstance(each, cls)]
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        return cls(result, "+".join(labels)) if isinstance(result, torch.Tensor) and labels else result


class Telling(torch.Tensor):
    """Keeps what it is told."""

    told = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.told.append((func.__name__, types, len(args), None if kwargs is None else sorted(kwargs)))
        return super().__torch_function__(func, types, args, kwargs)


class Methods(torch.Tensor):
    """Methods, properties and operators of its own beside torch's."""

    def double(self):
        return self * 2

    @property
    def half(self):
        return self / 2

    def sum(self, *dims):
        return super().sum(*dims) + 1

    def __add__(self, other):
        return super().__add__(other) * 10

    def __matmul__(self, other):
        return NotImplemented

    def __getitem__(self, key):
        return super().__getitem__(key) * 100

    def __len__(self):
        return 7

    def __eq__(self, other):
        return "equal"

    def __neg__(self):
        return "minus"

    def __iter__(self):
        return iter([1, 2])

    __hash__ = torch.Tensor.__hash__


class Described(torch.Tensor):
    """Keeps a description in its `__dict__` behind a property, and gives it on to what is computed from it."""

    @property
    def about(self):
        return self._about if hasattr(self, "_about") else "nothing"

    @about.setter
    def about(self, text):
        self._about = text + "!"

    @about.deleter
    def about(self):
        del self._about

    def __setattr__(self, name, value):
        super().__setattr__(name, value.upper() if name == "loud" else value)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        given = next((each for each in args if isinstance(each, cls)), None)
        if isinstance(result, cls) and given is not None and result is not given:
            result.operands = len(args)
            result.__dict__.update({name: value for name, value in given.__dict__.items() if name != "operands"})
        return result


class Standing:
    """No tensor, but stands for one."""

    def __init__(self, tensor):
        self.tensor = tensor

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.sin:
            return NotImplemented
        def unwrapped(each):
            return [item.tensor for item in each] if isinstance(each, list) else each.tensor if isinstance(each, cls) else each
        return Standing(func(*map(unwrapped, args), **(kwargs or {})))


def of(cls, *numbers, **kwargs):
    return torch.tensor(numbers or [1.0, 2.0, 3.0], **kwargs).as_subclass(cls)


def assert_same_subclasses(program, *classes, **options):
    assert_same_as_eager(program, make=lambda: [of(cls) for cls in classes], **options)


def compute(s):
    return (s + 1) * 2, torch.add(s, s), 1 - s, s**2, s == s, -s, s @ s, s.sum(), torch.stack([s, s]).mean(0), s[1:], s[0]


def read(s):
    return (s.shape, s.dtype, s.ndim, s.device.type, s.requires_grad, s.is_leaf, s.grad, s.grad_fn, s.data, s.T, len(s),
            s.numel(), s.size(0), s.is_contiguous(), type(s).__name__, isinstance(s, Plain), isinstance(s, torch.Tensor))


def change(s):
    s.add_(1)
    s += 2
    s[0] = 5
    same = s.mul_(2)
    return same, same is s, s.view(-1)


def several(s):
    first, *rest = torch.split(s, 1)
    return first, rest, torch.max(s, 0), s.unbind(0), [each * 2 for each in s], s.sort().values, torch.where(s > 1, s, 0)


def functions(s):
    layer = torch.nn.functional.linear(s, torch.ones(2, 3), torch.zeros(2))
    return layer, torch.nn.functional.softmax(s, dim=0), torch.nn.functional.dropout(s, 0.0), torch.einsum("i,i->", s, s)


def made_inside(s):
    other = torch.ones(3).as_subclass(Plain)
    third = Plain(s + 1)
    return other, third, Plain([1.0, 2.0]), s.as_subclass(torch.Tensor), torch.Tensor._make_subclass(Plain, s), other is third


@pytest.mark.parametrize("program", [compute, read, change, several, functions, made_inside])
@pytest.mark.parametrize("cls", [Plain, Derived, Swapped, torch.Tensor])
def test_results_are_what_the_class_says(program, cls):
    assert_same_subclasses(program, cls)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("cls", [Plain, Swapped])
def test_gradients_arrive_at_the_leaf(backend, cls):
    def program(leaf, s):
        y = torch.add(leaf, s).sin()
        with torch.no_grad():
            z = y * 2
        return y, z, leaf.detach()

    results = []
    for run in (program, fxjit.compile(program, backend=backend, fullgraph=True)):
        leaf = torch.Tensor._make_subclass(cls, torch.ones(3), True)
        source = torch.ones(3, requires_grad=True)
        y, z, detached = run(leaf, source.as_subclass(cls))
        y.sum().backward()
        results.append([y, z, detached, leaf.grad, source.grad])
        assert [type(each) for each in results[-1][:3]] == [cls] * 3
        assert [each.requires_grad for each in results[-1][:3]] == [True, False, False]
    for theirs, ours in zip(*results, strict=True):
        assert type(ours) is type(theirs)
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_memory_is_shared_as_in_eager(backend):
    def program(s, plain):
        view = s[:2]
        plain.add_(1)
        return s, view, view.as_subclass(torch.Tensor), s * 1

    for run in (program, fxjit.compile(program, backend=backend, fullgraph=True)):
        plain = torch.zeros(3)
        s = plain.as_subclass(Plain)
        same, view, as_base_tensor, product = run(s, plain)
        assert same is s and [type(each) for each in (view, as_base_tensor, product)] == [Plain, torch.Tensor, Plain]
        assert {each.data_ptr() for each in (s, view, as_base_tensor, plain)} == {plain.data_ptr()}
        assert s.tolist() == product.tolist() == [1.0, 1.0, 1.0]


def test_attributes_of_instances():
    def program(s, x):
        made = Labelled(x, "made")
        total = (s + made) * s
        s.seen = True
        return total, total.label, made, made.label, s.label, hasattr(made, "seen"), s

    compiled = fxjit.compile(program, backend="eager", fullgraph=True)
    for _ in range(2):
        theirs, ours = (run(Labelled([1.0, 2.0], "given"), torch.ones(2)) for run in (program, compiled))
        assert [vars(each) for each in ours if isinstance(each, Labelled)] == [
            vars(each) for each in theirs if isinstance(each, Labelled)]
        assert [each if type(each) is not Labelled else each.tolist() for each in ours] == [
            each if type(each) is not Labelled else each.tolist() for each in theirs]


def write_by_properties(s):
    y = s * 2
    y.about, y.loud = "twice", "louder"
    s.about, s.loud = "given", "loud"
    z = y + 1
    z.origin = y
    z.__setattr__("loud", z.loud + "er")
    del y.about
    return z, z.about, z.loud, y.about, s.about, z.origin is y, z.operands, hasattr(y, "_about"), y + s


def write_to_the_dict(s):
    y = s * 2
    before = y.__dict__
    before["a"] = 1
    y.b = 2
    y.__dict__ = {"c": 3}
    y.d = 4
    after = y.__dict__
    after.pop("c")
    s.__dict__.update(e=5)
    s.__dict__["about"] = "hidden by the property"
    return y, before, after, sorted(y.__dict__), s, after is y.__dict__, getattr(y, "a", None), s.e, s.about


def write_a_dict_that_others_have(s):
    shared = {"a": 1}
    y, z = s + 1, s + 2
    y.__dict__ = z.__dict__ = shared
    y.b = 2
    shared["c"] = z.b
    return y, z, shared, y.__dict__ is z.__dict__, y.c


STATE = {"kept": 1}


def write_the_dict_of_another(s):
    s.before = 1
    y, z = s + 1, s * 2
    y.__dict__ = s.__dict__
    y.loud = "all see it"
    del s.before
    z.__dict__ = STATE
    z.kept += 1
    return y, s.__dict__, z.__dict__, y.loud, s.loud, hasattr(y, "before"), y * z


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("program", [write_by_properties, write_to_the_dict, write_a_dict_that_others_have,
                                     write_the_dict_of_another])
def test_what_the_program_writes_to_tensors(program, backend):
    def shown(value):
        if isinstance(value, (tuple, list)):
            return [shown(each) for each in value]
        if isinstance(value, torch.Tensor):
            return type(value).__name__, value.tolist(), {name: shown(each) for name, each in value.__dict__.items()}
        return value

    compiled = fxjit.compile(program, backend=backend, fullgraph=program is not write_to_the_dict)
    for _ in range(2):
        results = []
        for run in (program, compiled):
            STATE["kept"] = 1
            results.append(shown(actual := run(of(Described))))
        assert results[1] == results[0] and STATE["kept"] == (2 if program is write_the_dict_of_another else 1)
        if program is not write_by_properties:
            assert any(actual[0].__dict__ is each for each in actual[1:])


def test_attributes_of_what_nobody_keeps_are_not_written():
    def program(s):
        for index in range(3):
            s = s * 2
            s.index = index
        return s

    recorder = EagerAndRecordGraphs()
    made = fxjit.compile(program, backend=recorder, fullgraph=True)(of(Described))
    assert made.index == 2
    (graph,) = recorder.graphs
    (outputs,) = graph.graph.output_node().args
    assert len(outputs) == 1


@pytest.mark.parametrize("program", [compute, read, several, functions])
def test_the_class_is_told_what_torch_tells_it(program):
    told = []
    for run in (program, fxjit.compile(program, backend="eager", fullgraph=True)):
        s = of(Telling)
        Telling.told = []
        run(s)
        told.append(Telling.told)
    assert told[0] and told[1] == told[0]


def test_methods_and_operators_of_its_own():
    def program(s):
        product = 0
        try:
            s @ s
        except TypeError as error:
            product = str(error)
        return (s.double(), s.half, s.sum(), torch.sum(s), s + 1, torch.add(s, 1), s[1], len(s), s == s, s != s, -s, list(s),
                product, super(Methods, s).sum(0), super(Methods, s).shape)
    assert_same_subclasses(program, Methods)


def test_classes_that_do_not_know_each_other():
    class Other(torch.Tensor):
        pass

    def program(a, b, c):
        kinds = [type(a + b), type(b * a), type(torch.cat([a, b]))]
        try:
            return kinds, a + c
        except TypeError as error:
            return kinds, str(error)

    given = of(Plain), of(Derived), of(Other)
    assert fxjit.compile(program, backend="eager")(*given) == program(*given)


def test_objects_that_stand_for_tensors():
    def program(x, given):
        made = Standing(x)
        return (torch.add(made, 1).tensor, torch.mul(x, given).tensor, (x + made).tensor, (given * x).tensor,
                torch.stack([made, given]).tensor, (x > made).tensor, torch.overrides.has_torch_function((made,)))
    x = torch.ones(2)
    torch.testing.assert_close(fxjit.compile(program, backend="eager", fullgraph=True)(x, Standing(x + 1)),
                               program(x, Standing(x + 1)))

    def refused(x):
        return torch.sin(Standing(x))
    with pytest.raises(TypeError, match="Multiple dispatch failed for 'torch.sin'"):
        fxjit.compile(refused, backend="eager")(x)


def overridable(a, b):
    if torch.overrides.has_torch_function((a, b)):
        return torch.overrides.handle_torch_function(overridable, (a, b), a, b=b)
    return a + b


def test_functions_of_the_program_that_can_be_overridden():
    told = []
    for run in (overridable, fxjit.compile(overridable, backend="eager", fullgraph=True)):
        Telling.told = []
        run(torch.ones(3), of(Telling))
        told.append(Telling.told)
    assert told[0] and told[1] == told[0]


def test_containers_are_looked_through():
    def program(tensors):
        return torch.stack(tensors)
    compiled = fxjit.compile(program, backend="eager", fullgraph=True)
    assert_same(program([of(Plain), of(Plain)]), compiled([of(Plain), of(Plain)]))


def test_switched_off():
    def program(s):
        with torch._C.DisableTorchFunctionSubclass():
            inside, enabled = s + 1, torch._C._is_torch_function_enabled()
        return inside, s + 1, enabled, torch._C._is_torch_function_enabled()
    assert_same_subclasses(program, Plain)

    def broken(s):
        with torch._C.DisableTorchFunctionSubclass():
            y = s + 1
            torch._dynamo.graph_break()
            y = y + s
        return y, s * y
    assert_same_subclasses(broken, Plain, fullgraph=False)

    def inner(s):
        return s + 1
    compiled = fxjit.compile(inner, backend="eager", fullgraph=True)
    for _ in range(2):
        with torch._C.DisableTorchFunctionSubclass():
            assert type(compiled(of(Plain))) is torch.Tensor
        assert type(compiled(of(Plain))) is Plain


def test_breaks_between():
    def program(s):
        y = s * 2
        made = torch.ones(3).as_subclass(Plain)
        made.note = "kept"
        torch._dynamo.graph_break()
        return y + 1, s, made, made.note, made * 2
    assert_same_subclasses(program, Plain, fullgraph=False)


def test_another_class_is_another_program():
    compiled = fxjit.compile(compute, backend="eager", fullgraph=True)
    for cls in (torch.Tensor, Plain, Swapped, Plain, Derived):
        assert [type(each) for each in compiled(of(cls))] == [type(each) for each in compute(of(cls))]


def test_another_function_in_the_class_is_another_program():
    class Changing(torch.Tensor):
        pass

    compiled = fxjit.compile(lambda s: s + 1, backend="eager", fullgraph=True)
    assert type(compiled(of(Changing))) is Changing
    Changing.__torch_function__ = classmethod(lambda cls, func, types, args=(), kwargs=None: "changed")
    assert compiled(of(Changing)) == "changed"


def test_sizes_that_vary():
    fxjit.reset()
    compiled = fxjit.compile(compute, backend="eager", fullgraph=True, dynamic=True)
    for count in (3, 5, 8):
        theirs, ours = compute(of(Plain, *map(float, range(count)))), compiled(of(Plain, *map(float, range(count))))
        assert [type(each) for each in ours] == [type(each) for each in theirs]
        for a, b in zip(ours, theirs, strict=True):
            assert a.tolist() == b.tolist()
    assert fxjit.counters["frames"]["ok"] == 1


def test_a_library_that_puts_its_own_method_in_the_place_of_as_subclass(monkeypatch: pytest.MonkeyPatch) -> None:
    given = torch.Tensor.as_subclass

    def as_subclass(self: torch.Tensor, kind: type) -> torch.Tensor:
        made = given(self, kind)
        made.__dict__.update(self.__dict__)
        return made

    monkeypatch.setattr(torch.Tensor, "as_subclass", as_subclass, raising=False)

    def program(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).as_subclass(Marked)

    class Marked(torch.Tensor):
        pass

    for x in (torch.ones(2), torch.ones(2).as_subclass(Marked), torch.ones(2, requires_grad=True)):
        expected, actual = program(x), fxjit.compile(program, backend="eager")(x)
        assert type(actual) is type(expected) is Marked and torch.equal(actual, expected)
