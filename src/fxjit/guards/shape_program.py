"""The meaning of shape programs (_shape_program.h) in Python, for guards whose expression is not at hand."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Final

from fxjit._C import SHAPE_OPS

_BINARY: Final[dict[str, Callable[[int, int], int]]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "floordiv": operator.floordiv, "mod": operator.mod,
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le,
    "gt": operator.gt, "ge": operator.ge, "max": max, "min": min,
    "and": lambda a, b: int(bool(a) and bool(b)), "or": lambda a, b: int(bool(a) or bool(b)),
}  # fmt: skip


def evaluate_program(words: Sequence[int], values: Sequence[int]) -> bool:
    """Whether the relation that the program states holds of these numbers; False where it divides by zero."""
    stack: list[int] = []
    at = 0
    try:
        while at < len(words):
            name = SHAPE_OPS[words[at]]
            at += 1
            if name in ("var", "const"):
                stack.append(values[words[at]] if name == "var" else words[at])
                at += 1
            elif name in ("not", "neg"):
                stack.append(int(not stack.pop()) if name == "not" else -stack.pop())
            else:
                second = stack.pop()
                stack.append(int(_BINARY[name](stack.pop(), second)))
    except ZeroDivisionError:
        return False
    return bool(stack.pop())
