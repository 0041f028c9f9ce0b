"""A call inside modes of `__torch_function__`, in plain Python: what is traced where a compiled function is called under modes
that the program has entered outside (fxjit/under_modes.py). Modes are entered as torch's own do it, past the `__enter__` of
the program's, which it has run already."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.overrides import TorchFunctionMode


class Inside:
    """A mode in force."""

    def __init__(self, mode: TorchFunctionMode) -> None:
        self.mode = mode

    def __enter__(self) -> None:
        TorchFunctionMode.__enter__(self.mode)

    def __exit__(self, *error: object) -> None:
        TorchFunctionMode.__exit__(self.mode, None, None, None)


def called_inside(modes: Sequence[TorchFunctionMode], fn: Callable[..., Any], args: Sequence[Any],
                  kwargs: Mapping[str, Any]) -> Any:
    """`fn(*args, **kwargs)` inside of these modes, of which the last is the innermost."""
    if not modes:
        return fn(*args, **kwargs)
    with Inside(modes[0]):
        return called_inside(modes[1:], fn, args, kwargs)
