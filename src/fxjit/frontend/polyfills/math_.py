"""Functions of `math` that are made of Python's operators, so that they take numbers that vary."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from fxjit.frontend.values.calls import polyfill


@polyfill(math.prod)
def prod(iterable: Iterable[Any], /, *, start: Any = 1) -> Any:
    product = start
    for item in iterable:
        product = product * item
    return product
