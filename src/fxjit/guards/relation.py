"""Relations between numbers as text of Python, for guards that no stack machine evaluates; stored entries keep the text."""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Callable
from typing import Any, Final

import torch

#: What the text may name besides its numbers, `v0`, `v1`...: functions that compute a number of numbers.
_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {"abs": abs, "max": max, "min": min, "round": round, "bool": bool}
_SPACES: Final[dict[str, Any]] = {"math": math, "torch": torch}
_NODES: Final = (ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Compare, ast.IfExp, ast.boolop, ast.operator, ast.unaryop, ast.cmpop)


class Relation:
    """Whether the text holds of so many numbers. `whole`: of which kinds they are to be, if that is to be checked, int (True)
    or float. Made again of what the slots have, in their order (stored/values.py)."""

    __slots__ = ("count", "text", "whole")

    def __init__(self, count: int, text: str, whole: tuple[bool, ...] | None) -> None:
        """Raises ValueError for a text that may do more than to compute."""
        self.count, self.text, self.whole = count, text, whole
        _function(text, count)

    def __call__(self, *values: Any) -> bool:
        if self.whole is not None and not all(type(value) is (int if whole else float) and value == value
                                              for value, whole in zip(values, self.whole, strict=True)):
            return False
        try:
            return bool(_function(self.text, self.count)(*values))
        except (ArithmeticError, ValueError):  # a division by zero, the root of a negative number
            return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Relation) and (self.count, self.text, self.whole) == (other.count, other.text, other.whole)

    def __hash__(self) -> int:
        return hash((self.count, self.text, self.whole))


@functools.cache
def _function(text: str, count: int) -> Callable[..., Any]:
    names = [f"v{place}" for place in range(count)]
    try:
        tree = ast.parse(f"lambda {', '.join(names)}: ({text})", mode="eval")
    except SyntaxError as error:
        raise ValueError(f"no text of Python: {text}") from error
    body = tree.body
    if not isinstance(body, ast.Lambda) or not _computes(body.body, names):
        raise ValueError(f"more than a relation between numbers: {text}")
    function: Callable[..., Any] = eval(compile(tree, "<guard>", "eval"), {**_FUNCTIONS, **_SPACES})
    return function


def _computes(node: ast.AST, names: list[str]) -> bool:
    """Whether nothing but arithmetic and functions of numbers is in it."""
    if isinstance(node, ast.Name):
        return node.id in names
    if isinstance(node, ast.Constant):
        return type(node.value) in (bool, int, float)
    if isinstance(node, ast.Call):
        return not node.keywords and _is_function(node.func) and all(_computes(each, names) for each in node.args)
    return isinstance(node, _NODES) and all(_computes(each, names) for each in ast.iter_child_nodes(node))


def _is_function(node: ast.expr) -> bool:
    if isinstance(node, ast.Name):
        return node.id in _FUNCTIONS
    if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
        return False
    return (node.value.id == "math" and not node.attr.startswith("_")) or (
        node.value.id == "torch" and node.attr.startswith(("sym_", "_sym_")))
