"""Blocks that set state of the process (random generators, filters of warnings, what autograd saves) are steps of the graph;
with a break inside they are entered for real, in one break where they begin.
"""

from __future__ import annotations

import contextlib
import copy
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.differential import assert_same

import fxjit

graph = torch.autograd.graph


class Own(UserWarning):
    """A category of the program's own."""


def forks(x: torch.Tensor) -> Any:
    y = x * 2
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        y = y + torch.rand(3)
    return y + torch.rand(3)


def forks_twice(x: torch.Tensor) -> Any:
    with torch.random.fork_rng():
        y = torch.nn.functional.dropout(x, 0.5)
        with torch.random.fork_rng(devices=[], enabled=True):
            torch.manual_seed(7)
            y = y * torch.rand(3)
        y = y + torch.rand(3)
    return y + torch.rand(3)


def not_forked(x: torch.Tensor) -> Any:
    with torch.random.fork_rng(devices=[], enabled=False):
        y = x * torch.rand(3)
    return y + torch.rand(3)


def rewinds(x: torch.Tensor) -> Any:
    state = torch.get_rng_state()
    y = torch.rand(3) * x
    torch.set_rng_state(state)
    return y, torch.rand(3), state, state[:3].clone()


def seeds(x: torch.Tensor) -> Any:
    generator = torch.manual_seed(x.shape[0] * 5)
    y = x + torch.rand(3)
    torch.random.manual_seed(seed=-4)
    return y * torch.rand(3), generator is torch.default_generator


def seeds_and_writes(x: torch.Tensor) -> Any:
    buffer = torch.zeros(3)
    torch.manual_seed(1)
    buffer.add_(torch.rand(3))
    torch.manual_seed(1)
    buffer.mul_(2)
    return buffer * x


def seeds_without_recording(x: torch.Tensor) -> Any:
    with torch.no_grad():
        torch.manual_seed(1)
        y = torch.rand(3)
    return x * y


def keeps(x: torch.Tensor) -> Any:
    with graph.save_on_cpu():
        return (x * x).tanh().sum()


def keeps_some(x: torch.Tensor) -> Any:
    y = x.exp()
    with graph.save_on_cpu(pin_memory=False):
        y = y.sin() * x
    return y.tanh()


def saves_nothing_else(x: torch.Tensor) -> Any:
    with graph.disable_saved_tensors_hooks("not here"):
        return (x * x).tanh().sum()


def hooks_where_they_are_refused(x: torch.Tensor) -> Any:
    y = x * 2
    with graph.disable_saved_tensors_hooks("not here"), graph.save_on_cpu():
        y = y.exp()
    return y


def hooks_caught(x: torch.Tensor) -> Any:
    try:
        return hooks_where_they_are_refused(x)
    except RuntimeError as error:
        return x + 1, str(error)


def saves(x: torch.Tensor) -> Any:
    with graph.saved_tensors_hooks(lambda t: t * 2, unpack_hook=lambda t: t / 2):
        return (x * x).tanh().sum()


def halves(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.float16)


def wholes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float()


def saves_halves(x: torch.Tensor) -> Any:
    y = x.exp()
    with graph.saved_tensors_hooks(halves, wholes):
        y = (y * x).tanh()
    return y * 2


def saves_pairs(x: torch.Tensor) -> Any:
    with graph.saved_tensors_hooks(lambda t: (torch.neg(t), t.dtype), lambda packed: -packed[0].to(packed[1])):
        return (x * x).tanh().sum()


def quantised(tensor: torch.Tensor) -> Any:
    if not tensor.is_floating_point():
        return tensor, None
    scale = tensor.detach().abs().amax() / 127 + 1e-9
    return (tensor.detach() / scale).round().to(torch.int8), scale


def restored(packed: Any) -> torch.Tensor:
    values, scale = packed
    return values if scale is None else values.float() * scale


def saves_quantised(x: torch.Tensor) -> Any:
    with graph.saved_tensors_hooks(quantised, restored):
        y = x.sin() * x
    return y.exp()


def named(tensor: torch.Tensor) -> Any:
    return {"numbers": tensor.double(), "type": [tensor.dtype, "kept"]}


def by_name(packed: Any) -> torch.Tensor:
    return packed["numbers"].to(packed["type"][0])


def saves_in_a_dict(x: torch.Tensor) -> Any:
    with graph.saved_tensors_hooks(named, by_name):
        return (x * x).tanh().sum()


def saves_by_writing(x: torch.Tensor) -> Any:
    with graph.saved_tensors_hooks(lambda t: torch.mul(t, 1, out=torch.empty(0)), lambda t: t):
        return x.detach() * x


def saves_in_a_loop(x: torch.Tensor) -> Any:
    def halved(tensor: torch.Tensor) -> torch.Tensor:
        count = 0
        while count < 3:
            tensor, count = tensor * 0.5, count + 1
        return tensor

    with graph.saved_tensors_hooks(halved, lambda t: t * 8):
        return x * x


kept: list[Any] = []


def saves_and_notes(x: torch.Tensor) -> Any:
    kept.clear()
    with graph.saved_tensors_hooks(lambda t: kept.append(1) or t, lambda t: t):
        y = (x * x).tanh().sum()
    return y, len(kept)


def saves_with_noise(x: torch.Tensor) -> Any:
    with graph.saved_tensors_hooks(lambda t: t + torch.rand(3), lambda t: t):
        y = x * x
    return y + torch.rand(3)


def saves_by_a_closure(x: torch.Tensor) -> Any:
    factor = x.detach() + 1
    with graph.saved_tensors_hooks(lambda t: t * factor, lambda t: t):
        return (x * x).tanh()


def saves_and_raises(x: torch.Tensor) -> Any:
    with graph.saved_tensors_hooks(lambda t: t.expand(7), lambda t: t):
        return x * x


def quiet(x: torch.Tensor) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("not heard", stacklevel=1)
        y = x * 2
    warnings.warn("heard", stacklevel=1)
    return y + 1


def quiet_from_the_start(x: torch.Tensor) -> Any:
    with warnings.catch_warnings(action="ignore", category=Own):
        warnings.warn("not heard", Own, stacklevel=1)
        return x * 2


def one_category(x: torch.Tensor) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="not.*", category=Own)
        warnings.warn("not heard", Own, stacklevel=1)
        y = x * 2
    return y


def heard_inside(x: torch.Tensor) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("heard", stacklevel=1)
        return x * 2


def recorded(x: torch.Tensor) -> Any:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn("heard", Own, stacklevel=1)
        y = x * 2
    return y, [str(each.message) for each in caught]


def recorded_and_kept(x: torch.Tensor) -> Any:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn("heard", Own, stacklevel=1)
        y = torch.ones(1).std() + x
        warnings.warn("last", stacklevel=1)
    return y, [caught]


def messages(x: torch.Tensor) -> Any:
    y, (caught,) = recorded_and_kept(x)
    fxjit.graph_break()
    return y * len(caught), [(str(each.message), each.category) for each in caught]


def recorded_within(x: torch.Tensor) -> Any:
    with warnings.catch_warnings(record=True) as outer:
        warnings.simplefilter("always")
        with warnings.catch_warnings(record=True) as inner:
            warnings.warn("inner", stacklevel=1)
        warnings.warn("outer", stacklevel=1)
        y = x * 2
    return y, [str(each.message) for each in inner], [str(each.message) for each in outer], outer is inner


def recorded_without_use(x: torch.Tensor) -> Any:
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        warnings.warn("not heard", stacklevel=1)
        return x * 2


def recorded_in_a_stack(x: torch.Tensor) -> Any:
    with contextlib.ExitStack() as stack:
        caught = stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("always")
        warnings.warn("heard", stacklevel=1)
        y = x * 2
    return y, [str(each.message) for each in caught]


def looked_at_inside(x: torch.Tensor) -> Any:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn("heard", stacklevel=1)
        y = x * len(caught)
        warnings.warn("again", stacklevel=1)
    return y + len(caught)


def recorded_twice(x: torch.Tensor) -> Any:
    for _ in range(2):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warnings.warn(f"heard {x.shape[0]}", stacklevel=2)
            x = x * 2
    return x, [str(each.message) for each in caught]


def an_error(x: torch.Tensor) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            warnings.warn("raised", stacklevel=1)
        except UserWarning as error:
            return x * 2, str(error)
    return x


def operators_warn(x: torch.Tensor) -> Any:
    """`std` of one element warns by torch's C++ each time."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y = torch.ones(1).std() + x
    return y


def filters_reset(x: torch.Tensor) -> Any:
    with warnings.catch_warnings():
        warnings.resetwarnings()
        warnings.simplefilter(action="ignore", category=UserWarning, lineno=0, append=True)
        warnings.warn("not heard", stacklevel=1)
        return x * 2


def wrong_action(x: torch.Tensor) -> Any:
    with warnings.catch_warnings():
        try:
            warnings.simplefilter("loudly")  # type: ignore[arg-type]  # what the test is about
        except (AssertionError, ValueError) as error:
            return x * 2, type(error).__name__
    return x


def looks_at_the_filters(x: torch.Tensor) -> Any:
    before = warnings.filters
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        inside = warnings.filters
        y = x * 2
    return y, before is inside, before is warnings.filters, len(before) - len(inside)


def sets_the_filters(x: torch.Tensor) -> Any:
    with warnings.catch_warnings():
        warnings.filters.insert(0, ("ignore", None, UserWarning, None, 0))  # type: ignore[attr-defined]  # said to be a sequence
        warnings.warn("not heard", stacklevel=1)
        y = x * 2
    warnings.warn("heard", stacklevel=1)
    return y


def sets_them_before(x: torch.Tensor) -> Any:
    with warnings.catch_warnings():
        warnings.filters = [("ignore", None, Own, None, 0), *warnings.filters]
        with warnings.catch_warnings():
            warnings.warn("not heard", Own, stacklevel=1)
            warnings.simplefilter("ignore")
            y = x * 2
    return y


def shows_otherwise(x: torch.Tensor) -> Any:
    shown: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *rest: shown.append(str(message))
        warnings.warn("shown", stacklevel=1)
        y = x * 2
    return y, shown


def in_a_stack(x: torch.Tensor) -> Any:
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        y = x + torch.rand(3)
    return y * torch.rand(3)


def hooks_in_a_stack(x: torch.Tensor) -> Any:
    with contextlib.ExitStack() as stack:
        stack.enter_context(graph.save_on_cpu())
        y = (x * x).tanh()
        stack.enter_context(torch.random.fork_rng(devices=[]))
    return y.sum()


def breaks_in_a_stack(x: torch.Tensor) -> Any:
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        y = x + torch.rand(3)
        fxjit.graph_break()
        warnings.warn("not heard", stacklevel=1)
        y = y * torch.rand(3)
    warnings.warn("heard", stacklevel=1)
    return y * torch.rand(3)


def raises_in_a_stack(x: torch.Tensor) -> Any:
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(devices=[]))
            stack.callback(kept.clear)
            y = x + torch.rand(3)
            raise ValueError("passes")
    except ValueError as error:
        return x * torch.rand(3), str(error)
    return y


def leaves_a_stack_later(x: torch.Tensor) -> Any:
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        later = stack.pop_all()
    y = x + torch.rand(3)
    later.close()
    return y * torch.rand(3)


def returns_an_open_stack(x: torch.Tensor) -> Any:
    stack = contextlib.ExitStack()
    stack.enter_context(torch.random.fork_rng(devices=[]))
    y = x + torch.rand(3)
    return y, stack


def closes_what_was_opened(x: torch.Tensor) -> Any:
    y, stack = returns_an_open_stack(x)
    fxjit.graph_break()
    stack.close()
    return y * torch.rand(3)


def by_its_class(x: torch.Tensor) -> Any:
    manager = warnings.catch_warnings()
    type(manager).__enter__(manager)
    warnings.simplefilter("ignore")
    warnings.warn("not heard", stacklevel=1)
    y = x * 2
    type(manager).__exit__(manager, None, None, None)
    return y


class Quiet(warnings.catch_warnings):
    def __enter__(self) -> Any:
        entered = super().__enter__()
        warnings.simplefilter("ignore")
        return entered


def in_a_subclass(x: torch.Tensor) -> Any:
    with Quiet():
        warnings.warn("not heard", stacklevel=1)
        y = x * 2
    return y


@contextlib.contextmanager
def seeded(number: int) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(number)
        yield number


def in_a_manager_of_its_own(x: torch.Tensor) -> Any:
    with seeded(5) as number:
        y = x * torch.rand(3)
    return y + torch.rand(3), number


def in_a_call(x: torch.Tensor) -> Any:
    return in_a_manager_of_its_own(x * 2)[0] + quiet(x)


def breaks_inside(x: torch.Tensor) -> Any:
    y = x * 2
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y = y + torch.rand(3)
        fxjit.graph_break()
        y = y * torch.rand(3)
    return y + torch.rand(3)


def breaks_in_a_call(x: torch.Tensor) -> Any:
    with torch.random.fork_rng(devices=[]):
        y = breaks_inside(x) + torch.rand(3)
    return y * torch.rand(3)


def raises_inside(x: torch.Tensor) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        y = x + torch.rand(3)
        raise ValueError("passes")
    return y


def caught_outside(x: torch.Tensor) -> Any:
    try:
        return raises_inside(x)
    except ValueError:
        return x + torch.rand(3)


def operator_raises(x: torch.Tensor) -> Any:
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(1)
        y = x + torch.rand(3)
        return y[torch.tensor([7]) + (x.sum() * 0).long()]


def breaks_behind(x: torch.Tensor) -> Any:
    with torch.random.fork_rng(devices=[]):
        y = x + torch.rand(3)
    fxjit.graph_break()
    return y * torch.rand(3)


def left_open(x: torch.Tensor) -> Any:
    manager = torch.random.fork_rng(devices=[])
    manager.__enter__()
    y = x + torch.rand(3)
    fxjit.graph_break()
    y = y * torch.rand(3)
    manager.__exit__(None, None, None)
    return y + torch.rand(3)


def returned(x: torch.Tensor) -> Any:
    manager = torch.random.fork_rng(devices=[])
    return x + 1, type(manager).__name__


def decorated(x: torch.Tensor) -> Any:
    @torch.random.fork_rng(devices=[])
    def inner(x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(3)

    return inner(x) * torch.rand(3)


def under_vmap(x: torch.Tensor) -> Any:
    def one(row: torch.Tensor) -> torch.Tensor:
        with torch.random.fork_rng(devices=[]):
            return row * 2

    return torch.vmap(one)(x[:, None])


ONE_GRAPH = [
    forks, forks_twice, not_forked, rewinds, seeds, seeds_and_writes, seeds_without_recording, keeps, keeps_some,
    saves_nothing_else, saves, saves_halves, saves_pairs, saves_quantised, saves_in_a_dict, in_a_stack, hooks_in_a_stack,
    raises_in_a_stack, leaves_a_stack_later, by_its_class, heard_inside, recorded_without_use,
    quiet, quiet_from_the_start, one_category, operators_warn,
    filters_reset, in_a_manager_of_its_own, in_a_call,
]  # fmt: skip
OTHERS = [
    saves_by_writing, saves_in_a_loop, breaks_in_a_stack, closes_what_was_opened, in_a_subclass,
    hooks_where_they_are_refused, hooks_caught, saves_and_notes, saves_with_noise, saves_by_a_closure, saves_and_raises,
    messages, recorded_within, recorded_in_a_stack, looked_at_inside, recorded_twice,
    looks_at_the_filters, sets_the_filters, sets_them_before, shows_otherwise, recorded, an_error,
    wrong_action, breaks_inside, breaks_in_a_call, raises_inside, caught_outside, operator_raises, breaks_behind, left_open,
    returned, decorated, under_vmap,
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """What a compile imports sets filters of its own."""
    for backend in ("eager", "aot_eager", "native"):
        fxjit.compile(lambda x: x + 1, backend=backend)(torch.ones(3))


def outcome(fn: Callable[[torch.Tensor], Any]) -> tuple[Any, ...]:
    """What a call gives, its gradient, the warnings that are heard, and the state that it leaves."""
    torch.manual_seed(0)
    x = torch.tensor([0.5, 1.5, -2.0], requires_grad=True)
    filters = list(warnings.filters)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        inside = list(warnings.filters)
        try:
            result = fn(x)
            error = None
        except Exception as raised:  # compared with eager's
            result, error = None, (type(raised), str(raised))
        assert list(warnings.filters) == inside
    assert list(warnings.filters) == filters
    leaves = torch.utils._pytree.tree_leaves(result)
    tensors = [each for each in leaves if isinstance(each, torch.Tensor) and each.requires_grad]
    if tensors:
        sum(each.sum() for each in tensors).backward()
    heard = [(str(each.message), each.category) for each in caught]
    return result, error, x.grad, heard, torch.rand(2), torch._C._autograd._saved_tensors_hooks_is_enabled()


@pytest.mark.sweep(2)
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("fn", [*ONE_GRAPH, *OTHERS])
def test_as_in_eager(fn: Any, backend: str) -> None:
    if fn in (saves_and_notes, saves_with_noise, saves_quantised, messages) and backend != "eager":
        pytest.skip("a compiled graph saves other tensors than its operators, and its kernels give no warnings")
    expected = outcome(fn)
    fxjit.reset()
    compiled = fxjit.compile(fn, backend=backend)
    for _ in range(3):
        assert_same(outcome(compiled), expected, rtol=0.0 if backend == "eager" else 1e-4)


@pytest.mark.parametrize("fn", ONE_GRAPH)
@pytest.mark.compiles
def test_one_graph_without_a_break(fn: Any) -> None:
    if fn is raises_in_a_stack and sys.version_info >= (3, 13):
        pytest.skip("an ExitStack reads the exception's traceback there, which no trace has")
    fxjit.reset()
    _, error, *_ = outcome(fxjit.compile(fn, backend="eager", fullgraph=True))
    assert error is None


@pytest.mark.parametrize(("fn", "count"), [(saves_and_notes, 1), (breaks_inside, 2)])
@pytest.mark.compiles
def test_entering_is_the_break_of_a_block_that_is_not_traced(fn: Any, count: int) -> None:
    fxjit.reset()
    fxjit.counters.clear()
    outcome(fxjit.compile(fn, backend="eager"))
    reasons = fxjit.counters["graph_break"]
    assert sum(reasons[name] for name in reasons if "ontext manager" in name or "`with`" in name) == count


def test_a_backend_is_given_what_stands_between_steps() -> None:
    given: list[list[str]] = []

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        calls = [node.target for node in gm.graph.nodes if node.op.startswith("call")]
        given.append([str(getattr(target, "__name__", target)) for target in calls])
        return gm.forward

    fxjit.reset()
    compiled = fxjit.compile(forks, backend=backend)
    assert_same(outcome(compiled), outcome(forks))
    assert given == [["mul"], ["rand", "add"], ["rand", "add"]]


def test_sizes_and_seeds_that_vary() -> None:
    def fn(x: torch.Tensor, seed: int) -> Any:
        torch.manual_seed(seed)
        return x * torch.rand(x.shape[0])

    fxjit.reset()
    for backend in ("eager", "native"):
        compiled = fxjit.compile(fn, backend=backend)
        for size, seed in ((3, 1), (4, 2), (5, 3), (6, 12)):
            assert_same(compiled(torch.ones(size), seed), fn(torch.ones(size), seed))


def test_a_wrong_state_is_refused_as_in_eager() -> None:
    def fn(x: torch.Tensor, state: torch.Tensor) -> Any:
        torch.set_rng_state(state)
        return x + torch.rand(3)

    fxjit.reset()
    state = torch.get_rng_state()
    for backend in ("eager", "native"):
        compiled = fxjit.compile(fn, backend=backend)
        assert_same(compiled(torch.ones(3), state), fn(torch.ones(3), state))
        for wrong in (torch.ones(3), torch.ones(4, dtype=torch.uint8)):
            with pytest.raises(Exception) as expected:  # noqa: PT011  # compared with eager's
                fn(torch.ones(3), wrong)
            with pytest.raises(type(expected.value), match=str(expected.value)[:20]):
                compiled(torch.ones(3), wrong)


def steps_backward(layer: torch.nn.Module, x: torch.Tensor) -> Any:
    torch.manual_seed(3)
    y = torch.nn.functional.dropout(layer(x), 0.5)
    torch.manual_seed(4)
    loss = (y * torch.rand_like(y)).sum()
    loss.backward()
    torch.manual_seed(5)
    return loss.detach() + torch.rand(1)


def takes_gradients(layer: torch.nn.Module, x: torch.Tensor) -> Any:
    y = layer(x).sin()
    torch.manual_seed(4)
    gradients = torch.autograd.grad((y * torch.rand_like(y)).sum(), list(layer.parameters()))
    return gradients[0] * torch.rand(1), gradients[1]


def hooks_a_tensor(layer: torch.nn.Module, x: torch.Tensor) -> Any:
    y = layer(x)
    y.register_hook(lambda gradient: gradient * 2)
    torch.manual_seed(4)
    return (y * torch.rand_like(y)).sum()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("fn", [steps_backward, takes_gradients, hooks_a_tensor])
def test_gradients_beside_steps(fn: Any, in_graph: bool, backend: str) -> None:
    mine = torch.nn.Linear(3, 3)
    eager = copy.deepcopy(mine)
    fxjit.reset()
    rtol = 0.0 if backend == "eager" else 1e-3
    with fxjit.config.patch(trace_autograd_ops=in_graph):
        compiled = fxjit.compile(fn, backend=backend)
        for _ in range(2):
            x = torch.randn(4, 3)
            results = compiled(mine, x), fn(eager, x)
            if fn is hooks_a_tensor:
                for result in results:
                    result.backward()
            assert_same(*[torch.utils._pytree.tree_map(torch.Tensor.detach, each) for each in results], rtol=rtol)
            assert_same([each.grad for each in mine.parameters()], [each.grad for each in eager.parameters()], rtol=rtol)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_handlers_see_what_is_raised_behind_a_step(backend: str) -> None:
    """The blocks are left and the generator is as it was, and the program starts over."""
    def seeds(x, at):
        torch.manual_seed(3)
        try:
            return x[at] + 1
        except IndexError:
            return torch.rand(2)

    def in_a_block(x, at):
        with torch.random.fork_rng():
            torch.manual_seed(4)
            try:
                return x[at] + torch.rand(1)
            except IndexError:
                return torch.rand(2)

    for fn in (seeds, in_a_block):
        fxjit.reset()
        compiled = fxjit.compile(fn, backend=backend)
        for at in (1, 7, 2):
            found = []
            for call in (compiled, fn):
                torch.manual_seed(at)
                found.append((call(torch.zeros(3), torch.tensor([at])).tolist(), torch.rand(1).item()))
            assert found[0] == found[1]
