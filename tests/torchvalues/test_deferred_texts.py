"""Texts of numbers out of tensors, as logs and progress bars have them: written when the graph has run, without a break."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.differential import assert_same, outcome
from torch import Tensor

import fxjit

pytestmark = pytest.mark.usefixtures("nothing_compiled")


def formatted(x: Tensor, log: list[Any]) -> Any:
    loss, count = (x * 2).sum(), (x > 0).sum().item()
    log.append(f"loss {loss.item():.4f}, {count:>5d} of {x.numel()}, {loss.item()!r:>12} {count!s} {count:,} {float(count)}")
    return x + 1


def by_method(x: Tensor, log: list[Any]) -> Any:
    loss = x.sum().item()
    log.append("loss {:.3e} {name:+.1f} {!r}".format(loss, loss, name=-loss) + " | {loss:8.2f}".format_map({"loss": loss}))
    return x + 1


def by_percent(x: Tensor, log: list[Any]) -> Any:
    loss, count = x.sum().item(), (x > 0).sum().item()
    log.append("loss %.3f of %d (%5.1f%%), %s %r" % (loss, count, 100.0 * count / 4, loss, count))
    log.append("%(loss)g" % {"loss": loss})
    return x + 1


def as_str(x: Tensor, log: list[Any]) -> Any:
    loss = x.sum().item()
    log.append(str(loss) + ", " + repr(-loss) + ", " + format(loss, ".2f") + ", " + ", ".join(["a", f"{loss}", str(loss > 0)]))
    return str([loss, 1, (loss, "b")]), f"{{}} {dict(loss=loss, name='a')}", f"{'loss ' + str(loss):>30}", 2 * f"{loss} "


def of_each_row(x: Tensor, log: list[Any]) -> Any:
    total = 0.0
    for at, row in enumerate(x):
        total += row.sum().item()
        log.append(f"{at}: {total / (at + 1):.2f}")
    return x * 2, "\n".join(log[-2:])


def written_behind(x: Tensor, log: list[Any]) -> Any:
    y = x.clone()
    text = f"{y[0, 0].item()} {x[0, 0].item()}"
    y.add_(1)
    x.mul_(2)
    return y, text


FORMS = [formatted, by_method, by_percent, as_str, of_each_row, written_behind]


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("fn", FORMS, ids=lambda fn: fn.__name__)
def test_texts_do_not_break(fn: Callable[..., Any], backend: str) -> None:
    compiled = fxjit.compile(fn, backend=backend)
    logs: tuple[list[Any], list[Any]] = ([], [])
    for seed, rows in enumerate((3, 3, 5, 2)):  # of whole numbers all sums are exact
        x = torch.randint(-9, 9, (rows, 4), generator=torch.Generator().manual_seed(seed)).float()
        same = x.clone()
        assert_same(compiled(same, logs[1]), fn(x, logs[0]))
        assert logs[1] == logs[0]
        assert torch.equal(x, same)
    assert not sum(fxjit.counters["graph_break"].values())


@pytest.mark.parametrize("fn", FORMS, ids=lambda fn: fn.__name__)
def test_texts_of_unusual_numbers(fn: Callable[..., Any]) -> None:
    compiled = fxjit.compile(fn, backend="eager")
    for number in (math.nan, math.inf, -0.0, 1e30):
        logs: tuple[list[Any], list[Any]] = ([], [])
        x = torch.full((2, 2), number)
        assert repr(compiled(x.clone(), logs[1])) == repr(fn(x.clone(), logs[0]))
        assert logs[1] == logs[0]


#: What looks into a text: as eager's, with a break.
USES: dict[str, Callable[[str, float], Any]] = {
    "length": lambda s, n: len(s), "equal": lambda s, n: s == "loss 3.0", "key": lambda s, n: {s: 1},
    "in": lambda s, n: "3" in s, "upper": lambda s, n: s.upper(), "split": lambda s, n: s.split(), "first": lambda s, n: s[0],
    "each": lambda s, n: list(s), "truth": lambda s, n: 1 if s else 2, "ordered": lambda s, n: sorted([s, "a"]),
    "number": lambda s, n: float(s[5:]), "hash": lambda s, n: hash(s) == hash("loss 3.0"),
    "padded": lambda s, n: s.ljust(20) + "|", "percent": lambda s, n: s % (), "none": lambda s, n: s is None,
    "class": lambda s, n: (isinstance(s, str), type(s)), "ascii": lambda s, n: ascii(n),
    "attribute": lambda s, n: getattr(torch, s, 5), "encoded": lambda s, n: s.encode(), "times": lambda s, n: "ab" * int(n),
    "times a text": lambda s, n: s * 2, "no character": lambda s, n: f"{n:c}", "no format": lambda s, n: f"{n:q}",
    "character": lambda s, n: f"{int(n):c}", "no integer": lambda s, n: "%x" % n, "width": lambda s, n: f"{1:{int(n)}}",
    "plus a number": lambda s, n: s + 1, "raised": lambda s, n: _raise(s), "missing": lambda s, n: "%d %d" % n,
    "set": lambda s, n: {s, "a"} == {"loss 3.0", "a"}, "unpacked": lambda s, n: [*s], "text of text": lambda s, n: f"{s!r}",
    "given by name": lambda s, n: dict(**{s: 1}), "among": lambda s, n: s in ("a", "loss 3.0"),
    "key in": lambda s, n: s in {"loss 3.0"}, "separator": lambda s, n: s.join(["a", "b"]),
    "has": lambda s, n: hasattr(torch, s), "replaced": lambda s, n: "a3".replace("3", s), "greater": lambda s, n: max(s, "a"),
    "unequal": lambda s, n: s != "loss 3.0", "the same": lambda s, n: s == f"loss {n}",
    "width by star": lambda s, n: "%*d" % (int(n), 1), "starts": lambda s, n: s.startswith("loss"),
    "whole": lambda s, n: f"{n:d}",
}  # fmt: skip


def _raise(text: str) -> None:
    raise ValueError(text)


@pytest.mark.parametrize("use", USES)
def test_what_looks_into_a_text(use: str) -> None:
    def program(x: Tensor) -> Any:
        number = x.sum().item()
        return USES[use](f"loss {number}", number), x + 1

    def caught(x: Tensor) -> Any:
        number, y = (x * 1).sum().item(), x + 1
        try:
            return y, USES[use](f"loss {number}", number)
        except Exception as error:  # noqa: BLE001 - an exception is an outcome
            return y, type(error), str(error)

    for fn in (program, caught):
        compiled = fxjit.compile(fn, backend="eager")
        for x in (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0]), torch.tensor([4.0, -1.5])):
            assert_same(outcome(compiled, (x,)), outcome(fn, (x,)), use)


def test_printing_breaks_once() -> None:
    def program(x: Tensor) -> Any:
        loss = (x * 2).sum()
        print(f"loss {loss.item():.4f}", loss.item(), "%.2f" % loss.item())
        return x - loss

    shown = []
    compiled = fxjit.compile(program, backend="eager")
    for fn in (program, compiled):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            result = fn(torch.ones(3))
        shown.append((out.getvalue(), result.tolist()))
    assert shown[0] == shown[1]
    assert sum(fxjit.counters["graph_break"].values()) == 1
