"""Random programs of views, writes in place and modes of autograd give, compiled, what they give in plain Python: values, which
results require a gradient, are leaves, are inference tensors, are one or share memory, and the gradients of what the inputs
were made from. A gradient of zeros counts as none: AOTAutograd gives zeros to inputs that a graph wrote to.

    python -m tests.fuzz.recorded --programs 1000 --seed 0 [--backend aot_eager]

A program that differs is printed with its seed; the exit status is 1 if any does.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

import fxjit

#: What makes a tensor of `a`, and of `b`.
MADE = (
    "{a}.t()", "{a}[:2]", "{a}[..., 1:]", "{a}.view(-1)[:4].view(2, 2)", "{a}.detach()", "{a} * 2", "{a} + {b}", "{a}.sin()",
    "{a}.clone()", "{a}.expand_as({a})", "{a}.unsqueeze(0)[0]", "{a}.data", "{a}.reshape(-1)[:4].reshape(2, 2)",
    "torch.where({a} > 0, {a}, {b})", "{a}.chunk(2)[0]", "{a}.unbind(0)[0].expand(2, 2)", "{a}.select(0, 1)",
    "{a}.contiguous()",
    "{a}.to(torch.float64).float()", "{a}.to(torch.float32)", "{a} @ {a}.t()", "{a}.sum(0, keepdim=True)", "{a}.diagonal()",
    "torch.zeros_like({a})", "{a}.real", "{a}.mean() * {b}", "torch.cat([{a}.flatten(), {b}.flatten()])[:4].view(2, 2)",
    "{a}.as_strided((2, 2), (1, 1))", "{a}.movedim(0, -1)", "{a}.flatten()[:4]", "{a}.squeeze()", "{a}.cumsum(0)",
    "{a}.float()",
)  # fmt: skip
#: What changes `a` in place.
WRITTEN = (
    "{a}.add_(1)", "{a}.mul_({a})", "{a}[0] = 5.0", "{a}.zero_()", "{a}.copy_({a} * 2)", "{a}.relu_()", "{a}.add_({b}.sum())",
    "{a}.data.mul_(2)", "{a}.detach().add_(1)", "{a}.requires_grad_()", "{a}.detach_()", "{a}.t_()", "{a}.fill_(0.5)",
    "{a}[..., 0] += 1", "{a}.clamp_(0, 1)", "{a}.unsqueeze_(0).squeeze_(0)",
)  # fmt: skip
MODES = ("torch.no_grad()", "torch.enable_grad()", "torch.inference_mode()", "torch.set_grad_enabled(False)")
Inputs = tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]


def program(seed: int) -> str:
    """The source of a function `f(x, y)`."""
    chance = random.Random(seed)
    names, lines = ["x", "y"], []
    for number in range(chance.randint(2, 5)):
        a, b, indent = chance.choice(names), chance.choice(names), "    "
        if chance.random() < 0.35:
            lines.append(f"    with {chance.choice(MODES[:2] if chance.random() < 0.8 else MODES)}:")
            indent = "        "
        if chance.random() < 0.35:
            lines.append(indent + chance.choice(WRITTEN).format(a=a, b=b))
        else:
            lines.append(f"{indent}v{number} = {chance.choice(MADE).format(a=a, b=b)}")
            names.append(f"v{number}")
    returned = [name for name in names if chance.random() < 0.7] or names[-1:]
    return "\n".join(["def f(x, y):", *lines, f"    return [{', '.join(returned)}]", ""])


def inputs(seed: int) -> Inputs:
    """The two arguments, and the leaves that they are made from."""
    chance, generator, leaves = random.Random(seed * 7 + 1), torch.Generator().manual_seed(seed), list[torch.Tensor]()

    def numbers(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator)

    def leaf(*size: int) -> torch.Tensor:
        leaves.append(numbers(*size).requires_grad_())
        return leaves[-1]

    kinds: list[Callable[[], torch.Tensor]] = [
        lambda: numbers(2, 2), lambda: leaf(2, 2), lambda: leaf(2, 2) * 2, lambda: numbers(4, 2)[1:3],
        lambda: (leaf(4, 2) * 1)[1:3], lambda: numbers(2, 2).t(), lambda: leaf(2, 2)[:, :],
    ]  # fmt: skip
    x = chance.choice(kinds)()
    related = chance.random()
    if related < 0.15:
        return x, x, leaves
    return x, x.view(2, 2) if related < 0.3 and x.is_contiguous() else chance.choice(kinds)(), leaves


def told(f: Callable[..., Any], seed: int) -> list[Any]:
    """All that is compared of one call."""
    x, y, leaves = inputs(seed)
    try:
        results = f(x, y)
    except fxjit.errors.FxjitError:
        raise
    except Exception as error:  # noqa: BLE001 - an exception is an outcome
        return [type(error).__name__]
    every = [x, y, *results]
    found: list[Any] = [
        (each.requires_grad, _is_leaf(each), each.is_inference(), each.stride(), _numbers(each)) for each in every
    ]
    found.append([[a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() for b in every] for a in every])
    found.append([[a is b for b in every] for a in every])
    try:
        sums = [each.sum() for each in results if each.requires_grad and not each.is_inference()]
        if sums:
            torch.stack(sums).sum().backward()
    except RuntimeError:  # of what the program wrote to
        return [*found, "backward fails"]
    return [*found, [None if each.grad is None or not each.grad.any() else _numbers(each.grad) for each in leaves]]


def _is_leaf(tensor: torch.Tensor) -> bool | None:
    try:
        return tensor.is_leaf
    except RuntimeError:  # a view of inference mode that was written to since
        return None


def _numbers(tensor: torch.Tensor) -> list[float]:
    return [round(number, 3) + 0.0 for number in tensor.detach().flatten().tolist()]


def difference(seed: int, backend: str) -> str | None:
    """The program and where it parts from eager, in words; None where it does not, in two calls."""
    source, namespace = program(seed), {"torch": torch}
    exec(compile(source, f"<recorded_{seed}>", "exec"), namespace)
    f: Any = namespace["f"]
    expected = told(f, seed)
    fxjit.reset()
    compiled = fxjit.compile(f, backend=backend)
    for _ in range(2):
        try:
            actual = told(compiled, seed)
        except fxjit.errors.FxjitError as error:
            return f"{source}{type(error).__name__}: {error}"
        for left, right in zip(expected, actual, strict=False):
            if left != right:
                return f"{source}{left}\nbecame\n{right}"
        if len(expected) != len(actual):
            return f"{source}{expected}\nbecame\n{actual}"
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz.recorded", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="the first program's number")
    parser.add_argument("--backend", default="aot_eager")
    given = parser.parse_args(arguments)
    differ = []
    for seed in range(given.seed, given.seed + given.programs):
        found = difference(seed, given.backend)
        if found is not None:
            differ.append(seed)
            print(f"program {seed} differs ({given.backend}):\n{found}\n", flush=True)
    print(f"{given.programs} programs from {given.seed}: {len(differ)} differ {differ}", flush=True)
    return bool(differ)


if __name__ == "__main__":
    sys.exit(main())
