"""Random programs over views, writes and recording: values, memory and gradients, compiled and in eager.

`python -m tests.fuzz.gradients --programs 500 --seed 0`. Every graph is compiled, also where it would cost less as captured.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

import fxjit

NEW = (
    "{a} * {b}", "{a} + {b}", "{a}.sin()", "{a} * 2.5", "{a}.exp().tanh()", "{a} - {b}.sum()", "{a}.relu()", "{a}.abs()",
    "{a} @ W", "{a}.softmax(-1)", "torch.where({a} > 0, {a}, {b})", "{a}.clamp(-1, 1)",
    "{a}.sigmoid() * {b}.cos()", "{a}.mean() * {b}",
    "{a}.cumsum(0)", "torch.maximum({a}, {b})", "{a}.sum(0, keepdim=True) + {b}", "torch.dropout({a}, 0.3, True)",
    "{a}.std() * {b}", "{a}.flip(0)", "{a}[[2, 0, 1]]", "{a}.clone()",
)
VIEWS = (
    "{a}.view_as({a})", "{a}.t()", "{a}.view(9).view(3, 3)", "{a}.transpose(0, 1)", "{a}[:]", "{a}.detach()",
    "{a}.contiguous()", "{a}.expand(3, 3)", "{a}.reshape(3, 3)", "{a}.unsqueeze(0).squeeze(0)",
    "{a}.data",
)
WRITES = (
    "{a}.add_({b})", "{a}.mul_(1.5)", "{a}.mul_({b})", "{a}[0].mul_(2)", "{a}[:, 1] = {b}[:, 0]", "{a}.copy_({b})",
    "{a}[1] = 3.0", "{a}.t().add_(1)", "{a}.clamp_(min=-0.5)", "{a}.detach().mul_(1.25)", "{a}.diagonal().zero_()",
    "{a}.relu_()", "{a}.sin_()",
    "{a}.view(-1)[2:5].add_({b}.reshape(-1)[:3])", "{a}.sub_({a}.sum())", "{a}.zero_()", "{a}.index_add_(0, ROWS, {b})",
    "{a}.masked_fill_({b} > 1, 0.5)", "{a}.transpose_(0, 1)",
)
MODES = ("torch.no_grad()", "torch.enable_grad()", "torch.autocast('cpu', torch.bfloat16)")
W, ROWS = torch.linspace(-1, 1, 9).reshape(3, 3), torch.tensor([0, 2, 1])


def _first(wanted: bool = False) -> torch.Tensor:
    return (torch.arange(9.0).reshape(3, 3) / 7 - 0.5).requires_grad_(wanted)


def _second(wanted: bool = False) -> torch.Tensor:
    return (torch.cos(torch.arange(9.0).reshape(3, 3)) + 1.2).requires_grad_(wanted)


def _results(made: Callable[[torch.Tensor], Any]) -> Callable[[], Any]:
    def make() -> Any:
        leaf = _first(True)
        return *made(leaf), leaf
    return make


#: Two inputs, and the leaves that gradients are asked for.
INPUTS: dict[str, Callable[[], Any]] = {
    "two leaves": lambda: (x := _first(True), y := _second(True), x, y),
    "a leaf behind a plain one": lambda: (_first(), y := _second(True), y),
    "a leaf and a plain one": lambda: (x := _first(True), _second(), x),
    "a result and a leaf": lambda: (*_results(lambda w: (w * 1, _second()))(),),
    "two results": _results(lambda w: (w * 1, w * 2)),
    "one twice": _results(lambda w: (w * 1,) * 2),
    "a view and its base": _results(lambda w: (lambda r: (r.t(), r))(w * 1)),
    "a base and its view": _results(lambda w: (lambda r: (r, r.view(9).view(3, 3)))(w * 1)),
    "a detached one": _results(lambda w: (w * 1, (w * 1).detach())),
    "plain ones": lambda: (_first(), _second()),
    "overlapping plain ones": lambda: (lambda w: (w[:3], w[1:]))(torch.arange(12.0).reshape(4, 3) / 7),
    "overlapping views of a leaf": lambda: (lambda w: (w[:3], w[1:], w))(
        (torch.arange(12.0).reshape(4, 3) / 7).requires_grad_()),
}


def program(seed: int) -> str:
    """The source of a function of two tensors, and of a list of what it caught."""
    chosen, names, lines = random.Random(seed), ["x", "y"], list[str]()
    for at in range(chosen.randint(2, 7)):
        a, b, kind, indent = chosen.choice(names), chosen.choice(names), chosen.random(), "    "
        if chosen.random() < 0.12:
            lines.append(f"    with {chosen.choice(MODES)}:")
            indent = "        "
        text = chosen.choice(NEW if kind < 0.45 else VIEWS if kind < 0.65 else WRITES).format(a=a, b=b)
        made = "" if kind >= 0.65 else f"v{at}"
        line = f"{made} = {text}" if made else text
        if chosen.random() < 0.12:
            line = f"try: {line}\n{indent}except RuntimeError as error: caught.append(str(error)[:40])"
            line += f"; {made} = {a}" if made else ""
        lines.append(indent + line)
        names += [made] * bool(made)
    results = [chosen.choice(names) for _ in range(chosen.randint(1, 3))]
    return "def f(x, y, caught):\n" + "\n".join(lines) + f"\n    return {', '.join(dict.fromkeys([*results, names[-1]]))},\n"


def _told(tensor: torch.Tensor) -> Any:
    try:
        facts = tensor.requires_grad, tensor.is_leaf
    except RuntimeError:  # a view that autograd knows no history of
        return "stale"
    return str(tensor.dtype), tuple(tensor.shape), tensor.stride(), facts, tensor.detach().float().tolist()


def outcome(call: Callable[..., Any], given: str, twice: bool) -> list[Any]:
    """What a call came to: results, inputs, what shares memory, what was caught, and gradients."""
    torch.manual_seed(0)
    x, y, *leaves = INPUTS[given]()
    caught: list[str] = []
    try:
        results = call(x, y, caught)
    except RuntimeError as error:
        return ["raised", str(error)[:20], _told(x)[-1], _told(y)[-1], caught]
    tensors = [*results, x, y]
    told = [
        [_told(each) for each in tensors], [[a is b for b in tensors] for a in tensors],
        caught, torch.get_rng_state().sum().item(),
        [[a.untyped_storage()._cdata == b.untyped_storage()._cdata for b in tensors] for a in tensors]]
    differentiated = [each.float() for each in results if _told(each) != "stale" and each.requires_grad]
    if not differentiated or not leaves:
        return told
    loss = sum((each * each).sum() if at % 2 else each.sum() * 1.5 for at, each in enumerate(differentiated))
    try:
        found = torch.autograd.grad(loss, leaves, create_graph=twice, allow_unused=True)
        told.append([_zeros_or(each, leaf) for each, leaf in zip(found, leaves, strict=True)])
        again = sum((each * each).sum() for each in found if each is not None and each.requires_grad) if twice else None
        if isinstance(again, torch.Tensor):
            found = torch.autograd.grad(again, leaves, allow_unused=True)
            told.append([_zeros_or(each, leaf) for each, leaf in zip(found, leaves, strict=True)])
    except RuntimeError as error:
        told.append(str(error)[:50])
    return told


def _zeros_or(gradient: torch.Tensor | None, leaf: torch.Tensor) -> Any:
    """Where a graph writes to what autograd follows, a leaf that nothing depends on has zeros (docs/errors.md)."""
    return (torch.zeros_like(leaf) if gradient is None else gradient.detach()).tolist()


def is_close(a: Any, b: Any, tolerance: float) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (a != a and b != b) or abs(a - b) <= tolerance * (1 + abs(a) + abs(b))
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(is_close(p, q, tolerance) for p, q in zip(a, b, strict=True))
    return bool(a == b)


#: A second derivative behind AOTAutograd's own wrappers, and what is saved being written to between (docs/errors.md).
LIMITS = (
    "torch.compile with aot_autograd does not", "this compiled graph has no second derivative", "one of the variables needed")


def difference(seed: int) -> str:
    """Where a program ends otherwise when it is compiled; empty where it does not."""
    chosen, source = random.Random(-seed - 1), program(seed)
    space: dict[str, Any] = {"torch": torch, "W": W, "ROWS": ROWS}
    exec(compile(source, f"<gradients_{seed}>", "exec"), space)
    backend, dynamic = chosen.choice([
        ("aot_eager", None), ("native", None), ("native", True), ("aot_eager", True), ("eager", None)])
    twice, tolerance = chosen.random() < 0.2, 3e-2 if "bfloat16" in source else 2e-4
    fxjit.reset()
    with fxjit.config.patch(small_graphs_as_captured=False):
        compiled = fxjit.compile(space["f"], backend=backend, dynamic=dynamic)
        for given in chosen.sample(list(INPUTS), 3):
            expected, found = outcome(space["f"], given, twice), outcome(compiled, given, twice)
            if any(isinstance(each[-1], str) and each[-1].startswith(LIMITS) for each in (expected, found)):
                continue
            if twice and len(found) != len(expected) and is_close(found[:6], expected[:6], tolerance):
                continue  # a gradient that is a constant has none, or one of zeros
            if not is_close(expected, found, tolerance):
                return f"seed {seed}, {backend}, dynamic={dynamic}, {given}:\n{source}\n{expected}\nbecame\n{found}"
    return ""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    different = [found for seed in range(options.seed, options.seed + options.programs) if (found := difference(seed))]
    print("\n\n".join([*different, f"{options.programs} programs from {options.seed}: {len(different)} differ"]))
    return bool(different)


if __name__ == "__main__":
    raise SystemExit(main())
