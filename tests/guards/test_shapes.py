"""Symbolic sizes: what a ShapeEnv assumed becomes guards that admit just the sizes for which the trace is right."""

from __future__ import annotations

from typing import Any

import pytest
import sympy
import torch
from frames import Frame, X, Y, guard_set, means
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.utils._sympy.functions import CleanDiv, FloorDiv, Max, Min, Mod, ModularIndexing, PowByNatural, PythonMod

from fxjit.guards.kinds import Guard, PythonCheck, ShapeExpr, TensorIs, TensorSpec, TypeIs
from fxjit.guards.shapes import Numbers, compile_program, our_source, shape_guard, shape_guards, torch_source
from fxjit.guards.source import LocalSource, TensorSizeSource
from fxjit.guards.tree import build_tree

N = LocalSource("n")
DYNAMIC, STATIC, DUCK = DimDynamic.DYNAMIC, DimDynamic.STATIC, DimDynamic.DUCK


class Trace:
    """Fake tensors and symbolic numbers with places, and the guards at the end."""

    def __init__(self) -> None:
        self.env = ShapeEnv()
        self.mode = FakeTensorMode(shape_env=self.env)
        self.inputs: list[tuple[Any, Any]] = []
        self.guards: list[Guard] = []

    def tensor(self, source: Any, real: torch.Tensor, dims: list[DimDynamic]) -> Any:
        fake = self.mode.from_tensor(
            real, source=torch_source(source), symbolic_context=StatelessSymbolicContext(dynamic_sizes=dims)
        )
        self.inputs.append((source, fake))
        self.guards.append(TensorIs(source, TensorSpec.of(real, fake=fake)))
        return fake

    def number(self, source: Any, value: Any) -> Any:
        theirs = torch_source(source)
        symbol = self.env.create_unspecified_symbol(value, source=theirs, dynamic_dim=DYNAMIC)
        if isinstance(value, float):
            made = self.env.create_symfloatnode(symbol, hint=value, source=theirs)
        else:
            made = self.env.create_symintnode(symbol, hint=value, source=theirs)
        self.inputs.append((source, made))
        self.guards.append(TypeIs(source, type(value)))
        return made

    def finish(self) -> list[Guard]:
        return self.guards + shape_guards(self.env, self.inputs)


def admits(guards: list[Guard], **args: Any) -> bool:
    frame = Frame(**args)
    tree = build_tree(guard_set(*guards), frame.arg_names, ())
    in_c = tree.check(*frame.parts)
    assert in_c == all(means(guard, frame) for guard in guards)
    return in_c


def test_a_dynamic_batch() -> None:
    trace = Trace()
    fake = trace.tensor(X, torch.ones(4, 6), [DYNAMIC, STATIC])
    with trace.mode:
        fake.relu().sum(1)
    guards = trace.finish()
    for batch in (2, 3, 4, 100):
        assert admits(guards, x=torch.ones(batch, 6))
    assert not admits(guards, x=torch.ones(4, 7)), "the other size is static"
    assert not admits(guards, x=torch.ones(1, 6)) and not admits(guards, x=torch.ones(0, 6)), "0 and 1 are special"
    assert not admits(guards, x=torch.ones(6, 4).t()), "another layout"


def test_strides_follow_symbolic_sizes() -> None:
    trace = Trace()
    trace.tensor(X, torch.ones(4, 6, 5), [DYNAMIC, DYNAMIC, STATIC])
    guards = trace.finish()
    assert admits(guards, x=torch.ones(3, 9, 5))
    assert not admits(guards, x=torch.ones(9, 3, 5).transpose(0, 1))
    assert not admits(guards, x=torch.ones(3, 18, 5)[:, ::2])


def test_assumptions_become_guards() -> None:
    trace = Trace()
    fake = trace.tensor(X, torch.ones(4, 6), [DYNAMIC, DYNAMIC])
    assert fake.shape[0] * 2 < 50
    assert fake.shape[1] % 3 == 0
    guards = trace.finish()
    assert admits(guards, x=torch.ones(24, 9))
    assert not admits(guards, x=torch.ones(25, 9))
    assert not admits(guards, x=torch.ones(24, 10))


def test_equal_sizes_and_relations_between_inputs() -> None:
    trace = Trace()
    x = trace.tensor(X, torch.ones(4, 6), [DYNAMIC, DYNAMIC])
    y = trace.tensor(Y, torch.ones(8, 6), [DYNAMIC, DYNAMIC])
    n = trace.number(N, 12)
    assert y.shape[0] == 2 * x.shape[0]
    assert n == x.shape[1] + 6
    guards = trace.finish()
    assert admits(guards, x=torch.ones(5, 7), y=torch.ones(10, 3), n=13)
    assert not admits(guards, x=torch.ones(5, 7), y=torch.ones(9, 3), n=13)
    assert not admits(guards, x=torch.ones(5, 7), y=torch.ones(10, 3), n=12)
    assert not admits(guards, x=torch.ones(5, 7), y=torch.ones(10, 3), n=13.0)


def test_duck_sizes_are_one_symbol() -> None:
    trace = Trace()
    trace.tensor(X, torch.ones(4), [DUCK])
    trace.tensor(Y, torch.ones(4), [DUCK])
    guards = trace.finish()
    assert admits(guards, x=torch.ones(7), y=torch.ones(7))
    assert not admits(guards, x=torch.ones(7), y=torch.ones(8))


def test_an_input_changed_in_place_is_guarded_as_it_came() -> None:
    trace = Trace()
    fake = trace.tensor(X, torch.ones(4, 6), [DYNAMIC, DYNAMIC])
    trace.inputs = [(X, Numbers.of(fake))]
    with trace.mode:
        assert fake.shape[0] * 2 < 50
        fake.t_()
    guards = trace.finish()
    assert admits(guards, x=torch.ones(24, 100)) and not admits(guards, x=torch.ones(100, 24))


def test_a_size_that_was_specialised_after_all() -> None:
    trace = Trace()
    x = trace.tensor(X, torch.ones(4, 3), [DYNAMIC, DYNAMIC])
    assert int(x.shape[0]) == 4
    guards = trace.finish()
    assert admits(guards, x=torch.ones(4, 9)) and not admits(guards, x=torch.ones(5, 9))


def test_sizes_of_one_are_specialised() -> None:
    trace = Trace()
    trace.tensor(X, torch.ones(1, 3), [DYNAMIC, DYNAMIC])
    guards = trace.finish()
    assert admits(guards, x=torch.ones(1, 5)) and not admits(guards, x=torch.ones(2, 5))


def test_a_symbolic_number_alone() -> None:
    trace = Trace()
    n = trace.number(N, 12)
    assert n > 7
    guards = trace.finish()
    assert admits(guards, n=8) and admits(guards, n=10**6) and not admits(guards, n=7)
    assert not admits(guards, n=True) and not admits(guards, n=2**80)


def test_a_symbolic_float_is_checked_in_python() -> None:
    trace = Trace()
    f = trace.number(N, 2.5)
    assert f > 1.0
    guards = trace.finish()
    assert any(isinstance(guard, PythonCheck) for guard in guards)
    assert admits(guards, n=1.5) and not admits(guards, n=0.5)
    assert not admits(guards, n=float("nan")) and not admits(guards, n=2)


def test_nothing_symbolic_nothing_guarded() -> None:
    trace = Trace()
    trace.tensor(X, torch.ones(4, 6), [STATIC, STATIC])
    assert shape_guards(trace.env, trace.inputs) == []


def test_a_symbol_from_nowhere_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing outside the trace"):
        env = ShapeEnv()
        u = env.create_unbacked_symint()
        shape_guards(env, [(N, u + 1), (LocalSource("m"), u + 2)])


def test_sources_go_through_torch_and_come_back() -> None:
    assert our_source(torch_source(X)) == X
    trace = Trace()
    fake = trace.tensor(X, torch.ones(4, 6), [DYNAMIC, STATIC])
    (theirs,) = trace.env.var_to_sources[fake.shape[0].node.expr]
    assert our_source(theirs) == TensorSizeSource(X, 0)
    assert our_source(object()) is None


def test_guards_on_shapes_read_well() -> None:
    trace = Trace()
    x = trace.tensor(X, torch.ones(4, 6), [DYNAMIC, STATIC])
    assert x.shape[0] % 2 == 0
    texts = [guard.describe() for guard in shape_guards(trace.env, trace.inputs)]
    assert any("x.size(0)" in text and "% 2" in text for text in texts), texts


# -- programs ------------------------------------------------------------------------------------------------------

a, b, c = (sympy.Symbol(name, integer=True) for name in "abc")

arithmetic = st.recursive(
    st.one_of(st.sampled_from([a, b, c]), st.integers(-20, 20).map(sympy.Integer)),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from([sympy.Add, sympy.Mul, Max, Min]), inner, inner),
        st.tuples(st.sampled_from([FloorDiv, PythonMod]), inner, st.integers(1, 9).map(sympy.Integer)),
    ).map(lambda parts: parts[0](*parts[1:])),
    max_leaves=6,
)
relations = st.recursive(
    st.tuples(
        st.sampled_from([sympy.Eq, sympy.Ne, sympy.Lt, sympy.Le, sympy.Gt, sympy.Ge]), arithmetic, arithmetic
    ).map(lambda parts: parts[0](parts[1], parts[2])),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from([sympy.And, sympy.Or]), inner, inner).map(lambda parts: parts[0](parts[1], parts[2])),
        inner.map(sympy.Not),
    ),
    max_leaves=3,
)
PLACES = {a: X, b: Y, c: N}


@settings(max_examples=200, deadline=None)
@given(relations, st.integers(-30, 30), st.integers(-30, 30), st.integers(-30, 30))
def test_programs_compute_what_sympy_means(relation: Any, x: int, y: int, n: int) -> None:
    guard = shape_guard(relation, (a, b, c), PLACES)
    assert isinstance(guard, ShapeExpr)
    assert admits([guard], x=x, y=y, n=n) == bool(relation.subs({a: x, b: y, c: n}))


@pytest.mark.parametrize(
    ("expr", "values", "expected"),
    [
        (sympy.Eq(FloorDiv(a, b), -3), (-7, 3), True),
        (sympy.Eq(PythonMod(a, b), 2), (-7, 3), True),
        (sympy.Eq(Mod(a, b), 1), (7, 3), True),
        (sympy.Eq(CleanDiv(a, b), 3), (9, 3), True),
        (sympy.Eq(ModularIndexing(a, 4, 5), 2), (28, 0), True),
        (sympy.Eq(PowByNatural(a, sympy.Integer(3)), 27), (3, 0), True),
        (sympy.Eq(a**2, b), (5, 25), True),
        (sympy.Eq(FloorDiv(a, b), 1), (5, 0), False),
        (sympy.Gt(a * b, 0), (2**40, 2**40), False),
    ],
)
def test_operations_one_by_one(expr: Any, values: tuple[int, int], expected: bool) -> None:
    program = compile_program(expr, (a, b))
    assert program is not None
    frame = Frame(x=values[0], y=values[1])
    assert frame.holds(ShapeExpr((X, Y), str(expr), lambda *_: expected, program)) is expected


def test_what_the_machine_cannot_say_goes_to_python() -> None:
    for expr in (sympy.Gt(a / b, 2), sympy.Gt(a**b, 2), sympy.Gt(a, sympy.Integer(2) ** 70)):
        guard = shape_guard(expr, (a, b), PLACES)
        assert isinstance(guard, ShapeExpr) and guard.program is None
        assert Frame(x=9, y=3).tree(guard).num_python == 1
        assert Frame(x=9, y=3).holds(guard) == bool(expr.subs({a: 9, b: 3}))


def test_deep_expressions_go_to_python_too() -> None:
    expr: Any = a
    for i in range(1, 100):
        expr = FloorDiv(sympy.Integer(10**9 + i), expr + i, evaluate=False)
    guard = shape_guard(sympy.Ge(expr, 0), (a, b), PLACES)
    assert isinstance(guard, ShapeExpr)
    assert Frame(x=9, y=3).tree(guard).num_guards == 1
