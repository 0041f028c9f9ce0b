"""The private names of torch that the source reads, what becomes of fxjit where a torch lacks one, and how they are read.

torch_names.tsv has one row for each: its policy, the feature it is for, and the shape that is expected of it.

* `cannot run`: no frame can be compiled. `require()` says so at the first call, or before the compiler is imported.
* `feature off`: the feature is off, with one warning; what would use it breaks the graph, or runs as captured. Such names are
  read through `get` and `optional`, or imported by a package whose door asks `is_on` first (`DOORS`).
* `fallback`: what the name is for is done another way, or cannot occur where the name is not there.

Shapes are compared when a name is first read: nothing is looked at by `import fxjit`, and nothing when a compiled call runs.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from . import torch_compat
from .errors import FxjitError

CANNOT_RUN, FEATURE_OFF, FALLBACK = "cannot run", "feature off", "fallback"
TABLE: Final = Path(__file__).with_name("torch_names.tsv")
#: The feature of each package that imports its names as usual, because nobody comes in where the feature is off.
DOORS: Final = {
    "compiled graphs": ("backends/aot", "backends/native", "backends/graph", "backends/store"),
    "compiled graphs on the disk": ("backends/store", "backends/native/stored"),
    "CUDA graphs": ("backends/cudagraphs",),
    "buckets of DistributedDataParallel": ("backends/graph/buckets",),
    "logs of torch": ("install",),
}


class TorchLacks(FxjitError, ImportError):
    """This torch does not have a private name that fxjit needs, or has another thing under it."""


class MissingName(Exception):
    """Signal: the trace came to something that needs a name which this torch lacks. The interpreter breaks the graph there."""

    def __init__(self, row: Row) -> None:
        super().__init__(f"torch lacks {row.name}")
        self.row = row


@dataclass(frozen=True, slots=True)
class Row:
    """One private name: `shape` is its kind (class, exception, function, module, value), then the members (`.name`) or the
    keyword arguments (`name=`) that are used of it."""

    name: str
    policy: str
    feature: str
    shape: str


class Absent:
    """Stands for a name that this torch lacks, where tables are made at import: equal to nothing that a program can hold. No
    object is an instance of it; any other use of it ends the trace there."""

    def __init__(self, row: Row) -> None:
        self.row = row
        self.__name__ = row.name.rpartition(".")[2]

    def __call__(self, *args: object, **kwargs: object) -> Any:
        raise MissingName(self.row)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(Row(f"{self.row.name}.{name}", self.row.policy, self.row.feature, "value"))

    def __instancecheck__(self, instance: object) -> bool:
        return False

    def __subclasscheck__(self, subclass: type) -> bool:
        return False


@functools.cache
def rows() -> dict[str, Row]:
    """The table, by name."""
    lines = TABLE.read_text().splitlines()[1:]
    return {row.name: row for row in (Row(*line.split("\t")) for line in lines)}


def get(name: str) -> Any:
    """The object that torch has under this name of the table; raises MissingName if it has none."""
    found = optional(name)
    if isinstance(found, Absent):
        raise MissingName(found.row)
    return found


def optional(name: str) -> Any:
    """The object that torch has under this name of the table, or an `Absent`."""
    if (problem := _problem(name)) is None:
        return _find(name)
    _tell(rows()[name].feature, problem)
    return _absent(name)


def get_or(name: str, otherwise: Any) -> Any:
    """The object that torch has under this name of the table, or `otherwise`."""
    found = optional(name)
    return otherwise if isinstance(found, Absent) else found


def need(feature: str) -> None:
    """Raises MissingName unless all names of a feature are there: for a handler whose generated code uses them."""
    if not is_on(feature):
        raise MissingName(next(row for row in rows().values() if row.feature == feature and _problem(row.name) is not None))


def is_on(feature: str, thoroughly: bool = False) -> bool:
    """Whether the names of a feature are there; says so once if not. Imports nothing to find out, unless `thoroughly`: names in
    modules that are not imported yet are then taken to be there."""
    problem = _problem_of(feature, thoroughly)
    if problem is not None:
        _tell(feature, problem)
    return problem is None


@functools.cache
def require(thoroughly: bool = False) -> None:
    """Raises TorchLacks unless every name is there that no compile can do without. Called before the first frame is looked at,
    and `thoroughly` before the compiler is imported: names in modules that are not imported yet are until then taken to be
    there, since a program that starts from stored entries needs none of them, and sympy is half of its wait."""
    for row in rows().values():
        if (row.policy == CANNOT_RUN and (thoroughly or _is_imported(row.name))
                and (problem := _problem(row.name)) is not None):
            raise TorchLacks(f"{torch_compat.tried_with()}; torch {_torch().__version__} {problem}")


def missing() -> Iterator[tuple[Row, str]]:
    """Every row that this torch does not satisfy, with what is wrong; for `doctor`. Imports all of torch that is named."""
    for row in rows().values():
        if (problem := _problem(row.name)) is not None:
            yield row, problem


@functools.cache
def _problem_of(feature: str, thoroughly: bool) -> str | None:
    of_feature = (row.name for row in rows().values() if row.feature == feature and row.policy == FEATURE_OFF)
    return next((problem for name in of_feature if (thoroughly or _is_imported(name))
                 and (problem := _problem(name)) is not None), None)


def _is_imported(name: str) -> bool:
    """Whether the module that has the name, or would have it, is imported already."""
    found: Any = _torch()
    path = "torch"
    for part in name.split(".")[1:]:
        path = f"{path}.{part}"
        found = sys.modules.get(path) or getattr(found, part, _NOTHING)
        if found is _NOTHING:
            return _spec(path) is None
    return True


@functools.cache
def _spec(path: str) -> object:
    try:
        return importlib.util.find_spec(path)
    except ModuleNotFoundError:  # what comes before the last dot is no package
        return None


@functools.cache
def _tell(feature: str, problem: str) -> None:
    """Once for each feature, and not for what falls back."""
    if not any(row.feature == feature and row.policy == FEATURE_OFF for row in rows().values()):
        return
    warnings.warn(f"fxjit works without its feature {feature!r} here: torch {_torch().__version__} {problem}.",
                  RuntimeWarning, stacklevel=4)


@functools.cache
def _absent(name: str) -> Any:
    row = rows()[name]
    if row.shape.startswith("exception"):
        return type(row.name.rpartition(".")[2], (Exception,), {"__doc__": f"Never raised: torch lacks {name}."})
    return Absent(row)


@functools.cache
def _problem(name: str) -> str | None:
    """The problem with this name in this torch: "lacks NAME", "has another NAME: ..."; None for none."""
    try:
        found = _find(name)
    except (AttributeError, ImportError):
        return f"lacks {name}"
    kind, *parts = rows()[name].shape.split(" ")
    if not _is_a(kind, found):
        return f"has another {name}: a {type(found).__name__}, not a {kind}"
    lacked = [part for part in parts if not _takes(found, part)]
    return f"has another {name}: without {', '.join(lacked)}" if lacked else None


def _is_a(kind: str, found: Any) -> bool:
    if kind == "class":
        return isinstance(found, type)
    if kind == "exception":
        return isinstance(found, type) and issubclass(found, BaseException)
    if kind == "module":
        return inspect.ismodule(found)
    return kind == "value" or callable(found)


def _takes(found: Any, part: str) -> bool:
    """Whether it has the member `.name`, or takes the keyword argument `name=`; a builtin that does not say counts as one."""
    if part.startswith("."):
        return hasattr(found, part[1:])
    try:
        parameters = inspect.signature(found).parameters
    except (TypeError, ValueError):
        return True
    return part[:-1] in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())


def _find(name: str) -> Any:
    """The object of a dotted name. Modules on the way are imported, also where their package has a function of the same name in
    their place (`torch._higher_order_ops.scan`)."""
    parts = name.split(".")
    found: Any = _torch()
    for place, part in enumerate(parts[1:], 1):
        inner = getattr(found, part, _NOTHING)
        is_last = place == len(parts) - 1
        if inspect.ismodule(found) and (inner is _NOTHING or not (is_last or hasattr(inner, parts[place + 1]))):
            path = ".".join(parts[: place + 1])
            inner = importlib.import_module(path) if inner is _NOTHING else sys.modules.get(path, inner)
        found = getattr(found, part) if inner is _NOTHING else inner
    return found


_NOTHING: Final = object()


def _torch() -> Any:
    return importlib.import_module("torch")  # `import fxjit` does without it
