"""The annotations that the FAQ and the pages on disabling name, each under our name and, where torch has it, torch's."""

from __future__ import annotations

import sys

import pytest
import torch
import torch._dynamo

import fxjit
from fxjit.errors import Unsupported
from fxjit.testing import CompileCounter, EagerAndRecordGraphs

X = torch.ones(2)


@pytest.fixture(autouse=True)
def fresh():
    fxjit.reset()
    fxjit.counters.clear()


@pytest.fixture(params=["fxjit", "torch.compiler"])
def names(request):
    return fxjit if request.param == "fxjit" else torch.compiler


def captured(fn, *args, **options):
    """The result, and the operators of each graph."""
    backend = EagerAndRecordGraphs()
    result = fxjit.compile(fn, backend=backend, **options)(*args)
    return result, [[node.name for node in graph.graph.nodes if node.op.startswith("call")] for graph in backend.graphs]


def breaks() -> dict[str, int]:
    return dict(fxjit.counters["graph_break"])


DISABLED = "Skip calling `torch.compiler.disable()`d function"
SHALLOW = "Skip inlining `torch.compiler.disable()`d function"


def test_disable_on_methods_of_every_kind(names):
    def called(x):
        return x + 5

    class Thing:
        @names.disable
        def method(self, x):
            return x * 2

        @names.disable(recursive=False)
        def shallow(self, x):
            return called(x) * 2

        @staticmethod
        @names.disable
        def static(x):
            return x + 9

        @classmethod
        @names.disable
        def of_class(cls, x):
            return x + 8

    thing = Thing()

    def fn(x):
        return thing.of_class(thing.static(thing.shallow(thing.method(x + 1) - 1) - 2) - 3) - 4

    result, graphs = captured(fn, X)
    assert torch.equal(result, fn(X))
    assert graphs == [["add"], ["sub"], ["add"], ["sub"], ["sub"], ["sub"]], "`called` is the third"
    assert breaks() == {DISABLED: 3, SHALLOW: 1}
    assert not fxjit.counters["skip"]


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)

    def forward(self, x):
        return self.linear(x) * 3


def test_disable_on_a_class_of_modules(names):
    disabled = names.disable(type("Disabled", (Net,), {"forward": Net.forward}))
    net = disabled()
    result, graphs = captured(lambda x: net(x + 1) - 1, X)
    torch.testing.assert_close(result, net(X + 1) - 1)
    assert graphs == [["add"], ["sub"]]


def test_disable_on_a_module(names):
    net = names.disable(Net())
    result, graphs = captured(lambda x: net(x + 1) - 1, X)
    torch.testing.assert_close(result, net(X + 1) - 1)
    assert graphs == [["add"], ["sub"]]


def test_the_reason_of_disable_is_in_the_report():
    @fxjit.disable(reason="its kernels are hand-written")
    def outside(x):
        return x + 1

    def fn(x):
        return outside(x) + 1

    explanation = fxjit.explain(fn)(X)
    assert "its kernels are hand-written" in explanation.break_reasons[0].explanation
    with pytest.raises(Unsupported, match="its kernels are hand-written"):
        fxjit.compile(fn, backend="eager", fullgraph=True)(X)


def test_allow_in_graph_puts_a_call_in_unseen(names):
    def opaque(x):
        return x.clone().sin_()

    names.allow_in_graph(opaque)

    def fn(x):
        return opaque(x) + 1

    result, graphs = captured(fn, X, fullgraph=True)
    assert torch.equal(result, fn(X))
    assert graphs == [["opaque", "add"]]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("allow", [fxjit.allow_in_graph, torch._dynamo.allow_in_graph], ids=["fxjit", "torch"])
def test_the_escape_hatch_of_the_faq(allow, backend):
    def f(x):
        return allow(torch.vmap(torch.sum))(x)

    x = torch.randn(2, 3)
    torch.testing.assert_close(fxjit.compile(f, backend=backend)(x), x.sum(1))


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_module_in_the_graph_may_return_a_dict_of_its_state(backend):
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x):
            y = self.linear(x)
            return {"out": y, "weight": self.linear.weight, "nested": {"twice": y * 2}}

    layer = fxjit.allow_in_graph(Layer())

    def f(x):
        found = layer(x)
        return found["out"] + found["nested"]["twice"] + found["weight"].sum()

    x = torch.randn(3, 4)
    torch.testing.assert_close(fxjit.compile(f, backend=backend)(x), f(x))


def test_disallow_in_graph_runs_an_operator_eagerly_between_two_graphs():
    def fn(x):
        return torch.sub(x + 1, 1) + 2

    fxjit.disallow_in_graph(torch.sub)
    try:
        result, graphs = captured(fn, X)
    finally:
        fxjit.allow_in_graph(torch.sub)
    assert torch.equal(result, X + 2)
    assert graphs == [["add"], ["add"]]
    fxjit.reset()
    assert captured(fn, X)[1] == [["add", "sub", "add_1"]]


@pytest.mark.parametrize("forbid", [fxjit.forbid_in_graph, torch._dynamo.forbid_in_graph], ids=["fxjit", "torch"])
@pytest.mark.parametrize("fullgraph", [False, True])
def test_forbid_in_graph_raises_in_compiled_code_only(forbid, fullgraph):
    @forbid
    def forbidden(x):
        return x + 1

    assert torch.equal(forbidden(X), X + 1)
    with pytest.raises(Unsupported, match="forbid_in_graph"):
        fxjit.compile(lambda x: forbidden(x) + 1, backend="eager", fullgraph=fullgraph)(X)


def test_assume_constant_result(names):
    calls = []

    @names.assume_constant_result
    def setting(n):
        calls.append(n)
        return n * 2

    backend = EagerAndRecordGraphs()
    compiled = fxjit.compile(lambda x: x * setting(2), backend=backend, fullgraph=True)
    assert torch.equal(compiled(X), X * 4) and torch.equal(compiled(X), X * 4)
    assert calls == [2]


def test_assume_constant_result_of_a_method(names):
    class Config:
        def __init__(self, value):
            self.value = value

        @names.assume_constant_result
        def get(self):
            return self.value

    compiled = fxjit.compile(lambda x, config: x * config.get(), backend="eager", fullgraph=True)
    assert torch.equal(compiled(X, Config(3)), X * 3)
    assert torch.equal(compiled(X, Config(4)), X * 4), "another object is another constant"


def test_substitute_in_graph():
    def original(a, b):
        return sys.getswitchinterval() * 0 + a - b

    @fxjit.substitute_in_graph(original)
    def stand_in(a, b):
        return a + b

    compiled = fxjit.compile(lambda x: original(x, 1), backend="eager", fullgraph=True)
    assert torch.equal(compiled(X), X + 1)
    assert torch.equal(original(X, 1), X - 1)


@pytest.mark.parametrize("as_decorator", [False, True])
def test_error_on_graph_break_can_be_taken_back_inside(as_decorator):
    def lenient(x):
        fxjit.graph_break()
        return x + 1

    if as_decorator:
        lenient = fxjit.error_on_graph_break(False)(lenient)

    def fn(x):
        x = x + 1
        if as_decorator:
            return lenient(x)
        with fxjit.error_on_graph_break(False):
            fxjit.graph_break()
        return x + 1

    with fxjit.error_on_graph_break(True):
        assert torch.equal(fxjit.compile(fn, backend="eager")(X), X + 2)
        fxjit.reset()
        with pytest.raises(Unsupported):
            fxjit.compile(lambda x: (x + 1, fxjit.graph_break()), backend="eager")(X)


@pytest.mark.parametrize("debugger", ["breakpoint", "pdb"])
def test_a_frame_that_calls_a_debugger_is_skipped_rather_than_broken(debugger, monkeypatch):
    import pdb

    seen = []
    monkeypatch.setattr(sys, "breakpointhook", lambda *args: seen.append(set(sys._getframe(1).f_locals)))

    def called(x):
        return x * 2

    def fn(x):
        unused = called(x)  # noqa: F841  # the debugger shows it
        breakpoint()
        return x + 1

    def with_pdb(x, now):
        y = called(x)
        if now:
            pdb.set_trace()
        return y

    counter = CompileCounter()
    if debugger == "breakpoint":
        assert torch.equal(fxjit.compile(fn, backend=counter)(X), X + 1)
        assert seen == [{"x", "unused", "called"}]
    else:
        monkeypatch.setattr(pdb.Pdb, "set_trace", lambda self, *args: seen.append(1))
        compiled = fxjit.compile(with_pdb, backend=counter)
        compiled(X, True)
        assert seen == [1]
    assert counter.frame_count == 1, "what it calls is compiled"
    assert fxjit.counters["skip"] == {"Call of a debugger": 1}


def test_explains_page_is_self_contained(tmp_path):
    def helper(x):
        for _ in range(2):
            x = x + 1
            fxjit.graph_break()
        return x

    def fn(a):
        b = torch.abs(a) + 1
        print("<woo>")
        return helper(b) * 2

    explanation = fxjit.explain(fn)(X)
    assert {reason.user_stack[0].name for reason in explanation.break_reasons} <= {"fn", "helper"}
    page = explanation.to_html(tmp_path / "page.html").read_text()
    for asset in ("http:", "https:", "<script", "src=", "@import", "<link"):
        assert asset not in page
    rows = page.split("<tr")
    row = {name: next(each for each in rows if text in each) for name, text in {
        "compiled": "torch.abs(a) + 1", "broken": "print(&quot;&lt;woo&gt;&quot;)", "skipped": "x = x + 1", "def": "def fn(a)",
        "skipped def": "def helper(x)"}.items()}  # fmt: skip
    assert "style='background:" in row["compiled"]
    assert row["broken"].startswith(" class=break") and "break: Call of a function" in row["broken"]
    assert "class=skipped" in row["skipped"]
    assert "Move the body of the loop" in row["skipped def"], "hints on hover"
    assert "guards" in row["def"] and "a: Tensor float32[2] on cpu" in row["def"]
