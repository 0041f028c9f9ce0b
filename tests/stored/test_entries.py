"""Stored entries: a program that was compiled starts compiled in the next process, and what does not fit is traced."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from tests.differential import assert_same

import fxjit
from fxjit import config
from fxjit.backends.store.artifacts import FACTS, KernelCache
from fxjit.counters import counters
from fxjit.errors import ConstraintViolationError
from fxjit.frontend.entries import skip_reasons, stats

NewProcess = Callable[[str], ModuleType]
HEAD = "import torch\nfrom torch import nn\n"

#: Programs: each has `make()`, which gives a callable and its arguments.
PROGRAMS: dict[str, str] = {
    "a function": """
def fn(x, y):
    return (x * 2 + y).relu().sum(-1)
def make():
    return fn, (torch.linspace(-1, 1, 12).view(3, 4), torch.ones(4))
""",
    "a module": """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(4), nn.Linear(4, 4)
    def forward(self, x):
        return x + nn.functional.gelu(self.linear(self.norm(x)))
class Net(nn.Module):
    scale = 1.5
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.blocks, self.options = nn.Sequential(Block(), Block()), {"factor": 0.5, "add": True}
    def forward(self, x):
        x = self.blocks(x) * self.options["factor"]
        return x + self.scale if self.options["add"] else x
def make():
    return Net(), (torch.linspace(-1, 1, 12).view(3, 4).requires_grad_(),)
""",
    "a break under a method of torch's that is called by hand": """
class Layer(nn.Module):
    def __call__(self, *args):
        return super().__call__(*args) + 1
    def forward(self, x):
        y = x.sin()
        print("between")
        return y * 2
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = Layer()
    def forward(self, x):
        return self.layer(x) + x
def make():
    return Net(), (torch.linspace(-1, 1, 12),)
""",
    "a check of the data": """
def fn(x, y):
    x.add_(1)
    if (y < 0).any():
        raise ValueError("negative")
    return y.sqrt() + x
def make():
    return fn, (torch.ones(3), torch.linspace(0, 1, 3))
""",
    "classes that are made inside functions": """
def build():
    class Base:
        scale = 2.0
        def scaled(self, x, by=1.0):
            return x * self.scale * by
    class Field(Base, nn.Module):
        def __init__(self, size):
            super().__init__()
            torch.manual_seed(0)
            self.linear = nn.Linear(size, size)
        def forward(self, x):
            return self.scaled(torch.tanh(self.linear(x)))
    class Point:
        def __init__(self, x):
            self.x = x
    def fn(x, field, point):
        made = Point(field(x) + point.x)
        made.kind = type(point) is Point and type(field) is not Base
        return made.x * (2 if made.kind else 3) + isinstance(field, Base)
    return fn, Field, Point
fn, *made = build()
def make():
    field, point = made
    return fn, (torch.linspace(-1, 1, 4), field(4), point(torch.ones(4)))
""",
    "branches of torch.cond": """
def fn(x, y):
    return torch.cond(x.sum() > 0, lambda x, y: (x.sin() + y,), lambda x, y: (x.cos() * y,), (x, y))[0]
def make():
    return fn, (torch.linspace(-1, 3, 12).requires_grad_(), torch.linspace(0, 1, 12).requires_grad_())
""",
    "transforms of functions, inside of one another": """
def fn(x, scale):
    weight = scale * 2
    slope = torch.vmap(torch.func.grad(lambda row: (row.sin() * weight).sum()))(x)
    return slope, torch.func.jacrev(lambda x: (x ** 2).sum(0))(x), torch.func.jvp(torch.cos, (x,), (slope,))
def make():
    return fn, (torch.linspace(-1, 1, 12).view(3, 4), torch.linspace(1, 2, 4))
""",
    "a hook on a tensor of the graph": """
def fn(x):
    y = x * 2
    y.register_hook(lambda gradient: gradient * 3 + x.detach())
    return y.sin().sum()
def make():
    return fn, (torch.linspace(-1, 1, 12).requires_grad_(),)
""",
    "a named tuple, and a method made by exec": """
import collections
Pair = collections.namedtuple("Pair", "first second")
class Scaled:
    pass
namespace = {"FACTOR": 3, "__name__": "made"}
exec("def scale(self, x):\\n    return x * FACTOR", namespace)
Scaled.scale = namespace["scale"]
Scaled.scale.__qualname__ = "Scaled.scale"
def fn(x):
    pair = Pair(x + 1, second=x * 2)
    return pair, Scaled().scale(pair.first) + pair[1]
def make():
    return fn, (torch.linspace(-1, 1, 12),)
""",
    "a break": """
SEEN = []
def fn(x, n):
    y = x.sin() * n
    SEEN.append(y.shape)
    print("between")
    return {"sum": (y + 1).sum(), "all": [y, n]}
def make():
    return fn, (torch.linspace(-1, 1, 12).requires_grad_(), 3)
""",
    "a branch on data": """
def fn(x):
    y = x.exp()
    if y.sum() > 3:
        return y * 2
    return y - 1
def make():
    return fn, (torch.ones(4),)
""",
    "a closure and helpers": """
FACTOR = 3.0
def helper(x, by=2):
    return x * by + FACTOR
def outer(k):
    def fn(x):
        return helper(x).tanh() + helper(x, by=k)
    return fn
def make():
    return outer(5), (torch.linspace(-1, 1, 6).requires_grad_(),)
""",
    "functions made by others": """
def made(k):
    def fn(x):
        return x * k
    return fn
def switch(first, second):
    return lambda x, flag=False: (first if flag else second)(x)
triple, half = made(3.0), lambda x: x / 2
chosen = switch(triple, half)
class Net(nn.Module):
    def forward(self, x):
        return chosen(x, True) + chosen(nn.functional.max_pool1d(half(triple(x)), 2).sum())
def make():
    return Net(), (torch.linspace(-1, 1, 12).view(1, 3, 4).requires_grad_(),)
""",
    "modules of a class of their own": """
import torch._VF as VF
def fn(x):
    import math
    if torch.backends.mkldnn.is_available:
        x = x * math.e
    return VF.tanh(x)
def make():
    return fn, (torch.linspace(-1, 1, 12).requires_grad_(),)
""",
    "arguments that are written to": """
class Box:
    pass
def fn(x, out, box):
    out.append(x + 1)
    box.last = x * 2
    x.mul_(3)
    return x.sum()
def make():
    return fn, (torch.ones(4), [1], Box())
""",
    "containers": """
from collections import namedtuple
from dataclasses import dataclass
Pair = namedtuple("Pair", "a b")
@dataclass
class Config:
    width: int = 3
    name: str = "net"
def fn(pair, config, many):
    total = pair.a.float() * config.width
    for name, each in many.items():
        total = total + each * len(name)
    return total, pair, f"{config.name}"
def make():
    return fn, (Pair(torch.arange(4), 2), Config(), {"one": torch.ones(4), "three": torch.ones(4, dtype=torch.float64)})
""",
    "breaks inside callees": """
OFFSET = 1.0
def inner(x, n):
    y = x.sin() * n
    with torch.no_grad():
        print("inside")
        z = y + 2
    return (lambda v: v * y)(z) + OFFSET
def outer(x):
    return inner(x + 1, 2).exp()
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = 3.0
    def forward(self, x):
        y = outer(x) * self.factor
        return y - 1 if y.sum() > 0 else y
def make():
    return Net(), (torch.linspace(-1, 1, 12).requires_grad_(),)
""",
    "a graph in parts": """
import functools
@functools.lru_cache(maxsize=4)
def factor(n):
    return n * 2.0
class Table:
    @staticmethod
    @functools.cache
    def row(n):
        return torch.arange(n).float()
def fn(x, y):
    with torch.inference_mode():
        z = x.detach() * factor(3)
    return (x * Table.row(4)).sin(), [(y * factor(5)).cos()], z * 2
def make():
    return fn, (torch.linspace(-1, 1, 4).requires_grad_(), torch.ones(4).requires_grad_())
""",
    "what no name of its own leads to": """
import abc, collections.abc, dataclasses, datetime, decimal, fractions, functools, inspect, logging, os, pathlib, re, typing
LOG, PATTERN, NAMES = logging.getLogger("tests.stored"), re.compile("a+"), {"aa": 2.0}
class Shape(abc.ABC):
    pass
class Square:
    pass
@dataclasses.dataclass
class Settings:
    width: int = 3
    height: int = 4
def keyword(x, *, by=1.0):
    return x * by
def annotated(x: torch.Tensor, scale: typing.Optional[float] = 2.5, *sizes: list[int]) -> "torch.Tensor | None":
    return x
SIGNATURE = inspect.signature(annotated)
OPAQUE = (datetime.timedelta(hours=1), decimal.Decimal("1.50"), fractions.Fraction(1, 3), torch.finfo(torch.bfloat16),
          pathlib.PurePosixPath("a/b"), list[int], int | None)
def twice(fn):
    @functools.wraps(fn)
    def both(*args):
        return fn(fn(*args))
    return both
@twice
def next_one(x):
    return x + 1
def fn(x, settings):
    for each in dataclasses.fields(settings):
        x = x * getattr(settings, each.name)
    if "by" in inspect.signature(keyword).parameters and not LOG.isEnabledFor(logging.CRITICAL + 10):
        x = keyword(x, by=2.0)
    if issubclass(type(settings), Shape) or os.environ.get("FXJIT_TEST_OF_STORED"):
        x = x - 1
    x = x * SIGNATURE.parameters["scale"].default + len(SIGNATURE.parameters)
    for each in OPAQUE:
        x = x + len(repr(each))
    for name, value in NAMES.items():
        if PATTERN.fullmatch(name) and isinstance(name, collections.abc.Sequence):
            x = x + value
    return next_one(x)
def make():
    return fn, (torch.linspace(-1, 1, 4), Settings())
""",
    "a context manager": """
def fn(x):
    with torch.no_grad():
        y = x * 2
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = x @ x
    return y + z.float()
def make():
    return fn, (torch.eye(4).requires_grad_(),)
""",
}  # fmt: skip


def gradients(result: object, args: tuple[object, ...]) -> list[torch.Tensor | None]:
    """The gradients of the arguments, where the result has any."""
    leaves = [each for each in torch.utils._pytree.tree_leaves(result) if isinstance(each, torch.Tensor) and each.requires_grad]
    inputs = [each for each in args if isinstance(each, torch.Tensor) and each.requires_grad]
    if not leaves or not inputs:
        return []
    return list(torch.autograd.grad(sum(each.sum() for each in leaves), inputs, allow_unused=True))


def run(module: ModuleType, **options: object) -> None:
    """The program, compiled, does what it does in eager."""
    eager, eager_args = module.make()
    expected = eager(*eager_args)
    fn, args = module.make()
    compiled = fxjit.compile(fn, **options)
    for _ in range(2):
        fn, args = module.make()
        given = args if not isinstance(fn, torch.nn.Module) else (args[0],)
        found = compiled(*given)
        assert_same(found, expected, rtol=1e-5)
        assert_same([vars(each) if type(each).__name__ == "Box" else each for each in given],
                    [vars(each) if type(each).__name__ == "Box" else each for each in eager_args], rtol=1e-5)
        assert_same(gradients(found, given), gradients(expected, eager_args), rtol=1e-5)
        eager, eager_args = module.make()
        expected = eager(*eager_args)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("backend", ["native", "eager"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_starts_compiled(new_process: NewProcess, traces: list[str], program: str, backend: str) -> None:
    run(new_process(HEAD + PROGRAMS[program]), backend=backend)
    assert traces
    traces.clear()
    run(new_process(HEAD + PROGRAMS[program]), backend=backend)
    assert not traces and counters["cache"]["entry hit"]


AROUND_A_BLOCK = HEAD + """
def fn(x, n):
    y = (x.sin() * n).relu()
    for i in range(n):
        print("in the loop")
        last = y + i
    return (last.cos() * 3).relu() + y
def make():
    return fn, (torch.linspace(-1, 1, 12).requires_grad_(), 2)
"""


def test_what_stands_around_a_block_that_python_runs_starts_compiled(new_process: NewProcess, traces: list[str]) -> None:
    with config.patch(compile_around_blocks=True):
        run(new_process(AROUND_A_BLOCK), backend="eager")
        assert traces
        traces.clear()
        run(new_process(AROUND_A_BLOCK), backend="eager")
    assert not traces and counters["cache"]["entry hit"]


_INSIDE = "classes that are made inside functions"
#: A program -> what to write in its place: each makes an entry that was stored wrong.
CHANGES: dict[str, tuple[str, str, str]] = {
    "a constant of the code": ("a function", "* 2", "* 3"),
    "an attribute of the class": ("a module", "scale = 1.5", "scale = 2.5"),
    "an item of a dict": ("a module", '"factor": 0.5', '"factor": 0.25'),
    "an item that decides a branch": ("a module", '"add": True', '"add": False'),
    "a method": ("a module", "return x + nn.functional", "return x - nn.functional"),
    "a part of another class": ("a module", "nn.LayerNorm(4)", "nn.Identity()"),
    "a hook": ("a module", "self.blocks, self.options =",
               "self.register_forward_hook(lambda m, i, o: o * 7)\n        self.blocks, self.options ="),
    "a global": ("a closure and helpers", "FACTOR = 3.0", "FACTOR = 4.0"),
    "a default": ("a closure and helpers", "by=2", "by=4"),
    "a cell": ("a closure and helpers", "outer(5)", "outer(6)"),
    "the code of a helper": ("a closure and helpers", "x * by + FACTOR", "x * by - FACTOR"),
    "a helper that another function replaces": (
        "a closure and helpers", "def outer", "def other(x, by=2):\n    return x / by\nhelper = other\ndef outer"),
    "what a function was made with": ("functions made by others", "made(3.0)", "made(4.0)"),
    "what a function made by others calls": ("functions made by others", "x / 2", "x / 4"),
    "the class of a module": ("modules of a class of their own", "import torch._VF as VF",
                              "import types\nVF = types.SimpleNamespace(tanh=torch.sin)"),
    "the code of a callee that breaks": ("breaks inside callees", "z = y + 2", "z = y - 2"),
    "the code of what calls it": ("breaks inside callees", "inner(x + 1, 2)", "inner(x + 2, 2)"),
    "a global that it reads after the break": ("breaks inside callees", "OFFSET = 1.0", "OFFSET = 2.0"),
    "the function under a cache": ("a graph in parts", "return n * 2.0", "return n * 3.0"),
    "a size of a cache": ("a graph in parts", "maxsize=4", "maxsize=0"),
    "a part": ("a graph in parts", "torch.inference_mode()", "torch.no_grad()"),
    "an argument's number": ("a break", "requires_grad_(), 3", "requires_grad_(), 4"),
    "an argument's type": ("containers", "torch.ones(4, dtype=torch.float64)", "torch.ones(4, dtype=torch.float16)"),
    "an argument's size": ("a function", "torch.ones(4))", "torch.ones(3, 4))"),
    "a field of a dataclass": ("what no name of its own leads to", "height: int = 4", "height: int = 4\n    depth: int = 5"),
    "a parameter's name": ("what no name of its own leads to", "*, by=1.0", "*, by=1.0, other=2"),
    "a default in a signature": ("what no name of its own leads to", "= 2.5", "= 3.5"),
    "an annotation in a signature": ("what no name of its own leads to", "Optional[float]", "Optional[int]"),
    "a decimal number": ("what no name of its own leads to", '"1.50"', '"1.5"'),
    "a path": ("what no name of its own leads to", '"a/b"', '"a/bc"'),
    "a pattern": ("what no name of its own leads to", '"a+"', '"b+"'),
    "what a decorator wraps": ("what no name of its own leads to", "return x + 1", "return x + 2"),
    "a field": ("containers", "width: int = 3", "width: int = 5"),
    "the order of keys": ("containers", '"one": torch.ones(4)', '"zero": torch.ones(4)'),
    "the class of an argument": ("arguments that are written to", "class Box:\n    pass",
                                 "class Box:\n    def __setattr__(self, name, value):\n"
                                 "        object.__setattr__(self, name, value + 1)"),
    "what is done after a check": ("a check of the data", "y.sqrt() + x", "y.sqrt() - x"),
    "an attribute of a class inside a function": (_INSIDE, "scale = 2.0", "scale = 4.0"),
    "a method of a class inside a function": (_INSIDE, "self.scale * by", "self.scale + by"),
    "a default of such a method": (_INSIDE, "by=1.0", "by=3.0"),
    "the bases of a class inside a function": (_INSIDE, "class Field(Base, nn.Module)", "class Field(nn.Module, Base)"),
    "the name of a class inside a function": (_INSIDE, "Base", "Other"),
    "two classes that were one": (_INSIDE, "*made = build()", "*made = build()\nmade[1] = build()[2]"),
    "torch's function, replaced": ("a module", "def make", "nn.functional.gelu = lambda x: x * 5\ndef make"),
    "torch's method, replaced": ("a module", "def make", "nn.Linear.forward = lambda self, x: x * 5\ndef make"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_between_processes_is_traced(
    new_process: NewProcess, traces: list[str], monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    program, before, after = CHANGES[change]
    monkeypatch.setattr(torch.nn.functional, "gelu", torch.nn.functional.gelu)  # put back what programs replace
    monkeypatch.setattr(torch.nn.Linear, "forward", torch.nn.Linear.forward)
    text = HEAD + PROGRAMS[program]
    assert before in text
    run(new_process(text), backend="eager")
    traces.clear()
    run(new_process(text.replace(before, after)), backend="eager")
    assert traces


SKIPS = HEAD + """
class Manager:
    def __enter__(self):
        return self
    def __exit__(self, *error):
        return False
MANAGER, BREAKS = Manager(), True
def given_up(x):
    with MANAGER:
        if BREAKS:
            print("inside")
        return x + 1
def nothing(n):
    return n * FACTOR
FACTOR = 3
def make():
    return None
"""


def call_skips(module: ModuleType) -> int:
    """Each function does what eager's does; how many frames were given up."""
    skipped = counters["frames"]["skipped"]
    for fn, given in ((module.given_up, torch.ones(3)), (module.nothing, 4)):
        assert_same(fxjit.compile(fn, backend="eager")(given), fn(given))
    return counters["frames"]["skipped"] - skipped


def test_what_was_given_up_runs_as_it_stands(new_process: NewProcess, traces: list[str]) -> None:
    """With the same report, and the same mark where there was one, in the second process; where a fact is another, it is
    traced."""
    counters.clear()
    assert call_skips(new_process(SKIPS)) == 2 and traces == ["given_up", "nothing"]
    causes = dict(counters["skip_cause"])
    assert causes and not counters["graph_break"]
    traces.clear()
    counters.clear()
    again = new_process(SKIPS)
    assert call_skips(again) == 2 and counters["skip_cause"] == causes
    assert not traces and counters["cache"]["skip hit"] == 2
    assert "with" in skip_reasons(again.given_up.__code__)[0] and not skip_reasons(again.nothing.__code__)
    for before, after, expected in (("BREAKS = Manager(), True", "BREAKS = Manager(), False", ["given_up"]),
                                    ("FACTOR = 3", "FACTOR = 5", ["nothing"])):
        traces.clear()
        call_skips(new_process(SKIPS.replace(before, after)))
        assert traces == expected


STATES: dict[str, Callable[[], object]] = {
    "gradient mode": torch.no_grad,
    "inference mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "a setting of the compiler": lambda: config.patch(compile_budget=59.0),
    "a setting of the front end": lambda: config.patch(capture_scalar_outputs=True),
}


@pytest.mark.parametrize("state", STATES)
def test_another_state_of_the_process_is_traced(new_process: NewProcess, traces: list[str], state: str) -> None:
    text = HEAD + PROGRAMS["a module"]
    run(new_process(text), backend="eager")
    traces.clear()
    module = new_process(text)
    with STATES[state]():  # type: ignore[attr-defined]  # a context manager
        eager, args = module.make()
        compiled = fxjit.compile(module.make()[0], backend="eager")
        assert_same(compiled(*args), eager(*args), rtol=1e-2)
    assert traces


def test_graphs_that_hold_others_are_told_apart(new_process: NewProcess) -> None:
    text = HEAD + """
def mapped(x):
    return torch.vmap(lambda row: row.{name}() * row.sum({axis}))(x)
def chosen(x):
    return torch.cond(x.sum() > 0, lambda x: x.{name}(), lambda x: x.sum({axis}, keepdim=True) + x, (x,))
"""
    x = torch.linspace(-1, 1.5, 12).view(3, 2, 2).requires_grad_()
    for name, axis in (("sin", 0), ("cos", 0), ("sin", 1)):
        for function in ("mapped", "chosen"):
            for at in (x, x.detach(), -x.detach()):
                eager = getattr(new_process(text.format(name=name, axis=axis)), function)
                assert_same(fxjit.compile(eager)(at), eager(at), rtol=1e-5)


def test_options_have_entries_of_their_own(new_process: NewProcess, traces: list[str]) -> None:
    text = HEAD + PROGRAMS["a function"]
    for options in ({}, {"dynamic": True}, {"fullgraph": True}):
        traces.clear()
        run(new_process(text), **options)
        assert traces == ["fn"]
        traces.clear()
        run(new_process(text), **options)
        assert not traces


def test_sizes_that_vary_are_found_again(new_process: NewProcess, traces: list[str]) -> None:
    text = HEAD + PROGRAMS["a function"]
    for expected in (["fn", "fn"], []):
        traces.clear()
        module = new_process(text)
        compiled = fxjit.compile(module.fn)
        for size in (3, 5, 7):
            x, y = torch.ones(size, 4), torch.ones(4)
            assert_same(compiled(x, y), module.fn(x, y), rtol=1e-5)
        assert traces == expected


def test_breaks_are_counted_as_where_they_were_traced(new_process: NewProcess, traces: list[str]) -> None:
    found = []
    for _ in range(2):
        traces.clear()
        counters.clear()
        run(new_process(HEAD + PROGRAMS["breaks inside callees"]))
        found.append(dict(counters["graph_break"]))
    assert not traces
    assert found[0] == found[1] != {}


@pytest.mark.parametrize("program", ["a break", "breaks inside callees"])
def test_a_break_that_is_an_error_now_is_raised(new_process: NewProcess, program: str) -> None:
    run(new_process(HEAD + PROGRAMS[program]), backend="eager")
    for _ in range(2):
        fn, args = new_process(HEAD + PROGRAMS[program]).make()
        with fxjit.error_on_graph_break(True), pytest.raises(fxjit.errors.Unsupported):
            fxjit.compile(fn, backend="eager")(*args)


def test_an_entry_for_one_size_comes_before_one_for_any(new_process: NewProcess, traces: list[str]) -> None:
    text = HEAD + PROGRAMS["a function"]
    for expected in (["fn", "fn"], []):
        traces.clear()
        compiled = fxjit.compile(new_process(text).fn)
        for size in (3, 5, 6):
            assert_same(compiled(torch.ones(size, 4), torch.ones(4)), torch.full((size,), 12.0))
        assert traces == expected
        assert stats().entries == 2


def test_an_entry_for_one_number_comes_before_one_for_any(new_process: NewProcess, traces: list[str]) -> None:
    text = HEAD + "FACTOR = 2\ndef fn(x):\n    return x * FACTOR\n"
    for expected in (["fn", "fn"], []):
        traces.clear()
        module = new_process(text)
        compiled = fxjit.compile(module.fn)
        for module.FACTOR in (2, 3, 4):
            assert_same(compiled(torch.ones(2)), torch.full((2,), float(module.FACTOR)))
        assert traces == expected
        assert stats().entries == 2


def test_numbers_made_of_several_are_found_again(new_process: NewProcess, traces: list[str]) -> None:
    text = HEAD + "import math\ndef fn(x, a, b):\n    return x * math.gcd(a, math.gcd(b, 60)) * math.hypot(a, b)\n"
    for expected in (["fn", "fn"], []):
        traces.clear()
        module = new_process(text)
        compiled = fxjit.compile(module.fn)
        for a, b in ((12, 4), (9, 3), (30, 15), (9, 6)):
            assert_same(compiled(torch.ones(2), a, b), module.fn(torch.ones(2), a, b))
        assert traces == expected


@pytest.mark.parametrize("log", ["graph_breaks", "graph_code", "output_code"])
def test_who_wants_to_see_the_stages_has_them(new_process: NewProcess, traces: list[str], log: str) -> None:
    text = HEAD + PROGRAMS["a break"]
    run(new_process(text))
    for name, expected in ((log, True), (None, False)):
        traces.clear()
        if name is not None:
            fxjit.set_logs(name)
        try:
            run(new_process(text))
        finally:
            fxjit.set_logs()
        assert bool(traces) == expected


def test_what_is_promised_of_sizes_is_checked_by_a_trace(new_process: NewProcess, traces: list[str]) -> None:
    """A range that does not hold and a marked size that is a constant raise as they do where nothing is stored, though stored
    entries fit; what holds starts compiled."""
    text = HEAD + """
def fn(x):
    return x * 2 + x.shape[0]
def fixed(x):
    return x * 2 if x.shape[0] == 3 else x
"""
    for turn in range(2):
        traces.clear()
        module = new_process(text)
        compiled, decides = fxjit.compile(module.fn), fxjit.compile(module.fixed)
        for rows in (3, 5):
            x = torch.ones(rows, 2)
            fxjit.maybe_mark_dynamic(x, 0, min=2, max=10)
            assert_same(compiled(x), module.fn(x))
        assert_same(decides(torch.ones(3, 2)), torch.full((3, 2), 2.0))
        assert ("fn" in traces, "fixed" in traces) == (turn == 0, turn == 0)
        for name, said in (("fn", "sizes from 6 to any"), ("fixed", "marked dynamic.*constant 3")):
            module, x = new_process(text), torch.ones(3, 2)
            if name == "fn":
                fxjit.maybe_mark_dynamic(x, 0, min=6)
            else:
                fxjit.mark_dynamic(x, 0)
            with pytest.raises(ConstraintViolationError, match=said):
                fxjit.compile(getattr(module, name))(x)


def test_a_second_derivative_and_shared_memory(new_process: NewProcess, traces: list[str]) -> None:
    """What runs the captured graph again has it from the entry."""
    text = HEAD + """
def cube(x):
    return (x * x * x).sum()
def add(x, y):
    x.add_(1)
    return x + y * 2
"""
    for expected in (["cube", "add"], []):
        traces.clear()
        module = new_process(text)
        x = torch.linspace(1, 2, 5, requires_grad=True)
        (first,) = torch.autograd.grad(fxjit.compile(module.cube)(x), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        torch.testing.assert_close(second, 6 * x)
        compiled = fxjit.compile(module.add)
        assert_same(compiled(torch.ones(4), torch.ones(4)), torch.full((4,), 4.0))
        shared, expected_of = torch.ones(6), torch.ones(6)
        assert_same(compiled(shared[:4], shared[2:]), module.add(expected_of[:4], expected_of[2:]))
        assert traces == expected


def test_a_stored_speculation_is_given_up(new_process: NewProcess, traces: list[str]) -> None:
    """A check of the data that often fails ends the speculation in the process that starts compiled, too."""
    text = HEAD + PROGRAMS["a check of the data"]
    for expected in (["fn"], []):
        traces.clear()
        module = new_process(text)
        compiled = fxjit.compile(module.fn)
        assert_same(compiled(torch.ones(3), torch.ones(3)), torch.full((3,), 3.0))
        assert traces == expected
    counters.clear()
    for turn in range(5):
        x = torch.ones(3)
        with pytest.raises(ValueError, match="negative"):
            compiled(x, -torch.ones(3))
        assert_same(x, torch.full((3,), 2.0))
        assert_same(compiled(torch.ones(3), torch.ones(3)), torch.full((3,), 3.0))
        assert counters["deoptimizations"]["fn"] == min(turn + 1, 3)
    assert traces[:1] == ["fn"]


_MODULE = """
def write(z):
    global v
    v = z
"""
_PROGRAM = """
def by_module(x):
    global v
    first, v = MOD.v, 3
    return x * MOD.v, first
def by_function(x):
    first = v
    write(3)
    return x * v, first
def alone(x):
    return x * v
"""


def test_a_function_with_the_globals_of_another_module(traces: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """One text whose globals are those of a module that it names, and then not, or the other way round; what names no module
    starts compiled."""

    def outcomes(name: str, is_module: bool, compiled: bool) -> object:
        module = ModuleType("fxjit_test_module")
        monkeypatch.setitem(sys.modules, "fxjit_test_module", module)
        exec(_MODULE, vars(module))
        home = vars(module) if is_module else {"__name__": "elsewhere", "write": module.write}
        home |= {"MOD": module}
        exec(_PROGRAM, home)
        home["v"] = 10
        module.v = 2
        fn = fxjit.compile(home[name], backend="eager") if compiled else home[name]
        return fn(torch.ones(1)), module.v, home["v"]

    for first in (True, False):
        for name in ("by_module", "by_function", "alone"):
            for is_module in (first, not first, first):
                fxjit.reset()
                traces.clear()
                assert_same(outcomes(name, is_module, True), outcomes(name, is_module, False))
            assert not traces


def test_what_cannot_be_said_is_traced_each_time(new_process: NewProcess, traces: list[str]) -> None:
    """An object of the program's own by its identity, the order of a set of texts, the hash of a text."""
    text = HEAD + """
class Key:
    pass
KEY = Key()
TABLE = {KEY: 1.5}
def by_identity(x, key):
    return x + TABLE[key]
def by_order(x):
    for name in {"a", "b", "c"}:
        x = x * len(name) + ord(name)
    return x
def by_hash(x):
    return x + hash("text") % 5
def sums(x):
    total = x
    for number in {8, 0, 2}:
        total = total * 2 + number
    for name in {"only"}:
        total = total + len(name)
    return total + max({"a", "bcd"} - {"x"}, key=None).count("b") + len(sorted({"a", "b"} | {"c"}))
def make():
    return None
"""
    for turn in range(2):
        traces.clear()
        module = new_process(text)
        x = torch.ones(3)
        assert_same(fxjit.compile(module.by_identity)(x, module.KEY), x + 1.5)
        assert_same(fxjit.compile(module.by_order)(x), module.by_order(x))
        assert_same(fxjit.compile(module.by_hash)(x), module.by_hash(x))
        assert traces == ["by_identity", "by_order", "by_hash"]
        assert_same(fxjit.compile(module.sums)(x), module.sums(x))
        assert ("sums" in traces) == (turn == 0), "numbers have one order in all processes"


def test_results_that_are_constants_of_the_process_are_asked_for_again(new_process: NewProcess, traces: list[str]) -> None:
    """A marked function's result, under a cache too: the same starts compiled, another is traced, and so is what it raises."""
    text = HEAD + """
import functools, os
from torch.compiler import assume_constant_result
@functools.lru_cache
@assume_constant_result
def version(name, *, offset):
    return len(os.environ.get(name, "")) + offset
@assume_constant_result
def may_raise():
    raise ValueError("not here")
def fn(x):
    return x * 2 if version("FXJIT_TEST_RESULT", offset=1) > 2 else x * 3
def caught(x):
    try:
        may_raise()
    except ValueError:
        return x + 1
    return x
"""
    for value, expected in (("ab", ["fn", "caught"]), ("ab", ["caught"]), ("a", ["fn", "caught"]), ("ab", ["caught"])):
        traces.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("FXJIT_TEST_RESULT", value)
            module = new_process(text)
            for fn in (module.fn, module.caught):
                assert_same(fxjit.compile(fn)(torch.ones(3)), fn(torch.ones(3)))
        assert traces == expected, value


def test_an_operator_of_another_package_is_referred_to_with_its_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    from fxjit.stored import objects

    monkeypatch.setattr(objects, "operator_text", lambda operator: f"{operator} of 1.0")
    for operator in (torch.ops.quantized.add, torch.ops.quantized.add.default):
        reference = objects.refer(operator)
        assert objects.find(reference) is operator
        with monkeypatch.context() as changed:
            changed.setattr(objects, "operator_text", lambda operator: f"{operator} of 2.0")
            with pytest.raises(objects.Changed, match="another one"):
                objects.find(reference)
    assert objects.find(objects.refer(torch.ops.aten.add)) is torch.ops.aten.add
    with pytest.raises(objects.Changed, match="there is no"):
        objects.find(["operator", "aten.no_such_operator", ""])


def entry_files(store: Path) -> list[Path]:
    return [file for file in store.glob("*.json") if '"sources"' in file.read_text()]


def damage_bytes(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[:200] + b"#" + content[201:])


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:300])


def rewrite(field: str, by: object) -> Callable[[Path], None]:
    """Another content under a right digest."""
    def write(file: Path) -> None:
        cache = KernelCache(file.parent)
        facts = json.loads(cache.get(file.stem, FACTS) or b"")
        facts["entries"][0][field] = by
        cache.put(file.stem, FACTS, json.dumps(facts).encode())
    return write


def other_facts(file: Path) -> None:
    KernelCache(file.parent).put(file.stem, FACTS, b"[1, 2]")


def no_graphs(file: Path) -> None:
    for other in set(file.parent.glob("*.json")) - {file}:
        other.unlink()


DAMAGES: dict[str, Callable[[Path], None]] = {
    "a byte": damage_bytes, "cut short": cut_short, "other facts": other_facts, "no sources": rewrite("sources", []),
    "no guards known": rewrite("guards", [["NoGuard", [0]]]), "no code": rewrite("code", {}), "no graph": rewrite("graph", {}),
    "a source of another kind": rewrite("sources", [["Scope", None]]), "graphs removed": no_graphs,
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_traced(new_process: NewProcess, traces: list[str], store: Path, damage: str) -> None:
    text, backend = HEAD + PROGRAMS["a function"], "native" if damage == "graphs removed" else "eager"
    run(new_process(text), backend=backend)
    (file,) = entry_files(store)
    DAMAGES[damage](file)
    traces.clear()
    run(new_process(text), backend=backend)
    assert traces == ["fn"]
    traces.clear()
    run(new_process(text), backend=backend)
    assert not traces


def test_without_the_setting_no_entry_is_kept(new_process: NewProcess, store: Path) -> None:
    with config.patch(store_entries=False):
        run(new_process(HEAD + PROGRAMS["a function"]))
    assert not entry_files(store)


def test_a_second_process_does_not_import_the_compiler(tmp_path: Path) -> None:
    """Two processes and one folder; in the second, importing the pipeline is an error, and so is what takes long to import:
    AOTAutograd's classes, sympy."""
    program = tmp_path / "program.py"
    program.write_text(HEAD + PROGRAMS["a break"] + """
import sys, fxjit
if sys.argv[1:] == ["again"]:
    sys.modules.update(dict.fromkeys(["fxjit.pipeline", "torch._functorch._aot_autograd.schemas", "sympy"]))
fn, args = make()
expected, found = fn(*args), fxjit.compile(fn)(*args)
for each in (expected, found):
    each["gradient"] = torch.autograd.grad(each["sum"], args[0])[0]
assert torch.allclose(found["gradient"], expected["gradient"]) and torch.allclose(found["sum"], expected["sum"])
print(fxjit.counters["cache"]["entry hit"])
""")
    environment = config.child_environment(FXJIT_CACHE_DIR=str(tmp_path / "cache"), FXJIT_STORE_ENTRIES="1")
    hits = []
    for again in ([], ["again"]):
        done = subprocess.run([sys.executable, "-W", "ignore", str(program), *again], env=environment, capture_output=True,
                              text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        hits.append(int(done.stdout.split()[-1]))
    assert hits == [0, 2]


CUT = HEAD + """
class Cut(nn.Module):
    def __init__(self, span):
        super().__init__()
        self.span = span
    def cut(self, x):
        if self.span is None:
            return x + 1
        for _ in range(2):  # in which a break gives the function up
            x = x[:, :int(self.span.max().item())]
        return x
    def forward(self, x):
        return self.cut(x.sin()) * 2
"""


def test_an_entry_that_ends_in_a_break_is_for_programs_that_break_there(new_process, traces):
    """What led to the break is behind it, where the entry itself relies on nothing. Another program with the same code, which
    has no break, used the entry, and had three graphs for one."""
    x = torch.linspace(-1, 1, 12).view(3, 4)
    graphs = []
    for span in (torch.tensor([2.0, 1.0]), None, torch.tensor([2.0, 1.0]), None):
        traces.clear()
        counters.clear()
        model = new_process(CUT).Cut(span)
        torch.testing.assert_close(fxjit.compile(model)(x), model(x))
        breaks = sum(counters["graph_break"].values())
        graphs.append((counters["stats"]["unique_graphs"], breaks, bool(traces)))
    assert graphs == [(2, 1, True), (1, 0, True), (2, 1, False), (1, 0, False)]
