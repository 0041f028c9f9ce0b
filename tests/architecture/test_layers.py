"""What the tree promises (docs/architecture.md): imports point down, files and functions stay small, each kind of
thing that differs between versions has its one place."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "fxjit"
LOW = {"_C", "budget", "progress", "pythons", "__version__", "process_state", "errors", "reasons", "config", "logs",
       "counters", "events", "debug", "schemas", "fake_execution", "fake_strides", "collectives", "tensor_wrappers",
       "overlap", "composites", "first_calls", "quiet",
       "homes", "origins", "copied_context", "applied", "state_steps", "torch_compat", "torch_private"}
FRONTEND_LOW = LOW | {"guards", "skips", "tensor_shim"}
NATIVE_SHARED = ("index", "ir", "ops", "hints", "generic_sizes", "target", "choose.predictions", "choose.machine",
                 "choose.model", "choose.recompute", "choose.fusion")
NATIVE_LOW = LOW | {"tensor_shim", "backends.graph"} | {f"backends.native.{each}" for each in NATIVE_SHARED}
#: The operator that recurrent layers are in graphs, which `native` has kernels for.
RECURRENT = {"backends.aot.recurrent"}
NATIVE_STAGES = NATIVE_LOW | {f"backends.native.{each}" for each in ("lower", "schedule", "codegen", "runtime")}
STORED_ARTIFACTS = {"backends.store.artifacts", "backends.store.folder"}

# Package or module -> what of fxjit it may import besides itself. The longest name that fits counts.
LAYERS: dict[str, set[str]] = {
    "errors": set(),
    "reasons": set(),
    "config": {"errors"},
    "budget": {"config", "progress"},
    "progress": {"config"},
    "logs": {"config", "errors"},
    "counters": {"config", "errors"},
    "events": {"config", "errors", "reasons", "logs", "counters", "origins"},
    "debug": {"config", "errors", "reasons", "logs", "counters", "events"},
    "pythons": set(),
    "process_state": {"torch_private"},
    "forks": set(),
    "collector": {"forks"},
    "generated": set(),
    "homes": set(),
    "origins": set(),
    "copied_context": set(),
    "first_calls": set(),
    "applied": set(),
    "state_steps": {"torch_private"},
    "schemas": {"homes", "origins", "tensor_wrappers", "torch_private"},
    "fake_execution": {"fake_strides", "torch_compat", "torch_private"},
    "fake_strides": {"quiet", "torch_private"},
    "quiet": set(),
    "tensor_wrappers": {"homes", "torch_private"},
    "overlap": {"tensor_wrappers"},
    "composites": {"schemas", "torch_private"},
    "collectives": {"torch_private"},
    "tensor_shim": LOW,
    "guards": LOW | {"tensor_shim"},
    "skips": LOW | {"replacements"},
    "backends.graph": LOW,
    "backends.graph.split": LOW | {"backends.eager", "backends.graph"},
    "backends.graph.buckets": LOW | {"backends.graph"},
    "backends.graph.steps": LOW | {"backends.eager", "backends.graph"},
    "backends.eager": LOW | {"backends.graph.facts"},
    "backends.door": LOW | {"backends.eager"},
    "backends.aot.runtime": LOW | {"tensor_shim", "backends.graph"},
    "backends.tiers": LOW,
    "backends.graph.recipe": set(),
    "backends.aot": LOW | {"tensor_shim", "repro", "backends.eager", "backends.door", "backends.graph", "backends.tiers",
                           "backends.aot.runtime"},
    "backends.store.folder": set(),
    "backends.store.artifacts": {"config", "logs", "counters", "errors", "backends.store.folder"},
    "backends.store": LOW | STORED_ARTIFACTS | {"tensor_shim", "backends.aot.backend", "backends.aot.runtime",
                                                "backends.tiers"},
    "backends": LOW | {"tensor_shim", "repro"}
    | {f"backends.{each}" for each in ("door", "native", "aot", "graph", "eager", "tiers")},
    # What backends.native's stages share; then the stages, each of which may import those before it.
    "backends.native.index": set(),
    "backends.native.ir": {"backends.native.index"},
    "backends.native.ops": {"backends.native.index", "backends.native.ir"},
    "backends.native.hints": {"backends.native.index"},
    "backends.native.generic_sizes": set(),
    "backends.native.target": {"config"},
    "backends.native.choose.predictions": set(),
    "backends.native.choose.machine": set(),
    "backends.native.choose.model": {"backends.native.choose.machine", "backends.native.choose.predictions"},
    "backends.native.choose.recompute": {"backends.native.choose.predictions"},
    "backends.native.choose.fusion": NATIVE_LOW,
    "backends.native.passes": NATIVE_LOW | {"backends.native.decompositions"},
    "backends.native.lower": NATIVE_LOW | {"backends.native.passes"},
    "backends.native.schedule": NATIVE_LOW | {"backends.native.lower"},
    "backends.native.codegen": NATIVE_LOW | {"backends.native.lower", "backends.native.schedule"},
    "backends.native.runtime": NATIVE_LOW | {"backends.native.codegen"} | STORED_ARTIFACTS | RECURRENT,
    "backends.native.executor": NATIVE_STAGES | RECURRENT | {"backends.native.passes"},
    "backends.native.choose": NATIVE_STAGES | STORED_ARTIFACTS | RECURRENT | {
        "backends.native.compiled", "backends.aot.runtime.call_plan"},
    "backends.native.choose.profitability": NATIVE_STAGES | RECURRENT | {
        "backends.native.compiled", "backends.native.executor.convolutions", "backends.native.choose.probe",
        "backends.aot.runtime.call_plan"},
    "backends.native.choose.packed_weights": NATIVE_STAGES | {"backends.native.passes", "backends.native.decompositions"},
    "backends.native.choose.volumes": NATIVE_STAGES | {"backends.native.passes"},
    "backends.native.choose.integer_products": NATIVE_STAGES | {"backends.native.passes"},
    "backends.native.choose.channels_last": NATIVE_STAGES | {"backends.native.passes", "backends.native.choose.volumes"},
    "backends.native.choose.channels_last_on_gpu": NATIVE_STAGES | {
        "backends.native.passes", "backends.native.choose.channels_last"},
    "backends.native.choose.convolution_gradients": NATIVE_STAGES | {
        "backends.native.passes", "backends.native.executor.convolutions", "backends.native.choose.channels_last",
        "backends.native.choose.volumes"},
    "backends.native": {"backends"} | LOW | {"tensor_shim"},
    "frontend.bytecode": {"errors"},
    "frontend.held_locks": set(),
    "frontend.rng_steps": {"guards", "frontend.held_locks"},
    "frontend.tracer": set(),
    "frontend.values": FRONTEND_LOW | {"frontend.bytecode", "frontend.held_locks", "frontend.rng_steps", "frontend.tracer"},
    "frontend.callables": FRONTEND_LOW | {"frontend.values", "frontend.bytecode", "frontend.tracer"},
    "frontend.callables.__init__": set(),
    "frontend.callables.families": {"frontend.callables", "frontend.polyfills"},
    "frontend.polyfills": FRONTEND_LOW | {"frontend.values", "frontend.callables", "frontend.tracer"},
    "frontend.effects": FRONTEND_LOW | {"frontend.values", "frontend.bytecode", "frontend.tracer"},
    "frontend.result": FRONTEND_LOW | {"frontend.values", "frontend.bytecode", "frontend.rng_steps", "frontend.effects"},
    "frontend.interp": FRONTEND_LOW
    | {
        "frontend.bytecode",
        "frontend.values",
        "frontend.callables",
        "frontend.polyfills",
        "frontend.result",
        "frontend.effects",
        "frontend.tracer",
    },
    "frontend": FRONTEND_LOW | {"frontend"},
    "resume": LOW
    | {"guards", "skips", "frontend.bytecode", "frontend.held_locks", "frontend.rng_steps", "frontend.result",
       "frontend.values", "frontend.effects"},
    "stored": FRONTEND_LOW | {"resume.cache", "resume.deoptimization", "resume.function", "frontend.bytecode",
                              "frontend.entries", "backends", "generated"},
    "interop": LOW | {"skips"},
    "pipeline": FRONTEND_LOW | {"frontend", "resume", "stored", "backends", "generated", "interop", "agreement"},
    "verify": LOW,
    "repro": LOW | {"verify"},
    "options": LOW | {"backends", "verify", "repro"},
    "stance": LOW,
    "agreement": LOW | {"guards", "frontend.entries"},
    "under_modes": LOW | {"skips", "options", "frontend.bytecode", "frontend.polyfills"},
    "regions": LOW | {"collector", "forks", "agreement", "skips", "options", "stance", "pipeline", "report", "stored",
                      "frontend.entries", "under_modes"},
    "arguments": {"errors"},
    "artifact": LOW | {"arguments", "skips", "options", "regions", "stored", "frontend.entries", "backends.store",
                       "backends.tiers"},
    "module": LOW | {"skips", "options", "stance", "regions", "artifact"},
    "api": LOW | {"arguments", "artifact", "skips", "options", "stance", "regions", "module", "interop", "frontend.entries",
                  "frontend.dynamic", "backends.tiers", "backends.store"},
    "report": LOW | {"resume"},
    "explain": LOW | {"api", "options", "report", "stored"},
    "profiler": LOW,
    "replacements": {"homes"},
    "surface": {"errors", "replacements"},
    "dropin": LOW | {"profiler", "replacements", "surface"},
    "install": LOW | {"api", "arguments", "backends", "dropin", "explain", "module", "options", "replacements", "stance"},
    "bootstrap": {"install"},
    "testing": LOW | {"api", "backends"},
    "torch_compat": {"forks"},
    "torch_private": {"errors", "torch_compat"},
    "doctor": LOW | {"tensor_shim", "backends", "api"},
    "replay": LOW | {"backends"},
}
PUBLIC = {"__init__", "__main__", "demo"}  # these sit on top and may import everything

# Own modules imported inside a function: each is heavy, or needs torch, and is not wanted by `import fxjit`.
LATE_IMPORTS = {
    ("__main__", "demo"),
    ("bootstrap.sitecustomize", "install"),
    ("__main__", "doctor"),
    ("__main__", "install"),
    ("__main__", "replay"),
    ("__main__", "report"),
    ("regions", "report"),
    ("__init__", "testing"),
    ("api", "frontend.dynamic"),
    ("api", "frontend.entries"),
    ("api", "interop.numpy_"),
    ("api", "module"),
    ("artifact", "backends.store.bundle"),
    ("artifact", "backends.tiers"),
    ("artifact", "stored.entries"),
    ("artifact", "stored.objects"),
    ("backends.aot.trace", "repro"),
    ("backends.graph.facts", "fake_execution"),
    ("backends.inductor", "backends.aot.captured_passes"),
    ("api", "backends.store.bundle"),
    ("api", "backends.tiers"),
    ("backends.aot.call_context", "backends.aot.rules"),
    ("backends.native.__init__", "backends.aot.attention_by_hand"),
    ("backends.native.__init__", "backends.aot.backend"),
    ("backends.native.__init__", "backends.aot.driver"),
    ("backends.native.__init__", "backends.aot.known_masks"),
    ("backends.native.__init__", "backends.aot.node_by_node"),
    ("backends.native.__init__", "backends.graph.facts"),
    ("backends.native.__init__", "backends.native.choose.attention"),
    ("backends.native.__init__", "backends.native.decompositions"),
    ("backends.native.__init__", "backends.native.entry"),
    ("backends.native.__init__", "backends.native.passes.cleanup"),
    ("backends.native.__init__", "backends.native.passes.batch_norm"),
    ("backends.native.__init__", "backends.native.passes.group_norm"),
    ("backends.native.__init__", "backends.native.passes.softmax"),
    ("backends.native.__init__", "backends.native.passes.convolution"),
    ("backends.native.__init__", "backends.native.runtime.cc"),
    ("backends.native.__init__", "backends.native.runtime.gpu"),
    ("backends.native.__init__", "backends.native.stored"),
    ("backends.native.__init__", "backends.native.choose.channels_last_on_gpu"),
    ("backends.native.__init__", "backends.native.choose.convolution_gradients"),
    ("backends.native.__init__", "backends.native.choose.upcast"),
    ("backends.native.__init__", "backends.native.choose.profitability"),
    ("backends.native.executor.aten_calls", "backends.native.passes.grouped_products"),
    ("backends.native.executor.aten_calls", "backends.native.runtime.own_recurrent"),
    ("backends.native.stored", "backends.native.pipeline"),
    ("backends.registry", "backends.aot.node_by_node"),
    ("backends.registry", "backends.cudagraphs"),
    ("backends.registry", "backends.eager"),
    ("backends.registry", "backends.inductor"),
    ("backends.registry", "backends.native"),
    ("explain", "stored.entries"),
    ("doctor", "backends.native.choose.probe"),
    ("doctor", "_C"),
    ("doctor", "backends.store.artifacts"),
    ("doctor", "api"),
    ("doctor", "counters"),
    ("doctor", "tensor_shim"),
    ("install", "backends.store.bundle"),
    ("install", "explain"),
    ("install", "module"),
    ("options", "repro"),
    ("options", "verify"),
    ("pipeline", "stored.entries"),
    ("regions", "agreement"),
    ("regions", "pipeline"),
    ("regions", "stored.entries"),
    ("regions", "under_modes"),
    ("repro", "verify"),
}
# Longer than they should be; the list may only shrink.
LONG_FILES: dict[str, int] = {}
LONG_FUNCTIONS: dict[str, int] = {}
MAX_LINES, MAX_C_LINES, MAX_FUNCTION = 800, 1500, 80
IMPORTING = r"(^|\.)(import_module|__import__)$|^(sys\.modules\.get|imported_module)$"


def python_files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def c_files() -> list[Path]:
    return sorted([*SOURCE.rglob("*.c"), *SOURCE.rglob("*.h")])


def module_name(path: Path) -> str:
    """A package's `__init__` keeps that name, so that it can have a row of its own."""
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts)


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imported(path: Path) -> tuple[tuple[str, ast.AST, bool], ...]:
    """Each module imported, in full; the node; and whether it happens inside a function, or later, by name."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[tuple[str, ast.AST, bool]]:
    inside: set[int] = set()
    type_checking: set[int] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and id(node) not in inside:
            inside.update(id(each) for each in ast.walk(node))
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            type_checking.update(id(each) for each in ast.walk(node))
    package = ["fxjit", *path.relative_to(SOURCE).parts[:-1]]
    for node in ast.walk(parsed(path)):
        if id(node) in type_checking:
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node, id(node) in inside
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            base = ".".join(part for part in (base, node.module) if part)
            for alias in node.names:
                deeper = SOURCE.parent.joinpath(*base.split("."), alias.name)
                is_module = deeper.with_suffix(".py").exists() or deeper.is_dir() or alias.name == "_C"
                yield (f"{base}.{alias.name}" if is_module else base), node, id(node) in inside
        else:
            for name, later in imported_by_name(node, path):
                yield name, node, later or id(node) in inside


def dotted(node: ast.expr) -> str:
    """`a.b.c` for an attribute of a name, ".c" for one of anything else: what `IMPORTING` asks of."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def imported_by_name(node: ast.AST, path: Path) -> Iterator[tuple[str, bool]]:
    """Modules that a string names, and whether it is resolved later: "module:attribute" anywhere, the argument of
    `import_module` and its like, and a key of `sys.modules`."""
    name: ast.expr
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        found = re.fullmatch(r"(fxjit(?:\.\w+)+):[\w.]+", node.value)
        if found is not None:
            yield found[1], True
        return
    if isinstance(node, ast.Subscript) and dotted(node.value) == "sys.modules":
        name = node.slice
    elif isinstance(node, ast.Call) and node.args and re.search(IMPORTING, dotted(node.func)):
        name = node.args[0]
    else:
        return
    if isinstance(name, ast.Constant) and isinstance(name.value, str):
        yield name.value, False
    elif isinstance(name, ast.JoinedStr):
        for package in packages_walked(ast.unparse(name), path):
            for each in sorted(package.glob("*.py")):
                if each.stem != "__init__":
                    yield f"fxjit.{module_name(each)}", False


def packages_walked(text: str, path: Path) -> list[Path]:
    """The packages all of whose modules are imported by f"{__name__}.{...}" or, of packages that the file has imported, by
    f"{package.__name__}.{...}"."""
    if "{__name__}" in text:
        return [path.parent]
    named = [base.joinpath(alias.name) for node in parsed(path).body if isinstance(node, ast.ImportFrom)
             for base in [SOURCE.parent.joinpath(*(node.module or "").split("."))] for alias in node.names]  # fmt: skip
    return [each for each in named if each.is_dir()]


def own_imports(path: Path) -> Iterator[tuple[str, bool]]:
    for name, _, inside in imported(path):
        if name.startswith("fxjit.") or name == "fxjit":
            yield name.removeprefix("fxjit").removeprefix("."), inside


def layer_of(module: str) -> str | None:
    while module:
        if module in LAYERS:
            return module
        module = module.rpartition(".")[0]
    return None


@pytest.mark.parametrize("path", python_files(), ids=module_name)
def test_imports_point_down(path: Path):
    module = module_name(path)
    if module in PUBLIC:
        return
    layer = layer_of(module)
    assert layer is not None, f"{module} has no row in LAYERS"
    for target, _ in own_imports(path):
        if layer_of(target) == layer or target == layer:
            continue
        allowed = LAYERS[layer]
        assert any(target == each or target.startswith(each + ".") for each in allowed), (
            f"{module} (layer {layer}) imports {target or 'the package root'}"
        )


def test_there_is_no_cycle_of_imports():
    known = {module_name(path) for path in python_files()}
    graph = {
        module_name(path): {
            each
            for target, _ in own_imports(path)  # those inside functions too: they only hide a cycle
            for each in (target, f"{target}.__init__")
            if each in known
        }
        for path in python_files()
    }
    done: set[str] = set()

    def visit(module: str, trail: list[str]) -> None:
        assert module not in trail, "cycle: " + " -> ".join([*trail[trail.index(module) :], module])
        if module in done:
            return
        for target in sorted(graph[module]):
            if target != module:
                visit(target, [*trail, module])
        done.add(module)

    for module in sorted(graph):
        visit(module, [])


#: The modules of frontend/interp, lowest first: each imports only from lines above its own. Opcodes (ops_*) are the last.
INTERP = (
    {"dispatch", "restart", "stack_values"},
    {"lifetimes", "raising", "resumability"},
    {"nesting"},
    {"machine"},
    {"generators", "joint_conditions", "masked_stores", "where"},
    {"ends", "given_generators", "inline"},
    {"ops_build"},
)


def test_the_interpreter_has_an_order():
    rank = {name: at for at, names in enumerate(INTERP) for name in names}
    folder = SOURCE / "frontend" / "interp"
    for path in sorted(folder.glob("*.py")):
        if path.stem == "__init__":
            continue
        assert path.stem in rank or path.stem.startswith("ops_"), path
        for target, _ in own_imports(path):
            package, _, name = target.rpartition(".")
            if package == "frontend.interp":
                assert rank.get(name, len(INTERP)) < rank.get(path.stem, len(INTERP)), f"{path.stem} imports {name}"


def test_own_modules_are_imported_at_the_top():
    late = {(module_name(path), target) for path in python_files() for target, inside in own_imports(path) if inside}
    assert late <= LATE_IMPORTS, sorted(late - LATE_IMPORTS)
    assert late >= LATE_IMPORTS, f"no longer there, take them off the list: {sorted(LATE_IMPORTS - late)}"


def test_torch_dynamo_and_inductor_are_not_imported():
    banned = re.compile(r"torch\._(dynamo|inductor)(\.|$)")
    for path in python_files():
        if module_name(path) in ("backends.inductor", "install"):
            continue
        for name, node, _ in imported(path):
            looks_only = ast.unparse(node).startswith(("sys.modules.get(", "imported_module("))  # what the program has imported
            assert looks_only or not banned.match(name), f"{path}:{node.lineno} imports {name}"  # type: ignore[attr-defined]


def test_importing_the_front_end_does_not_import_the_backends():
    for path in python_files():
        if module_name(path).startswith(("frontend", "resume", "guards", "skips")):
            assert not any(target.startswith("backends") for target, _ in own_imports(path)), path


def test_versions_are_looked_at_in_one_place_each():
    for path in python_files():
        text = path.read_text(encoding="utf-8")
        if module_name(path) not in ("frontend.bytecode.versions", "pythons"):
            assert not re.search(r"\bsys\.version_info\b|\bsys\.hexversion\b", text), path
        assert not re.search(r"\btorch\.__version__\b.*[<>]", text), path
    for path in c_files():
        if path.name != "cpython_compat.h":
            assert "PY_VERSION_HEX" not in path.read_text(encoding="utf-8"), path


def test_the_environment_is_read_in_one_place():
    # values/ and callables/ model os.environ as an object of the user's program; they do not read it for us.
    reads = re.compile(r"\bos\.environ\s*(\[|\.get\(|\.copy\()|\bos\.getenv\(")
    for path in python_files():
        if module_name(path) != "config":
            assert not reads.search(path.read_text(encoding="utf-8")), path


def test_files_stay_short():
    for path in [*python_files(), *c_files()]:
        lines = path.read_text(encoding="utf-8").count("\n")
        most = MAX_LINES if path.suffix == ".py" else MAX_C_LINES
        name = path.relative_to(SOURCE).as_posix()
        assert lines <= LONG_FILES.get(name, most), f"{name} has {lines} lines"


def test_functions_stay_short():
    for path in python_files():
        for node in ast.walk(parsed(path)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno is not None:
                lines = node.end_lineno - node.lineno + 1
                name = f"{module_name(path)}.{node.name}"
                assert lines <= LONG_FUNCTIONS.get(name, MAX_FUNCTION), f"{name} has {lines} lines"


def test_every_module_says_what_it_is():
    for path in python_files():
        if path.read_text(encoding="utf-8").strip():
            assert ast.get_docstring(parsed(path)), path


def test_nothing_is_left_for_later():
    words = re.compile(r"\b(TODO|FIXME|XXX)\b")
    for path in [*python_files(), *c_files()]:
        assert not words.search(path.read_text(encoding="utf-8")), path
        assert path.suffix != ".py" or "raise NotImplementedError" not in path.read_text(encoding="utf-8"), path
