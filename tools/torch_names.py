"""`python tools/torch_names.py`: the private names of torch that the source reads, each with the files that do, and where
that differs from the table (src/fxjit/torch_names.tsv). The rule of what counts is `is_private`.

`python tools/torch_names.py sweep [NAME...]` takes each name that fxjit can do without (`feature off`, `fallback`) out of torch
in turn and trains a small network, eager's numbers beside ours.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "fxjit"
#: Looks public, and is in no page of torch's documentation: it changes from release to release as private names do.
UNDOCUMENTED = ("torch.fx.experimental.", "torch.fx.passes.")
#: Files that may use torch's own compiler, and say so themselves where it is not as they know it.
OF_TORCHS_COMPILER = ("torch._dynamo", "torch._inductor")
#: The functions of fxjit.torch_private that are given a name of the table; `sys.modules.get` counts too.
ACCESSORS = ("get", "get_or", "optional")


def is_private(name: str) -> bool:
    """Whether a dotted name of torch is one that torch may take away without a word: a part of it begins with one underscore,
    or it lies where nothing is documented. Names of torch's own compiler are told of by backends/inductor.py and install.py."""
    if name.startswith(OF_TORCHS_COMPILER) or name.endswith("__"):
        return False
    return any(part.startswith("_") and not part.startswith("__") for part in name.split(".")) or name.startswith(UNDOCUMENTED)


@cache
def _resolve(name: str) -> Any:
    """The object of that dotted name, or None."""
    obj: Any = importlib.import_module("torch")
    path = "torch"
    for part in name.split(".")[1:]:
        path = f"{path}.{part}"
        try:
            obj = getattr(obj, part)
        except AttributeError:
            try:
                obj = importlib.import_module(path)
            except ImportError:
                return None
    return obj


def canonical(path: str, module: str = "torch") -> str:
    """The name that a chain of attributes reads: up to the first thing that is no module, and on to the last private part.
    `module` is the part of it that is known to be one."""
    parts = path.split(".")
    end = len(module.split("."))
    while end < len(parts) and isinstance(_resolve(".".join(parts[: end + 1])), ModuleType):
        end += 1
    end = min(end + 1, len(parts))
    for position in range(end, len(parts)):
        if parts[position].startswith("_") and not parts[position].startswith("__"):
            end = position + 1
    return ".".join(parts[:end])


@dataclass(frozen=True, slots=True)
class Read:
    """A place that reads a dotted name of torch; `module` is the part of the name that is known to be a module."""

    path: str
    module: str
    node: ast.AST
    #: Whether the place goes on where the name is missing: it asks through the accessor, or with a default.
    is_tolerant: bool = False

    @property
    def name(self) -> str:
        return canonical(self.path, self.module)


def reads(path: Path) -> Iterator[Read]:
    """Each dotted name of torch that a file reads: imports, attributes, `getattr` and the accessor with a constant."""
    tree = ast.parse(path.read_text())
    names = {"torch": Read("torch", "torch", tree)}
    nodes = list(_run_time(tree))
    for node in nodes:
        if isinstance(node, ast.Import):
            for each in node.names:
                if each.name.split(".")[0] == "torch":
                    found = Read(each.name, each.name, node)
                    if each.asname:
                        names[each.asname] = found
                    yield found
        elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] == "torch":
            for each in node.names:
                found = names[each.asname or each.name] = Read(f"{node.module}.{each.name}", str(node.module), node)
                yield found
    for node in tree.body:  # aten = torch.ops.aten
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and (chain := _chain(node.value)):
            if chain[0] in names:
                base = names[chain[0]]
                names[node.targets[0].id] = Read(".".join([base.path, *chain[1:]]), base.module, node)
    yield from _chains(nodes, names)


def _chains(nodes: list[ast.AST], names: dict[str, Read]) -> Iterator[Read]:
    inner: set[int] = set()
    for node in nodes:
        chain: list[str] = []
        if isinstance(node, ast.Attribute) and id(node) not in inner and (chain := _chain(node)):
            inner |= {id(each) for each in ast.walk(node.value)}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr"):
            what = node.args[1]
            if isinstance(what, ast.Constant) and isinstance(what.value, str) and (chain := _chain(node.args[0])):
                chain = [*chain, what.value]
        elif isinstance(node, ast.Call) and _chain(node.func)[-1:] and _chain(node.func)[-1] in ACCESSORS and node.args:
            if isinstance(node.args[0], ast.Constant) and str(node.args[0].value).startswith("torch."):
                yield Read(str(node.args[0].value), str(node.args[0].value), node, True)
        if chain and chain[0] in names:
            base = names[chain[0]]
            yield Read(".".join([base.path, *chain[1:]]), base.module, node, isinstance(node, ast.Call))


def _run_time(node: ast.AST) -> Iterator[ast.AST]:
    """Every node outside `if TYPE_CHECKING:`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for each in child.orelse:
                yield each
                yield from _run_time(each)
            continue
        yield child
        yield from _run_time(child)


def _chain(node: ast.AST) -> list[str]:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [node.id, *reversed(parts)] if isinstance(node, ast.Name) else []


def used() -> dict[str, set[str]]:
    """The private names that the source reads, each with the files that do."""
    found: dict[str, set[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        for read in reads(path):
            if is_private(read.name):
                found.setdefault(read.name, set()).add(path.relative_to(SOURCE).with_suffix("").as_posix())
    modules = {name for name in found if any(other.startswith(f"{name}.") for other in found)}
    return {name: files for name, files in sorted(found.items()) if name not in modules}


def table() -> dict[str, list[str]]:
    """The table of src/fxjit/torch_names.tsv: policy, feature and shape by name."""
    lines = (SOURCE / "torch_names.tsv").read_text().splitlines()[1:]
    return {name: row for name, *row in (line.split("\t") for line in lines)}


def sweep(asked: Iterable[str]) -> dict[str, str]:
    """Small training steps with names taken out of torch, one after the other, or, for a feature, all of its names at once:
    what went wrong, or what fxjit warned of, by what was asked for. Each runs in a process forked from one that has imported
    torch and nothing of fxjit."""
    _import_what_a_step_imports()
    found = {}
    for each in asked:
        names = names_of(each) or [each]
        said = _in_a_fork(names, True)
        found[each] = _in_a_fork(names, False) if said == _TORCHS_OWN else said
        print(f"{each}: {found[each]}", flush=True)
    return found


def names_of(feature: str) -> list[str]:
    """The names without which a feature is off."""
    return [name for name, (policy, of, *_) in table().items() if policy == "feature off" and of == feature]


def _in_a_fork(names: list[str], everywhere: bool) -> str:
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        os.close(reading)
        try:
            said = _step_without(names, everywhere)
        except BaseException as error:  # whatever it is belongs in the report
            own = any(_is_torchs_own(error, name) for name in names)
            said = _TORCHS_OWN if everywhere and own else f"FAILED {type(error).__name__}: {str(error)[:300]}"
        os.write(writing, said.encode()[:4000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as text:
        said = text.read() or "FAILED without a word"
    os.waitpid(child, 0)
    return said


#: Said of a step in which torch itself failed: such a name can be taken from fxjit only.
_TORCHS_OWN = "torch itself reads the name"


def _is_torchs_own(error: BaseException | None, name: str) -> bool:
    """Whether it came of a line of torch's that read the name."""
    while error is not None:
        if isinstance(error, (AttributeError, ImportError)) and error.name == name.rpartition(".")[2]:
            frames = traceback.extract_tb(error.__traceback__)
            return bool(frames) and "torch" in Path(frames[-1].filename).parts
        error = error.__cause__ or error.__context__
    return False


def _import_what_a_step_imports() -> None:
    """All of torch that a step imports, so that what is missing afterwards is missing for fxjit, and not for torch itself."""
    text = ("import sys; sys.path.insert(0, sys.argv[1]); import torch_names; torch_names._train(); "
            "print(*(name for name in sys.modules if name.startswith('torch.')))")
    done = subprocess.run([sys.executable, "-c", text, str(ROOT / "tools")], capture_output=True, text=True, check=True)
    for name in done.stdout.splitlines()[-1].split():
        with contextlib.suppress(ImportError):  # a name that is no module's own
            importlib.import_module(name)


def _step_without(names: list[str], everywhere: bool) -> str:
    holders = [(_resolve(name.rpartition(".")[0]), name.rpartition(".")[2]) for name in names]
    from fxjit import torch_private

    for name, (holder, last) in zip(names, holders, strict=True):
        is_gated = table()[name][1] in torch_private.DOORS
        if everywhere and is_gated and last in vars(holder) and not _reads_it_itself(holder, last):
            delattr(holder, last)  # it may be imported as usual; all others are read through the accessor

    find = torch_private._find

    def find_others(wanted: str) -> object:
        if wanted in names:
            raise AttributeError(wanted)
        return find(wanted)

    torch_private._find = find_others
    return _train()


def _reads_it_itself(holder: object, name: str) -> bool:
    """Whether functions of torch look the name up where it is: without it torch itself would fail, as without a module."""
    if isinstance(vars(holder)[name], ModuleType):
        return True
    functions = [each for each in vars(holder).values() if isinstance(each, FunctionType)]
    methods = [each for cls in vars(holder).values() if isinstance(cls, type) for each in vars(cls).values()
               if isinstance(each, FunctionType)]
    return isinstance(holder, ModuleType) and any(name in each.__code__.co_names for each in (*functions, *methods))


def _train() -> str:
    import warnings

    import torch

    import fxjit

    def run(compile: Callable[[Any], Any]) -> list[Any]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 2))
        compiled, results = compile(model), []
        for rows in (4, 4, 7):
            loss = compiled(torch.randn(rows, 8)).log_softmax(-1).pow(2).mean()
            loss.backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.1 * parameter.grad
                    parameter.grad = None
            results.append(loss.detach())
        return [*results, *(parameter.detach() for parameter in model.parameters())]

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with fxjit.config.patch(small_graphs_as_captured=False, cache_graphs=False):  # every stage of the compiler has to run
            found = [run(lambda model, name=name: fxjit.compile(model, backend=name)) for name in ("eager", "native")]
    expected = run(lambda model: model)
    for each in found:
        for got, want in zip(each, expected, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    return "; ".join(str(each.message) for each in caught if "fxjit" in str(each.message)) or "nothing was missed"


if __name__ == "__main__":
    if sys.argv[1:2] == ["sweep"]:
        chosen = sys.argv[2:] or [name for name, row in table().items() if row[0] != "cannot run"]
        sys.exit(any(said.startswith("FAILED") for said in sweep(chosen).values()))
    read, listed = used(), table()
    for name, files in read.items():
        print(name, *sorted(files))
    print(*(f"NOT LISTED {name}" for name in read.keys() - listed.keys()), sep="\n")
    print(*(f"NOT USED {name}" for name in listed.keys() - read.keys()), sep="\n")
    sys.exit(read.keys() != listed.keys())
