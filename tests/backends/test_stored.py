"""Graphs from the disk do what graphs that were just compiled do, and a graph that might mean something else is not found."""

from __future__ import annotations

import contextlib
import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import fxjit
from fxjit import config, logs, process_state
from fxjit.backends.aot import compile as compile_module
from fxjit.backends.aot import driver
from fxjit.backends.store.artifacts import FACTS, KernelCache
from fxjit.counters import counters

pytestmark = pytest.mark.compiles


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    fxjit.reset()
    with config.patch(cache_dir=str(tmp_path), cache_graphs=True):
        yield tmp_path / "kernels"


@pytest.fixture
def from_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Forgets what was compiled in this process, and lets nothing be compiled anew."""

    def start_over() -> None:
        fxjit.reset()

        def refuse(*args: Any) -> Any:
            raise AssertionError("a graph was not found on the disk")

        monkeypatch.setattr(driver, "compile_anew", refuse)

    return start_over


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(3, 6, 3), torch.nn.BatchNorm2d(6)
        self.linear, self.layer_norm = torch.nn.Linear(6, 5), torch.nn.LayerNorm(5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.gelu(self.norm(self.conv(x))).mean((2, 3))
        return F.dropout(self.layer_norm(self.linear(y)), 0.3, self.training)


def net_step(compile_: Callable[[Any], Any]) -> list[Any]:
    torch.manual_seed(3)
    net = Net()
    run, results = compile_(net), []
    for _ in range(2):
        x = torch.randn(4, 3, 8, 8, requires_grad=True)
        out = run(x)
        out.square().sum().backward()
        results += [out, x.grad, torch.rand(1)]
    return [*results, *(each.grad for each in net.parameters()), *net.buffers()]


def attention(compile_: Callable[[Any], Any]) -> list[Any]:
    def fn(q: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        split = q.view(2, 5, 2, 4).transpose(1, 2)
        found = F.scaled_dot_product_attention(split, split, split, attn_mask=mask)
        return found.transpose(1, 2).reshape(2, 5, 8), found.argmax(-1)

    torch.manual_seed(4)
    return list(compile_(fn)(torch.randn(2, 5, 8), torch.ones(5, 5, dtype=torch.bool).tril()))


def several_results(compile_: Callable[[Any], Any]) -> list[Any]:
    """One result is a number that has no gradient, one is not used, and the gradient of one comes transposed."""

    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        product = x @ y
        return product.exp(), product.sum(0), (x > 0).sum()

    x, y = torch.linspace(-1, 1, 12).view(3, 4).requires_grad_(), torch.linspace(0, 1, 8).view(4, 2).requires_grad_()
    first, _, count = compile_(fn)(x, y)
    (first.t() * torch.arange(6.0).view(2, 3)).sum().backward()
    return [first, count, x.grad, y.grad]


def writes(compile_: Callable[[Any], Any]) -> list[Any]:
    def fn(state: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        state.mul_(0.5).add_(x)
        return state.sin()

    state = torch.arange(6.0)
    whole, run = state.view(2, 3), compile_(fn)
    out = run(whole, torch.ones(2, 3))
    return [out, state, torch.tensor(state._version > 0)]


def twice_derived(compile_: Callable[[Any], Any]) -> list[Any]:
    x = torch.linspace(0.1, 1, 5).requires_grad_()
    (grad,) = torch.autograd.grad(compile_(lambda x: (x.sin() * x).sum())(x), x, create_graph=True)
    grad.square().sum().backward()
    return [grad, x.grad]


def without_recording(compile_: Callable[[Any], Any]) -> list[Any]:
    x = torch.ones(3, requires_grad=True)
    with torch.no_grad():
        off = compile_(lambda x: x * 2 + 1)(x)
    return [off, torch.tensor(off.requires_grad), compile_(lambda x: x.detach() * 3)(x)]


def other_types(compile_: Callable[[Any], Any]) -> list[Any]:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        wide = x.to(torch.float64)
        infinite = torch.full((2,), float("inf"), dtype=x.dtype)
        ordered = torch.arange(3, dtype=torch.int16)
        return wide.sum(), x.to(torch.int8), infinite.nan_to_num(posinf=-0.0), ordered, x[1:, ::2] ** 2

    return list(compile_(fn)(torch.tensor([[1.5, -2.0, 3.25], [0.5, 100.0, -0.0]], dtype=torch.bfloat16)))


def constants(compile_: Callable[[Any], Any]) -> list[Any]:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        numbers = torch.tensor([[1.5, -0.0, float("nan")], [2.0, float("inf"), 1e-45]])
        chosen = torch.where(torch.tensor([True, False, True]), x, 0.0)
        return x * numbers, x[:, torch.tensor([2, 0])], torch.tensor(3.5), chosen

    return list(compile_(fn)(torch.tensor([[1.0, 2.0, 3.0], [-1.0, 0.0, 4.0]])))


def under_autocast(compile_: Callable[[Any], Any]) -> list[Any]:
    torch.manual_seed(5)
    net = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.GELU(), torch.nn.Linear(6, 2))
    run, x = compile_(net), torch.linspace(-1, 1, 12).view(3, 4)
    with torch.autocast("cpu", torch.bfloat16):
        with torch.no_grad():
            quiet = run(x)
        out = run(x)
    out.float().sum().backward()
    return [quiet, *(each.grad.bfloat16() for each in net.parameters())]  # compared as what they were computed in


def views_and_inputs(compile_: Callable[[Any], Any]) -> list[Any]:
    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y.add_(1)
        return x.t()[1:], x + y, x, y

    x, y = torch.arange(6.0).view(2, 3), torch.ones(2, 3)
    part, total, same, written = compile_(fn)(x, y)
    assert same is x and written is y
    part.mul_(2)
    return [part, total, x, y]


def views_under_autograd(compile_: Callable[[Any], Any]) -> list[Any]:
    """Views of an intermediate, of a result and of an input, and the input: each is written to and derived by."""

    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        hidden = x * y + 1
        left, right = hidden[:, :2], hidden[:, 2:]
        result = x.sin()
        return left.transpose(0, 1), right[:, 1], result, result.view(-1)[2:], y.t()[1:], y, hidden.unfold(1, 2, 2)

    leaf, y = torch.linspace(-1, 1, 12).view(3, 4).requires_grad_(), torch.ones(3, 4)
    found = [*compile_(fn)(leaf, y)]
    found[1].mul_(2)
    assert [each._is_view() for each in found] == [True, True, False, True, True, False, True] and found[5] is y
    sum((each * torch.arange(1.0, each.numel() + 1).view(each.shape)).sum() for each in found).backward()
    return [*found, leaf.grad]


def parts_by_themselves(compile_: Callable[[Any], Any]) -> list[Any]:
    """Two results that share no differentiable value, one of which is computed from the other: a graph each."""

    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first = (x * 2).sin()
        return first.sum(), (y * first.detach()).cos().sum()

    x, y = (torch.linspace(-1, start, 6).requires_grad_() for start in (1, 2))
    found = compile_(fn)(x, y)
    for each in found:
        each.backward()
    return [*found, x.grad, y.grad]


def of_numpy(compile_: Callable[[Any], Any]) -> list[Any]:
    def fn(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, ...]:
        return np.add(x, y) ** 2, x[1:].sum(axis=0), np.sum(x * y, axis=1), x.T

    x, y = np.linspace(-1, 1, 6).reshape(2, 3), np.ones((2, 3), dtype=np.float32)
    return [torch.from_numpy(each) for each in compile_(fn)(x, y)]


def sizes_that_vary(compile_: Callable[[Any], Any]) -> list[Any]:
    def fn(x: torch.Tensor, n: int) -> tuple[torch.Tensor, ...]:
        return F.softmax(x * n, -1), x.sum(0), x[1:].t()

    run = compile_(fn)
    return [each for n in (3, 5, 7, 9) for each in run(torch.linspace(-1, 1, 4 * n).view(n, 4), n)]


def floats_that_vary(compile_: Callable[[Any], Any]) -> list[Any]:
    run, w = compile_(lambda x, rate: x * (1 - rate) + x.clamp(max=rate)), torch.linspace(-1, 1, 6).requires_grad_()
    found = []
    for rate in (0.1, 0.01, 1 / 3):
        out = run(w, rate)
        out.sum().backward()
        found += [out, w.grad.clone()]
    return found


PROGRAMS = (under_autocast, views_and_inputs, views_under_autograd, parts_by_themselves, of_numpy, floats_that_vary,
            net_step, constants, attention, several_results, writes, twice_derived, without_recording, other_types)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_graph_from_the_disk_does_what_eager_does(program: Any, from_disk: Callable[[], None]) -> None:
    expected = program(lambda fn: fn)
    for again in (False, True):
        if again:
            from_disk()
        found = program(fxjit.compile)
        for mine, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(mine, theirs, equal_nan=True, rtol=1e-5, atol=2e-5)  # sums in another order
            assert (mine.stride(), mine.requires_grad, mine.is_contiguous()) == (
                theirs.stride(), theirs.requires_grad, theirs.is_contiguous())


def test_another_process_finds_it_and_imports_no_compiler(folder: Path) -> None:
    code = """
import sys, torch, fxjit
from fxjit.counters import counters
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Dropout(), torch.nn.Linear(8, 2))
out = fxjit.compile(net)(torch.ones(3, 4))
out.sum().backward()
assert torch.rand(1) is not None
print(counters["cache"]["graph hit"], "torch._functorch.aot_autograd" in sys.modules,
      [out.sum().item(), *(p.grad.sum().item() for p in net.parameters()), torch.rand(1).item()])
"""
    said = []
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True,
                              env=config.child_environment(FXJIT_CACHE_DIR=str(folder.parent)))
        said.append(done.stdout.strip().split(" ", 2))
    assert [each[:2] for each in said] == [["0", "True"], ["1", "False"]]
    assert said[0][2] == said[1][2]


# What is not the same graph


def count_misses(call: Callable[[], object]) -> int:
    """Graphs that were compiled anew by the call, in what is a new process to fxjit."""
    fxjit.reset()
    call()
    return counters["cache"]["graph miss"] + counters["cache"]["graph not kept"]


def scaled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.gelu(x) * 2 + y


BASE = torch.arange(24.0)
INPUTS: dict[str, Callable[[], tuple[torch.Tensor, torch.Tensor]]] = {
    "type": lambda: (torch.ones(3, 4).double(), torch.ones(3, 4)),
    "size": lambda: (torch.ones(3, 5), torch.ones(3, 5)),
    "strides": lambda: (torch.ones(4, 3).t(), torch.ones(3, 4)),
    "offset": lambda: (BASE[12:].view(3, 4), torch.ones(3, 4)),
    "shared memory": lambda: (BASE[:12].view(3, 4), BASE[12:].view(3, 4)),
    "derivative": lambda: (torch.ones(3, 4).requires_grad_(), torch.ones(3, 4)),
    "parameter": lambda: (torch.nn.Parameter(torch.ones(3, 4), requires_grad=False), torch.ones(3, 4)),
}


@pytest.mark.parametrize("change", INPUTS)
def test_other_inputs_are_another_graph(change: str) -> None:
    plain = torch.ones(3, 4), torch.ones(3, 4)
    assert count_misses(lambda: fxjit.compile(scaled)(*plain)) > 0
    assert count_misses(lambda: fxjit.compile(scaled)(*plain)) == 0
    assert count_misses(lambda: fxjit.compile(scaled)(*INPUTS[change]())) > 0


CONSTANTS: tuple[Any, ...] = (1, True, 1.0, 0.0, -0.0, float("nan"), 2)


def test_other_constants_are_another_graph() -> None:
    x = torch.tensor([1, 0, -2])
    for constant in CONSTANTS:
        fxjit.reset()
        expected = torch.where(x > 0, x, constant)
        found = fxjit.compile(lambda x, c=constant: torch.where(x > 0, x, c))(x)
        torch.testing.assert_close(found, expected, equal_nan=True)
        assert found.dtype is expected.dtype and torch.equal(torch.signbit(found.double()), torch.signbit(expected.double()))


STATES: dict[str, Callable[[], Any]] = {
    "grad mode": torch.no_grad,
    "inference mode": torch.inference_mode,
    "attention kernels": lambda: torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
    "settings": lambda: config.patch("cpp.fast_math", True),
    "threads": lambda: config.patch(num_threads=3),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "deterministic": lambda: deterministic(),
}


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("state", STATES)
def test_another_state_of_the_process_is_another_graph(state: str) -> None:
    x = torch.ones(3, 4)

    def call() -> None:
        fxjit.compile(scaled)(x, x)

    def call_in_state() -> None:
        with STATES[state]():
            call()

    assert count_misses(call) > 0
    assert count_misses(call) == 0
    assert count_misses(call_in_state) > 0


def test_a_function_of_the_programs_own_is_compiled_once() -> None:
    def call() -> None:
        x = torch.ones(3, requires_grad=True)
        fxjit.compile(lambda x: twice.apply(x) + 1)(x).sum().backward()
        torch.testing.assert_close(x.grad, torch.full((3,), factor))

    for factor, misses in ((2.0, 1), (2.0, 0), (5.0, 1), (2.0, 0)):
        by = factor

        class Twice(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: torch.Tensor, by: float = by) -> torch.Tensor:
                ctx.by = by
                return x * 2

            @staticmethod
            def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
                return grad * ctx.by

        twice = Twice
        assert count_misses(call) == misses


def test_code_put_into_torchs_operators_is_compiled_each_time() -> None:
    x = torch.ones(3, requires_grad=True)
    library = torch.library.Library("aten", "IMPL")
    fxjit.compile(lambda x: x.cosh() + 1)(x)
    try:
        library.impl("cosh", lambda x: x * 5, "AutogradCPU", allow_override=True)
        assert count_misses(lambda: fxjit.compile(lambda x: x.cosh() + 1)(x)) > 0
    finally:
        library._destroy()


PACKAGE = """
import torch


@torch.library.custom_op("{name}::tripled", mutates_args=())
def tripled(x: torch.Tensor) -> torch.Tensor:
    return x * 3


@torch.library.custom_op("{name}::tripled_backward", mutates_args=())
def tripled_backward(grad: torch.Tensor) -> torch.Tensor:
    return grad * 3


def fake(x):
    return torch.empty_like(x)


def backward(ctx, grad):
    return torch.ops.{name}.tripled_backward(grad)


for each in (tripled, tripled_backward):
    each.register_fake(fake)
tripled.register_autograd(backward, setup_context=globals().get("set_up"))
"""
PLAIN = """
def helper(x, by):
    torch._check(x.dim() > 0)
    with torch.no_grad():
        return torch.nn.functional.relu(x.new_full(x.shape, by) + torch.zeros_like(x).to(x.dtype)) * math.sqrt(len(x.shape))


def set_up(ctx, inputs, output):
    ctx.save_for_backward(*inputs)
    ctx.by = torch.sym_max(1, max(2, int(inputs[0].ndim)))


def backward(ctx, grad):
    (x,) = ctx.saved_tensors
    return grad * ctx.by + helper(x, 1.0) * 0 if ctx.needs_input_grad[0] else None


tripled.register_autograd(backward, setup_context=set_up)
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Makes a package with an operator of its own, which lies in a folder of this name."""

    def install(name: str, place: str, more: str = "") -> Any:
        home = tmp_path / place
        (home / name).mkdir(parents=True)
        (home / name / "__init__.py").write_text(PACKAGE.format(name=name) + more)
        (home / f"{name}-1.0.dist-info").mkdir()
        (home / f"{name}-1.0.dist-info" / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        monkeypatch.syspath_prepend(str(home))
        return importlib.import_module(name)

    return install


def triple_step(module: Any, compile_: Callable[[Any], Any]) -> list[torch.Tensor]:
    x = torch.linspace(-1, 1, 5).requires_grad_()
    out = compile_(lambda x: module.tripled(x).sin() + 1)(x)
    out.sum().backward()
    assert x.grad is not None
    return [out, x.grad]


def test_an_operator_of_an_installed_package_is_what_its_file_says(installed: Any, from_disk: Callable[[], None]) -> None:
    module = installed("tripling", "site-packages")
    expected = triple_step(module, lambda fn: fn)
    for again in (False, True):
        if again:
            from_disk()
        for mine, theirs in zip(triple_step(module, fxjit.compile), expected, strict=True):
            torch.testing.assert_close(mine, theirs)


def test_an_operator_that_only_the_backward_graph_calls_is_looked_at_too(
    installed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = installed("tripling_once", "site-packages")
    assert count_misses(lambda: triple_step(module, fxjit.compile)) == 1
    assert count_misses(lambda: triple_step(module, fxjit.compile)) == 0
    monkeypatch.setattr(module.tripled_backward, "_abstract_fn", lambda grad: torch.empty_like(grad))
    assert count_misses(lambda: triple_step(module, fxjit.compile)) == 1


OBJECT = "from {name}.helper import FACTOR\ndef h():\n    pass\nh.factor = h.ndim = FACTOR\nh.__doc__ = str(FACTOR)\n"
def test_what_derivatives_usually_do_is_all_said_by_their_code(installed: Any) -> None:
    module = installed("tripling_plainly", "site-packages", "\n\nimport math\n" + PLAIN)
    assert count_misses(lambda: triple_step(module, fxjit.compile)) == 1
    assert count_misses(lambda: triple_step(module, fxjit.compile)) == 0


#: What else may decide the derivative of a package's operator -> the same, said otherwise in the next process.
ELSEWHERE: dict[str, tuple[str, str | None]] = {
    "the environment, read at import": ("import os\nFACTOR = float(os.environ['TEST_FACTOR'])\n", "grad * FACTOR"),
    "the environment, read at a call": ("import os\n", "grad * float(os.environ['TEST_FACTOR'])"),
    "itself": ("from {name}.helper import FACTOR\n", "torch.ops.{name}.tripled.default(grad) * (FACTOR / 3)"),
    "a helper in another file": ("from {name}.helper import factor\n", "grad * factor()"),
    "a helper's constant": ("from {name}.helper import FACTOR\n", "grad * FACTOR"),
    "a module": ("from {name} import helper\n", "grad * helper.FACTOR"),
    "a table": ("from {name}.helper import FACTOR\nTABLE = [FACTOR]\n", "grad * TABLE[0]"),
    "an object": ("from {name}.helper import FACTOR\nclass S: pass\ns = S()\ns.factor = FACTOR\n", "grad * s.factor"),
    "an import at a call": ("", "grad * __import__('{name}.helper').helper.FACTOR"),
    "a lambda": ("from {name}.helper import factor\n", "(lambda g: g * factor())(grad)"),
    "a default": ("from {name}.helper import FACTOR\ndef scaled(g, by=FACTOR):\n    return g * by\n", "scaled(grad)"),
    "an attribute of a function": (OBJECT, "grad * h.factor"),
    "an attribute of a function, by name": (OBJECT, "grad * getattr(h, 'factor')"),
    "an attribute of a function, in a text": (OBJECT, "grad * float('{0.factor}'.format(h))"),
    "an attribute of a function, by an operator": ("import operator\n" + OBJECT, "grad * operator.attrgetter('factor')(h)"),
    "an attribute that tensors have, too": (OBJECT, "grad * h.ndim"),
    "a doc string": (OBJECT, "grad * float(h.__doc__)"),
    "a function that says it is torch's": (
        "import functools, torch\nfrom {name}.helper import FACTOR\n"
        "@functools.wraps(torch.nn.functional.gelu)\ndef gelu(x):\n    return x * FACTOR\n", "gelu(grad)"),
    "a function that says it is in C": (
        "import functools, torch\nfrom {name}.helper import FACTOR\n"
        "@functools.wraps(torch.sin)\ndef sin(x):\n    return x * FACTOR\n", "sin(grad)"),
    "a method put into tensors": (
        "import torch\nfrom {name}.helper import FACTOR\ntorch.Tensor.{name}_by = lambda x: x * FACTOR\n", "grad.{name}_by()"),
    "an attribute put into tensors": (
        "import torch\nfrom {name}.helper import FACTOR\ntorch.Tensor.{name}_at = FACTOR\n", "grad * grad.{name}_at"),
    "an attribute of the class of tensors": (
        "import torch\nfrom {name}.helper import FACTOR\ntorch.Tensor.{name}_at = FACTOR\n", "grad * torch.Tensor.{name}_at"),
    "a setting of torch's": (
        "import torch\nfrom {name}.helper import FACTOR\ntorch.set_printoptions(precision=int(FACTOR))\n",
        "grad * torch._tensor_str.PRINT_OPTS.precision"),
    "the seed": (
        "import torch\nfrom {name}.helper import FACTOR\ntorch.manual_seed(int(FACTOR))\n", "grad * torch.initial_seed()"),
    "a file": (
        "import os, torch\nfrom {name}.helper import FACTOR\nPATH = os.path.join(os.path.dirname(__file__), 'factor')\n"
        "torch.save(FACTOR, PATH)\n", "grad * torch.load(PATH)"),
    "the context": (
        "from {name}.helper import FACTOR\ndef set_up(ctx, inputs, output):\n    ctx.factor = FACTOR\n", "grad * ctx.factor"),
    "the environment, in the context": (
        "import os\ndef set_up(ctx, inputs, output):\n    ctx.by = float(os.environ['TEST_FACTOR'])\n", "grad * ctx.by"),
}  # fmt: skip


def test_what_else_decides_an_operators_derivative_is_part_of_the_graph(folder: Path, tmp_path: Path) -> None:
    """Each time another process, in which the packages have the same version and the same files, but the factor is another."""
    home = tmp_path / "site-packages"
    names = {where: f"scaling_{place}" for place, where in enumerate(ELSEWHERE)}
    for where, name in names.items():
        head, backward = (text.replace("{name}", name) for text in ELSEWHERE[where])
        (home / name).mkdir(parents=True)
        text = PACKAGE.format(name=name).replace(f"torch.ops.{name}.tripled_backward(grad)", backward)
        (home / name / "__init__.py").write_text(head + text)
        (home / f"{name}-1.0.dist-info").mkdir()
        (home / f"{name}-1.0.dist-info" / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    code = (f"import importlib, sys, torch\nsys.path.insert(0, {str(home)!r})\nimport fxjit\n"
            "fxjit.config.small_graphs_as_captured = False\n"
            "for name in sys.argv[1:]:\n"
            "    module = importlib.import_module(name)\n"
            "    x = torch.ones(3, requires_grad=True)\n"
            "    fxjit.compile(lambda x: module.tripled(x).sin() * 1 + 1)(x).sum().backward()\n"
            "    print(x.grad[0].item())\n")
    for factor in ("1", "38"):
        for name in names.values():
            (home / name / "helper.py").write_text(f"FACTOR = {factor}.0\ndef factor():\n    return {factor}.0\n")
        environment = config.child_environment(FXJIT_CACHE_DIR=str(folder.parent), PYTHONDONTWRITEBYTECODE="1")
        environment["TEST_FACTOR"] = factor
        command = [sys.executable, "-W", "ignore", "-c", code, *names.values()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
        assert done.returncode == 0, done.stderr
        expected = torch.tensor(3.0).cos().item() * float(factor)
        for where, found in zip(names, done.stdout.split(), strict=True):
            assert float(found) == pytest.approx(expected), where


def test_an_operator_of_the_programs_own_is_what_its_code_says(installed: Any) -> None:
    module = installed("tripling_here", "project")
    for misses in (1, 0):
        assert count_misses(lambda: triple_step(module, fxjit.compile)) == misses
    torch.library.register_fake("tripling_here::tripled", lambda x: torch.empty_like(x), allow_override=True)
    for misses in (1, 0):
        assert count_misses(lambda: triple_step(module, fxjit.compile)) == misses
    sizes = [5]
    torch.library.register_fake("tripling_here::tripled", lambda x: x.new_empty(sizes), allow_override=True)
    for _ in range(2):
        assert count_misses(lambda: triple_step(module, fxjit.compile)) == 1


def test_what_is_assumed_of_sizes_that_vary_is_part_of_the_graph() -> None:
    def call(fn: Callable[..., Any], x: torch.Tensor) -> int:
        return count_misses(lambda: fxjit.compile(fn, dynamic=True)(x, x))

    def even(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return scaled(x, y) if x.shape[0] % 2 == 0 else scaled(x, y)

    x = torch.ones(6, 4)
    assert call(scaled, x) > 0
    assert call(scaled, x) == 0
    assert call(even, x) > 0
    assert call(even, x) == 0
    assert call(scaled, x) == 0


def test_a_size_that_data_decides_is_compiled_each_time() -> None:
    with config.patch(capture_dynamic_output_shape_ops=True):
        for _ in range(2):
            assert count_misses(lambda: fxjit.compile(lambda x: x[x > 0] * 2)(torch.ones(3))) > 0


def test_code_that_assumes_more_of_sizes_than_its_graph_is_not_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would guard what a graph from the disk assumes."""
    through_aot = compile_module._through_aot

    def deciding(gm: Any, inputs: Any, backend: Any) -> Any:
        found = through_aot(gm, inputs, backend)
        sizes = [each for node in gm.graph.find_nodes(op="placeholder") for each in node.meta["example_value"].shape]
        assert next(size for size in sizes if isinstance(size, torch.SymInt)) > 4
        return found

    monkeypatch.setattr(compile_module, "_through_aot", deciding)
    fxjit.compile(scaled, dynamic=True)(torch.ones(6, 4), torch.ones(6, 4))
    assert not list(folder.glob("*.json"))


# The disk


def entry_of(folder: Path) -> Path:
    (entry,) = folder.glob("*.json")
    return entry


def written(entry: Path, facts: Any) -> None:
    """As somebody would write it who knows how."""
    KernelCache(entry.parent).put(entry.stem, FACTS, json.dumps(facts).encode())


def cut_short(folder: Path) -> None:
    entry = entry_of(folder)
    entry.write_bytes(entry.read_bytes()[:50])


def another_format(folder: Path) -> None:
    written(entry_of(folder), {"plan": ["Path", "x"], "graphs": {}})


def unknown_operator(folder: Path) -> None:
    entry = entry_of(folder)
    data = json.loads(KernelCache(folder).get(entry.stem, FACTS) or b"")
    gone = ["FunctionName", {"kind": "operator", "name": "aten.gone.default"}]
    data["graphs"]["inference"][0][1]["objects"] = ["tuple", gone]
    written(entry, data)


def no_library(folder: Path) -> None:
    for library in folder.glob("*.so"):
        library.unlink()


def others_may_write(folder: Path) -> None:
    entry_of(folder).chmod(0o666)


@pytest.mark.parametrize("damage", [cut_short, another_format, unknown_operator, no_library, others_may_write])
def test_a_damaged_entry_is_made_again(folder: Path, damage: Callable[[Path], None]) -> None:
    x = torch.linspace(-1, 1, 12).view(3, 4)
    fxjit.compile(scaled)(x, x)
    damage(folder)
    fxjit.reset()
    torch.testing.assert_close(fxjit.compile(scaled)(x, x), scaled(x, x))
    assert count_misses(lambda: fxjit.compile(scaled)(x, x)) == 0


def test_without_the_setting_only_kernels_are_kept(folder: Path) -> None:
    with config.patch(cache_graphs=False):
        fxjit.compile(scaled)(torch.ones(3, 4), torch.ones(3, 4))
    assert not list(folder.glob("*.json")) and list(folder.glob("*.so"))


def test_a_watched_stage_is_gone_through() -> None:
    x = torch.ones(3, 4)
    fxjit.compile(scaled)(x, x)
    fxjit.reset()
    logs.set_logs("output_code")
    try:
        fxjit.compile(scaled)(x, x)
    finally:
        logs.set_logs()
    assert counters["cache"] == {"hit": 1}  # the kernels


# What a compile leaves behind beside the code


def test_numbers_about_the_code_are_counted_again(from_disk: Callable[[], None]) -> None:
    x = torch.ones(3, 4)
    fxjit.compile(scaled)(x, x)
    before = dict(counters["native"])
    from_disk()
    fxjit.compile(scaled)(x, x)
    assert dict(counters["native"]) == before


def test_what_the_backend_queried_is_queried_again(
    from_disk: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.ones(64, 64)
    queried: list[set[str]] = []
    query = process_state.query
    monkeypatch.setattr(process_state, "query", lambda name: queried[-1].add(name) or query(name))
    for again in (False, True):
        if again:
            from_disk()
        queried.append(set())
        fxjit.compile(lambda x: (x @ x).relu())(x)
    assert queried[0] == queried[1] and queried[0]
