"""torch.compile in the same process: its frame evaluator and ours call each other and are both taken off again."""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch")

from fxjit import _C  # noqa: E402
from fxjit.frontend import entries  # noqa: E402


class Key:
    pass


class TorchCount:
    def __init__(self):
        self.graphs = 0

    def __call__(self, gm, example_inputs):
        self.graphs += 1
        return gm.forward


def skipping_torch(asked):
    """A callback with the one rule that matters here: what torch.compile does is not ours to look at."""

    def callback(region, func, code, args, closure, globals_, builtins):
        if globals_.get("__name__", "").startswith("torch."):
            _C.set_flags(code, _C.SKIP_RECURSIVE, region.key)
            return None
        asked.append(code.co_name)
        return None

    return callback


def helper(x):
    return x * 2


@pytest.fixture(autouse=True)
def fresh_torch():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_torch_compile_inside_our_region():
    count, asked = TorchCount(), []

    @torch.compile(backend=count)
    def inner(x):
        return helper(x) + 1

    def outer(x):
        return inner(x) + helper(x)

    compiled = _C.CompiledFunction(outer, _C.Region(Key(), skipping_torch(asked)))
    for _ in range(3):
        assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 5.0))
    assert count.graphs == 1
    assert asked.count("outer") == 3 and asked.count("helper") == 3
    assert not _C.hook_info()["installed"] and not _C.hook_info()["chained"]


def test_our_region_inside_torch_compile():
    count, asked = TorchCount(), []

    def inner(x):
        return helper(x) + 1

    compiled = _C.CompiledFunction(inner, _C.Region(Key(), skipping_torch(asked)))

    @torch.compile(backend=count)
    def outer(x):
        x = x + 1
        x = compiled(x)
        return x * 2

    for _ in range(3):
        assert torch.equal(outer(torch.ones(3)), torch.full((3,), 10.0))
    assert count.graphs >= 2
    info = _C.hook_info()
    assert not info["installed"] and info["threads"] == 0 and not info["chained"]


def test_an_entry_inside_torch_compile_runs_and_is_not_compiled_twice():
    count = TorchCount()
    ran = []

    def graph(x):
        ran.append(1)
        return x * 3

    opaque_graph = _C.DisabledFunction(graph, opaque=True)

    def inner(x):
        return x * 0, opaque_graph

    def generated(x):
        return opaque_graph(x)

    region = _C.Region(Key())
    entries.add(inner.__code__, region.key, _C.Entry(None, generated.__code__))
    compiled = _C.CompiledFunction(inner, region)

    @torch.compile(backend=count)
    def outer(x):
        return compiled(x + 1) + 1

    for _ in range(3):
        assert torch.equal(outer(torch.ones(3)), torch.full((3,), 7.0))
    assert len(ran) == 3
    assert count.graphs <= 2
    assert not _C.hook_info()["installed"]


def test_compiling_inside_torch_compile_is_not_seen_by_torch():
    """The callback is the compiler itself: torch must not try to compile it."""
    count, depth = TorchCount(), []

    def busy(n):
        return n if n == 0 else busy(n - 1)

    def callback(region, func, code, *rest):
        depth.append(busy(20))
        return None

    def inner(x):
        return x + 1

    compiled = _C.CompiledFunction(inner, _C.Region(Key(), callback))

    @torch.compile(backend=count)
    def outer(x):
        return compiled(x * 2) * 2

    outer(torch.ones(2))
    seen = count.graphs
    assert depth and seen <= 3
    assert not _C.hook_info()["installed"]


def test_evaluators_taken_off_in_another_order_than_put_on():
    """A thread is in our region when another thread starts torch.compile, and leaves it before that ends."""
    in_region, in_torch, leave, done = (threading.Event() for _ in range(4))
    errors = []

    def ours():
        in_region.set()
        assert in_torch.wait(60)
        return 1

    def torch_side():
        try:

            @torch.compile(backend="eager")
            def f(x):
                x = x + 1
                wait_here()
                return helper(x)

            @torch.compiler.disable
            def wait_here():
                in_torch.set()
                assert leave.wait(60)

            assert in_region.wait(60)
            assert torch.equal(f(torch.ones(2)), torch.full((2,), 4.0))
        except BaseException as error:
            errors.append(error)
        finally:
            in_torch.set()
            done.set()

    def asked_nothing(*args):
        return None

    region = _C.Region(Key(), asked_nothing)
    thread = threading.Thread(target=torch_side)
    thread.start()
    assert _C.CompiledFunction(ours, region)() == 1
    assert _C.CompiledFunction(lambda x: helper(x), region)(2) == 4
    leave.set()
    thread.join(60)
    assert not errors, errors
    for _ in range(3):
        assert _C.CompiledFunction(lambda x: helper(x), region)(2) == 4
        helper(3)
    assert not _C.hook_info()["installed"]


def test_regions_and_torch_nested_many_times():
    count, asked = TorchCount(), []
    region = _C.Region(Key(), skipping_torch(asked))

    @torch.compile(backend=count)
    def t_inner(x):
        return helper(x)

    def f_inner(x):
        return t_inner(x) + 1

    f_compiled = _C.CompiledFunction(f_inner, region)

    @torch.compile(backend=count)
    def t_outer(x):
        return f_compiled(x) * 2

    f_outer = _C.CompiledFunction(lambda x: t_outer(x) - 1, region)
    for _ in range(4):
        assert torch.equal(f_outer(torch.ones(1)), torch.full((1,), 5.0))
        assert torch.equal(t_outer(torch.ones(1)), torch.full((1,), 6.0))
        assert torch.equal(f_compiled(torch.ones(1)), torch.full((1,), 3.0))
    info = _C.hook_info()
    assert not info["installed"] and not info["chained"]


def test_errors_inside_both_leave_nothing_behind():
    region = _C.Region(Key(), lambda *args: None)

    def bad(x):
        raise ValueError("user")

    compiled = _C.CompiledFunction(bad, region)

    @torch.compile(backend="eager")
    def outer(x):
        return compiled(x + 1)

    for _ in range(2):
        with pytest.raises(ValueError, match="user"):
            outer(torch.ones(1))
        with pytest.raises(ValueError, match="user"):
            _C.CompiledFunction(lambda x: outer(x), region)(torch.ones(1))
    assert not _C.hook_info()["installed"] and not _C.hook_info()["chained"]
