"""The public names of torch.compile by release: `python tools/torch_surface.py PYTHON...`, with an interpreter for each torch
of noxfile.py, writes tools/torch_surface.tsv: of each name that not every release has, the first and the last that has it.

`places()` are the names of the installed torch; `fxjit.surface` says what becomes of each.
"""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import types
from pathlib import Path

from fxjit import torch_compat

TABLE = Path(__file__).with_suffix(".tsv")


def public(module: types.ModuleType, own: bool) -> set[str]:
    """Names without an underscore that are no modules, types of annotations or other libraries'; `own`: functions and classes
    that are defined there."""
    found = set()
    for name in dir(module):
        value = getattr(module, name)
        home = getattr(value, "__module__", module.__name__) or ""
        if name.startswith("_") or isinstance(value, types.ModuleType) or name in ("F", "TYPE_CHECKING"):
            continue
        if home == module.__name__ and callable(value) if own else home.partition(".")[0] == "torch":
            found.add(name)
    return found


def places() -> dict[str, set[str]]:
    """The public names of the installed torch, by the place that `fxjit.surface` knows them under."""
    import torch
    import torch._dynamo
    import torch._dynamo.config
    import torch._dynamo.decorators
    import torch._dynamo.testing
    import torch._inductor.config
    from torch._inductor import list_mode_options

    return {
        "torch.compile": set(inspect.signature(torch.compile).parameters),
        "torch.compile(mode=)": set(list_mode_options()),
        "torch.compile(backend=)": set(torch._dynamo.list_backends(exclude_tags=())) - {"fxjit"},
        "torch.compiler": public(torch.compiler, own=False) | set(torch.compiler.__all__) - {"config"},
        "torch.compiler.config": set(torch.compiler.config._config),
        "torch._inductor.config": {name for name in torch._inductor.config._config if not name.startswith("_")},
        "torch._dynamo": public(torch._dynamo, own=False),
        "torch._dynamo.config": {name for name in torch._dynamo.config._config if not name.startswith("_")} - {"TYPE_CHECKING"},
        "torch._dynamo.decorators": public(torch._dynamo.decorators, own=True),
        "torch._dynamo.testing": public(torch._dynamo.testing, own=True),
    }


def spans() -> dict[tuple[str, str], tuple[tuple[int, int], tuple[int, int]]]:
    """(place, name) -> the first and the last release that has it, of the names that not every release has."""
    rows = (line.split("\t") for line in TABLE.read_text().splitlines()[1:])
    return {(place, name): (torch_compat.release(first), torch_compat.release(last)) for place, name, first, last in rows}


def enter(found: dict[tuple[int, int], set[tuple[str, str]]]) -> None:
    """Writes the table from the names of each release."""
    rows = []
    for place, name in sorted(set.union(*found.values()) - set.intersection(*found.values())):
        having = ["{}.{}".format(*release) for release in sorted(found) if (place, name) in found[release]]
        rows.append("\t".join((place, name, having[0], having[-1])))
    TABLE.write_text("\n".join(["place\tname\tfirst\tlast", *rows]) + "\n")


def main(pythons: list[str]) -> None:
    if pythons == ["--here"]:
        import torch

        print(json.dumps([torch.__version__, {place: sorted(names) for place, names in places().items()}]))
        return
    found = {}
    for python in pythons:
        said = subprocess.run([python, __file__, "--here"], stdout=subprocess.PIPE, text=True, check=True).stdout
        version, there = json.loads(said.splitlines()[-1])
        found[torch_compat.release(version)] = {(place, name) for place, names in there.items() for name in names}
    enter(found)


if __name__ == "__main__":
    main(sys.argv[1:])
