"""The source of a kernel: the C++ that the cache keeps beside its library."""

from __future__ import annotations

import re
from functools import cache

from fxjit import config
from fxjit.errors import ConfigError

#: Lines of a kernel's source that the page shows.
MOST_LINES = 200


def kernel_source(library: str, name: str) -> str:
    """The C++ function of that name; empty where the cache does not have it. `library` is its key."""
    lines = _lines(library)
    head = re.compile(rf"\b{re.escape(name.removeprefix('fxjit::'))}\s*\(")
    first = next((at for at, line in enumerate(lines)
                  if head.search(line) and not line.startswith((" ", "\t")) and ";" not in line), None)
    if first is None:
        return ""
    body: list[str] = []
    for line in lines[first : first + MOST_LINES]:
        body.append(line)
        if line.startswith("}"):
            return "\n".join(body)
    return "\n".join([*body, "// ..."])


@cache
def _lines(library: str) -> list[str]:
    try:
        return (config.cache_folder() / "kernels" / f"{library}.cpp").read_text(encoding="utf-8").splitlines()
    except (OSError, ConfigError):
        return []
