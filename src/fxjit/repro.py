"""`config.repro_after`: a graph that a backend fails on becomes a script that fails alike, as small as it can be made.

With "dynamo" the captured graph is checked (options.py hands it over), with "aot" each ATen graph that AOTAutograd made of
it (backends/aot). `repro_level` says what for:

    1  a compile that fails leaves the whole graph        2  ... leaves the smallest graph found that fails alike
    3  every graph is written before it is compiled (for crashes that end the process)
    4  as 2, and for results that are not eager's as well

A script lies with its tensors in a folder of its own, under `debug_dir`, or ./fxjit_debug. torch's FX minifier does the
reducing: it cuts the end of the graph off and makes inputs of what its middle computes, as long as the failure stays.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import re
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.fx

from . import config, logs, torch_private
from .errors import AccuracyError
from .homes import module_of

_log = logs.artifact("compile")
#: Where torch has no way to leave the fake mode, a graph compiled under one is written without being reduced.
_unset_fake: Any = torch_private.get_or("torch._subclasses.fake_tensor.unset_fake_temporarily", contextlib.nullcontext)
_numbers = itertools.count()

Compile = Callable[..., Any]

_SCRIPT = '''\
"""{what}

Run it beside inputs.pt: python repro.py. Set BACKEND to the backend itself where its name is not registered.
"""
from pathlib import Path

{imports}

import fxjit

BACKEND = {backend!r}


{classes}

def check():
    saved = torch.load(Path(__file__).with_name("inputs.pt"), weights_only=True)
    module = Repro()
    for name, value in saved["attributes"].items():
        setattr(module, name, value)
    with fxjit.config.patch(verify_correctness=True):
        return fxjit.compile(module, backend=BACKEND, fullgraph=True, dynamic=False)(*saved["inputs"])


if __name__ == "__main__":
    check()
    print("it neither raised nor differed from eager")
'''


def watched(compile_graph: Compile, gm: torch.fx.GraphModule, inputs: Sequence[Any], stage: str, backend: str,
            run: Callable[[Any, list[Any]], Any]) -> Any:
    """`compile_graph(gm, inputs)`; where that fails, a script that fails alike is written, and the error goes on.

    `run(compiled, inputs)` calls what was compiled, for comparing with eager at level 4. A graph's inputs may be fake
    tensors: the script then makes random numbers of their shapes.
    """
    level = config.repro_level
    with _outside_of_tracing():
        real = [_real(each) for each in inputs]
    if level == 3:
        _write(gm, real, stage, backend, "A graph as it was before its compile.")
    try:
        compiled = compile_graph(gm, inputs)
        if level == 4:
            with _outside_of_tracing():
                _agree(gm, real, compiled, run, backend)
        return compiled
    except Exception as error:  # what the backend fails with is what is to be reproduced
        with config.patch(repro_after=None), _outside_of_tracing():  # the reduced graphs are compiled too
            small, small_inputs = (gm, real) if level == 1 else _reduced(compile_graph, gm, real, run, backend, error)
        what = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}".replace('"""', "'''")
        place = _write(small, small_inputs, stage, backend, what)
        if place is not None:
            error.add_note(f"A script that fails alike was written: {place}")
        raise


@contextlib.contextmanager
def _outside_of_tracing() -> Iterator[None]:
    """AOTAutograd compiles under a fake mode, where a new tensor would have no numbers."""
    with _unset_fake(), torch_private.get_or("torch._guards.tracing", contextlib.nullcontext)(None):
        yield


def _agree(gm: torch.fx.GraphModule, inputs: Sequence[Any], compiled: Any, run: Callable[[Any, list[Any]], Any],
           backend: str) -> None:
    from .verify import verified

    def call(*args: Any) -> Any:
        return run(compiled, list(args))

    verified(call, gm, backend)(*_copies(inputs))


def _reduced(compile_graph: Compile, gm: torch.fx.GraphModule, inputs: list[Any],
             run: Callable[[Any, list[Any]], Any], backend: str,
             error: Exception) -> tuple[torch.fx.GraphModule, Sequence[Any]]:
    """The smallest graph that the minifier finds to raise the same kind of error; the graph itself where it cannot work."""
    def fails(candidate: torch.fx.GraphModule, candidate_inputs: Sequence[Any]) -> bool:
        try:
            compiled = compile_graph(candidate, list(candidate_inputs))
            if isinstance(error, AccuracyError):
                _agree(candidate, candidate_inputs, compiled, run, backend)
        except type(error):
            return True
        except Exception:  # another failure than the one looked for
            return False
        return False

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            minifier = torch_private.get("torch._functorch.fx_minifier.minifier")
            return minifier(gm, inputs, fails, dump_state=lambda *state: None)  # type: ignore[no-any-return]  # read by name
    except Exception as problem:  # the minifier runs the graph itself, and that may be what fails
        _log.warning("the graph could not be reduced (%s: %s); it is written whole", type(problem).__name__, problem)
        return gm, inputs


def _copies(inputs: Sequence[Any]) -> list[Any]:
    return [each.detach().clone().requires_grad_(each.requires_grad) if isinstance(each, torch.Tensor) else each
            for each in inputs]


def _real(example: Any) -> Any:
    """An input to run with: a copy, or for a fake tensor or a symbol one of its shape and hint."""
    if isinstance(example, torch.SymInt):
        return int(example)
    if not isinstance(example, torch.Tensor):
        return example
    if type(example).__name__ != "FakeTensor":
        return _copies([example])[0]
    shape, strides = [int(n) for n in example.shape], [int(n) for n in example.stride()]
    made = torch.empty_strided(shape, strides, dtype=example.dtype, device=example.device)
    if example.is_floating_point() or example.is_complex():
        made.normal_()
    else:
        made.zero_()
    return made.requires_grad_(example.requires_grad)


def _write(gm: torch.fx.GraphModule, inputs: Sequence[Any], stage: str, backend: str, what: str) -> Path | None:
    folder = config.debug_folder() / f"repro_{next(_numbers):04d}_{stage}"
    imports: dict[str, str] = {}
    classes: list[str] = []
    attributes = _attributes(gm)
    _class_of(gm, "Repro", imports, classes)
    text = _SCRIPT.format(what=f"{what} (backend {backend}, after {stage})", backend=backend,
                          imports="\n".join(sorted({"import torch", *imports.values()})),
                          classes="\n\n".join(classes))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        torch.save({"inputs": list(inputs), "attributes": attributes}, folder / "inputs.pt")
        (folder / "repro.py").write_text(text, encoding="utf-8")
    except (OSError, RuntimeError) as problem:  # torch.save raises RuntimeError for a full disk
        _log.warning("no script could be written to %s: %s", folder, problem)
        return None
    _log.warning("a graph was written as a script: %s", folder / "repro.py")
    return folder / "repro.py"


def _attributes(gm: torch.fx.GraphModule) -> dict[str, Any]:
    """The tensors that the graph holds itself."""
    targets = [str(node.target) for node in gm.graph.nodes if node.op == "get_attr"]
    found = {name: getattr(gm, name) for name in targets if "." not in name}
    return {name: value.detach() for name, value in found.items() if isinstance(value, torch.Tensor)}


def _class_of(gm: torch.fx.GraphModule, name: str, imports: dict[str, str], classes: list[str]) -> None:
    """Adds the source of a module with this graph to `classes`, after those of the graphs in it."""
    parts = []
    for attribute, child in gm.named_children():
        if isinstance(child, torch.fx.GraphModule):
            _class_of(child, f"{name}_{attribute}", imports, classes)
            parts.append(f"        self.{attribute} = {name}_{attribute}()")
    code = gm.graph.python_code("self")
    for bound, value in code.globals.items():
        if re.search(rf"\b{re.escape(bound)}\b", code.src):
            imports[bound] = _import_of(bound, value)
    body = "\n".join("    " + line if line else "" for line in code.src.strip().splitlines())
    setup = "\n".join(["    def __init__(self):", "        super().__init__()", *parts])
    classes.append(f"class {name}(torch.nn.Module):\n{setup}\n\n{body}\n")


def _import_of(name: str, value: Any) -> str:
    """The line that binds a name which generated code uses."""
    if isinstance(value, types.ModuleType):
        return f"import {value.__name__} as {name}" if value.__name__ != name else f"import {name}"
    if value is type(None):
        return f"{name} = type(None)"
    if isinstance(value, float):
        return f"{name} = float({str(value)!r})"
    module, qualname = module_of(value), getattr(value, "__qualname__", name)
    if module and "." not in qualname and "<" not in qualname:
        return f"from {module} import {qualname} as {name}"
    return f"{name} = None  # {value!r} has no name to import it by"
