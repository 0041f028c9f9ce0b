"""Hooks on tensors that the graph makes: traced where they only compute, and run as they stand where they do more."""

from __future__ import annotations

import pytest
import torch

import fxjit

FACTOR = 3.0


def scaled(x):
    y = x * 2
    y.register_hook(lambda gradient: gradient * FACTOR)
    return y * y


def several(x):
    y = x.sin()
    largest = y.detach().abs().max()

    def cut(gradient):
        return torch.where(gradient.abs() > largest, torch.zeros_like(gradient), gradient)
    y.register_hook(cut)
    y.register_hook(lambda gradient: gradient.clamp(-1, 1) + largest)
    y.register_hook(lambda gradient: None)
    return y * y * 3, y


@pytest.mark.parametrize("fn", [scaled, several])
def test_hooks_that_compute(assert_same_as_eager, fn):
    assert_same_as_eager(fn, torch.randn(4, requires_grad=True))


def test_native():
    theirs, ours = (torch.arange(4.0, requires_grad=True) for _ in range(2))
    several(theirs)[0].sum().backward()
    fxjit.compile(several, fullgraph=True)(ours)[0].sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_a_number_that_varies_and_that_the_frame_reads_behind_the_hook(monkeypatch, backend, caplog):
    def program(x):
        y = x * 2
        y.register_hook(lambda gradient: gradient * FACTOR)
        return y * FACTOR

    fxjit.reset()
    compiled = fxjit.compile(program, backend=backend, fullgraph=True)
    for factor in (2.0, 3.0, 5.0, 7.0):
        monkeypatch.setitem(globals(), "FACTOR", factor)
        theirs, ours = (torch.arange(3.0, requires_grad=True) for _ in range(2))
        program(theirs).sum().backward()
        compiled(ours).sum().backward()
        torch.testing.assert_close(ours.grad, theirs.grad)
    assert "failed" not in caplog.text and fxjit.counters["stats"]["unique_graphs"] == 2


def kept_handle(x):
    y = x * 2
    handle = y.register_hook(lambda gradient: gradient * 3)
    z = y * y
    handle.remove()
    return z


def on_a_leaf(x, seen):
    x.register_hook(lambda gradient: gradient * 3)
    y = x * 2
    x.register_hook(lambda gradient: seen.append(gradient.clone()))
    x.register_hook(lambda gradient: gradient + len(seen))
    x.register_post_accumulate_grad_hook(lambda leaf: seen.append(leaf.grad.clone()))
    return y * x, y


def saving(x):
    seen = []
    y = x * 2
    y.register_hook(lambda gradient: seen.append(gradient))
    return y * y, seen


@pytest.mark.parametrize(("fn", "reason"), [
    (kept_handle, "tensor-hook"), (saving, "call-with-effects"),
])
def test_other_hooks_break(breaks, fn, reason):
    assert breaks(fn, torch.randn(3, requires_grad=True)) == reason
    theirs, ours = (torch.arange(3.0, requires_grad=True) for _ in range(2))
    results = [fn(theirs), fxjit.compile(fn, backend="eager")(ours)]
    for result in results:
        (result[0] if isinstance(result, tuple) else result).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)
    if fn is saving:
        torch.testing.assert_close(results[1][1], results[0][1])


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_hooks_on_a_leaf(backend):
    compiled = fxjit.compile(on_a_leaf, backend=backend, fullgraph=True)
    theirs, ours = ((torch.arange(3.0, requires_grad=True), []) for _ in range(2))
    for _ in range(2):
        for fn, given in ((on_a_leaf, theirs), (compiled, ours)):
            fn(*given)[0].sum().backward()
        torch.testing.assert_close(ours[0].grad, theirs[0].grad)
        torch.testing.assert_close(ours[1], theirs[1])


def used_once(h, seen):
    h.register_hook(lambda gradient: gradient * 3)
    return h * 2


def used_before_and_behind(h, seen):
    y = h * h
    h.register_hook(lambda gradient: seen.append(gradient.clone()))
    h.register_hook(lambda gradient: gradient + len(seen))
    return y + h.sin(), h


def a_view(h, seen):
    part = h[1:]
    h.register_hook(lambda gradient: gradient * 3)
    return part * 2, h


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("fn", [used_once, used_before_and_behind, a_view])
def test_hooks_on_what_is_no_leaf(fn, backend):
    compiled = fxjit.compile(fn, backend=backend, fullgraph=True)
    for make in (lambda x: x * 2, lambda x: x.view(1, 4)[0] + 1, lambda x: (x * 3).relu()):
        found = []
        for program in (fn, compiled):
            x, seen = torch.arange(4.0, requires_grad=True), []
            results = program(make(x), seen)
            torch.stack([each.sum() for each in (results if isinstance(results, tuple) else (results,))]).sum().backward()
            found.append((x.grad, seen))
        torch.testing.assert_close(*found)


def to_the_tensor(h, view):
    y = h * 3
    h.mul_(2)
    return y


def to_its_view(h, view):
    view.mul_(2)
    return h * 3


def to_its_memory(h, view):
    h.detach().mul_(2)
    return h.cos()


def unrecorded(h, view):
    with torch.no_grad():
        h.copy_(torch.ones(4))
    return h * 3


def out(h, view):
    with torch.no_grad():
        torch.sin(torch.ones(4), out=h)
    return h * 3


def detached(h, view):
    y = h * 2
    h.detach_()
    return y


def given_other_data(h, view):
    y = h * 2
    h.data = torch.ones(4)
    return y * h


def kept_gradient(h, view):
    h.retain_grad()
    return h * 3


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("write", [to_the_tensor, to_its_view, to_its_memory, unrecorded, out, detached, given_other_data,
                                   kept_gradient])
def test_what_is_no_leaf_changes_around_its_hook(write, backend):
    def before(h, view):
        result = write(h, view)
        if h.requires_grad:
            h.register_hook(lambda gradient: gradient * FACTOR)
        return result + h.sin()

    def behind(h, view):
        h.register_hook(lambda gradient: gradient * FACTOR)
        return write(h, view) + h.sin()

    for program in (before, behind):
        compiled, found = fxjit.compile(program, backend=backend), []
        for fn in (program, compiled):
            x = torch.arange(4.0, requires_grad=True)
            h = x * 1
            fn(h, h[1:]).sum().backward()
            found.append((x.grad, h.detach()))
        torch.testing.assert_close(*found)


@pytest.mark.parametrize("ask", ["grad", "backward"])
def test_a_gradient_that_the_frame_itself_asks_for_behind_a_hook(monkeypatch, ask):
    monkeypatch.setattr(fxjit.config, "trace_autograd_ops", True)

    def program(x, seen):
        y = x * x
        x.register_hook(lambda gradient: gradient * 3)
        x.register_post_accumulate_grad_hook(lambda leaf: seen.append(leaf.grad.clone()))
        if ask == "grad":
            return torch.autograd.grad(y.sum(), x)
        y.sum().backward()
        return x.grad

    found = []
    for fn in (program, fxjit.compile(program, backend="eager")):
        seen = []
        found.append((fn(torch.arange(3.0, requires_grad=True), seen), seen))
    torch.testing.assert_close(*found)


def test_a_hook_on_a_tensor_without_a_gradient():
    def fn(x):
        x.register_hook(lambda gradient: gradient)
        return x * 2
    with pytest.raises(RuntimeError, match="cannot register a hook on a tensor that doesn't require gradient"):
        fxjit.compile(fn, backend="eager")(torch.ones(2))


def test_a_hook_on_a_parameter():
    class Scaled(torch.nn.Linear):
        def forward(self, x):
            self.weight.register_hook(lambda gradient: gradient * FACTOR)
            return super().forward(x)

    theirs, x = Scaled(3, 2), torch.randn(4, 3)
    ours = Scaled(3, 2)
    ours.load_state_dict(theirs.state_dict())
    for fn in (theirs, fxjit.compile(ours, backend="eager", fullgraph=True)):
        fn(x).square().sum().backward()
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)


class Watched(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)
        self.seen = []
        self.second.register_full_backward_hook(self.note)
        self.second.register_full_backward_hook(lambda module, ins, outs: (ins[0] * FACTOR,))
        self.first.register_full_backward_pre_hook(lambda module, outs: (outs[0] + 1,))

    def note(self, module, ins, outs):
        assert module is self.second
        self.seen += [ins[0].clone(), outs[0].clone()]

    def forward(self, x):
        return self.second(torch.relu(self.first(x)) * 2).softmax(-1)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_backward_hooks_of_modules_break_around_their_operators(backend, graphs_of):
    x = torch.randn(5, 3)
    theirs = Watched()
    ours = Watched()
    ours.load_state_dict(theirs.state_dict())
    compiled = fxjit.compile(ours, backend=backend)
    for needs in (False, True):
        inputs = [x.clone().requires_grad_(needs) for _ in range(2)]
        for model, given in zip((theirs, compiled), inputs, strict=True):
            model(given)[:, 0].sum().backward()
        torch.testing.assert_close([p.grad for p in ours.parameters()], [p.grad for p in theirs.parameters()])
        torch.testing.assert_close(inputs[1].grad, inputs[0].grad)
    torch.testing.assert_close(ours.seen, theirs.seen)
    with torch.no_grad():
        _, graphs = graphs_of(ours, x, fullgraph=True)
    assert len(graphs) == 1, "without gradients nothing calls them"
    assert fxjit.explain(Watched())(x.requires_grad_()).graph_break_count <= 4, "two a module"
