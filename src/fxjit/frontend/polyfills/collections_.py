"""The C parts of collections in plain Python."""

from __future__ import annotations

import collections
from collections.abc import Iterable
from typing import Any

from fxjit.frontend.values.calls import polyfill


@polyfill(collections._count_elements)  # type: ignore[attr-defined]  # what Counter.update calls
def count_elements(mapping: Any, iterable: Iterable[Any]) -> None:
    for item in iterable:
        mapping[item] = mapping.get(item, 0) + 1
