"""`python -m benchmarks.models --list`: other people's programs, captured by fxjit and compared with eager.

For each program (benchmarks/programs.py): how many graphs and breaks, whether an identical call or another batch size
compiles again, what the first call costs, and whether outputs and gradients are eager's. Each program has a process of
its own; with `--beside-torch-compile`, torch.compile follows in another one. The cost is CPU seconds of the first call in
one thread, less those of an eager call, after a trivial function was compiled: with backend `eager`, what tracing costs.
Printed as a Markdown table, which is what docs/models.md holds.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import random
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

import fxjit
from benchmarks import container_programs as _container_programs  # noqa: F401 - its programs sign up in PACKAGES
from benchmarks import further_science_programs as _further_science_programs  # noqa: F401 - its programs sign up in FURTHER
from benchmarks import library_layers as _library_layers  # noqa: F401 - its programs sign up in LIBRARIES
from benchmarks import other_models as _other_models  # noqa: F401 - its programs sign up in MORE
from benchmarks import torch_package_programs as _torch_package_programs  # noqa: F401 - its programs sign up in PACKAGES
from benchmarks.further_package_programs import FURTHER
from benchmarks.known_programs import KNOWN
from benchmarks.library_programs import LIBRARIES
from benchmarks.package_programs import PACKAGES
from benchmarks.programs import MORE, PROGRAMS, Program
from benchmarks.timing import markdown, measured_beside

RTOL, ATOL = 1e-3, 1e-4
_SEED = 0


@dataclasses.dataclass
class Row:
    """What was seen of one program under one compiler. Empty `error`: all went as it should."""

    name: str
    graphs: int = 0
    breaks: int = 0
    operators: int = 0
    #: Graphs compiled by the second call (the same inputs), the third and the fourth (other batch sizes).
    again: tuple[int, int, int] = (0, 0, 0)
    #: CPU seconds of the first call, less those of an eager call.
    first: float = 0.0
    outputs: str = "-"
    gradients: str = "-"
    error: str = ""
    notes: list[str] = dataclasses.field(default_factory=list)

    def cells(self) -> tuple[str, ...]:
        again = ", ".join(map(str, self.again))
        return (f"{self.graphs} / {self.breaks} / {self.operators}", again, f"{self.first:.2f}", self.outputs, self.gradients,
                self.error)


HEADER = ("graphs / breaks / operators", "compiled again by the same call, 2nd, 3rd batch size", "first call, CPU s",
          "outputs", "gradients", "error")


class Counted:
    """A backend that counts its graphs and passes them on."""

    def __init__(self, backend: Callable[..., Any]) -> None:
        self.backend = backend
        self.graphs = 0
        self.operators = 0

    def __call__(self, gm: torch.fx.GraphModule, examples: Any) -> Any:
        self.graphs += 1
        self.operators += sum(node.op.startswith("call_") for node in gm.graph.nodes)
        return self.backend(gm, examples)


class Fxjit:
    """fxjit with one of its backends."""

    def __init__(self, backend: str) -> None:
        self.counted = Counted(fxjit.lookup_backend(backend))

    def compile(self, fn: Any) -> Any:
        fxjit.reset()
        return fxjit.compile(fn, backend=self.counted)

    def breaks(self) -> int:
        return sum(fxjit.counters["graph_break"].values())

    def notes(self) -> list[str]:
        found = [f"break: {what} ({count})" for what, count in fxjit.counters["graph_break"].items()]
        found += [f"skip: {what} ({count})" for what, count in fxjit.counters["skip"].items()]
        return found + [f"skipped for: {what} ({count})" for what, count in fxjit.counters["skip_cause"].items()]


class TorchCompile:
    """torch.compile, for the numbers beside ours."""

    def __init__(self, backend: str) -> None:
        import torch._dynamo

        self.dynamo = torch._dynamo
        self.counted = Counted(self.dynamo.lookup_backend("inductor" if backend == "native" else backend))

    def compile(self, fn: Any) -> Any:
        self.dynamo.reset()
        return torch.compile(fn, backend=self.counted)

    def breaks(self) -> int:
        return sum(self.dynamo.utils.counters["graph_break"].values()) + self._decisions()

    def notes(self) -> list[str]:
        found = [f"break: {str(what).splitlines()[0]} ({n})" for what, n in self.dynamo.utils.counters["graph_break"].items()]
        return [*found, f"decision on a tensor ({self._decisions()})"] if self._decisions() else found

    def _decisions(self) -> int:
        """Branches on tensors in the compiled function itself: they end its graph, and no counter of torch's has them."""
        return sum(each.reason.startswith("generic_jump") for each in self.dynamo.utils.graph_break_reasons)


def measure(name: str, way: Fxjit | TorchCompile, gradients: bool = True) -> Row:
    """One row: the program is run in eager and compiled, from the same seed."""
    row = Row(name)
    try:
        seed(_SEED)
        eager = _builder(name)()
        seed(_SEED)
        ours = _builder(name)()
    except ImportError as error:
        row.error = f"not installed: {error}"
        return row
    try:
        way.compile(lambda x: x + 1)(torch.ones(3))
        once = _eager_seconds(name)
        way.counted.graphs = way.counted.operators = 0
        compiled = way.compile(ours.fn)
        _outputs(row, way, eager, ours, compiled)
        row.first = max(row.first - once, 0.0)
        if gradients and eager.module is not None:
            _gradients(row, eager, ours, compiled)
    except Exception as error:
        row.error = f"{type(error).__name__}: {error}"[:300].replace("\n", " ").replace("|", "\\|")
        row.notes.append(traceback.format_exc())
    row.notes += way.notes()
    return row


def seed(number: int) -> None:
    """Seeds every stream that a model may draw its weights from."""
    torch.manual_seed(number)
    np.random.seed(number)
    random.seed(number)


def _builder(name: str) -> Callable[[], Program]:
    return (PROGRAMS | MORE | LIBRARIES | KNOWN | PACKAGES | FURTHER)[name]


def _eager_seconds(name: str) -> float:
    """CPU seconds of the second eager call, of a program of its own: calls may leave something behind."""
    program = _builder(name)()
    call(program, program.fn, program.batches[0])
    start = time.process_time()
    call(program, program.fn, program.batches[0])
    return time.process_time() - start


def _outputs(row: Row, way: Fxjit | TorchCompile, eager: Program, ours: Program, compiled: Any) -> None:
    """Four calls: two alike, then two with other batch sizes."""
    wrong: list[str] = []
    seen = 0
    again = []
    first, second, third = eager.batches
    for turn, batch in enumerate((first, first, second, third)):
        expected = call(eager, eager.fn, batch)
        start = time.process_time()
        actual = call(ours, compiled, batch)
        if turn == 0:
            row.first = time.process_time() - start
            row.graphs, row.operators, row.breaks = way.counted.graphs, way.counted.operators, way.breaks()
        else:
            again.append(way.counted.graphs - seen)
        seen = way.counted.graphs
        wrong += [f"call {turn + 1}: {what}" for what in differences(expected, actual, "result")]
    row.again = (again[0], again[1], again[2])
    row.outputs = "as eager's" if not wrong else wrong[0]
    row.notes += wrong


def call(program: Program, fn: Any, batch: int) -> Any:
    """One call of the program through `fn`, with the inputs of that batch size."""
    seed(_SEED + batch)
    arguments = program.inputs(batch)
    with contextlib.nullcontext() if program.needs_grad else torch.no_grad():
        return program.run(fn, **arguments) if program.run is not None else fn(**arguments)


def _gradients(row: Row, eager: Program, ours: Program, compiled: Any) -> None:
    wrong = gradients_that_differ(eager, ours, compiled)
    row.gradients = "as eager's" if not wrong else wrong[0]
    row.notes += wrong


def gradients_that_differ(eager: Program, ours: Program, compiled: Any) -> list[str]:
    """Runs forward and backward of both, and says where the gradients of the parameters differ."""
    found = []
    for program, fn in ((eager, eager.fn), (ours, compiled)):
        assert program.module is not None
        program.module.zero_grad()
        seed(_SEED)
        result = fn(**program.inputs(program.batches[0]))
        loss = _loss(result)
        if loss.requires_grad:  # a module's parameters may have no part in its result, or there may be none
            loss.backward()
        found.append({name: parameter.grad for name, parameter in program.module.named_parameters()})
    return list(differences(found[0], found[1], "gradients"))


def _loss(result: Any) -> torch.Tensor:
    """The loss a model gives, or the mean of the squares of its outputs."""
    loss = getattr(result, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss
    tensors = [leaf for leaf in _leaves(result) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    return sum((each.float().square().mean() for each in tensors), torch.zeros(()))


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for each in value.values():
            yield from _leaves(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _leaves(each)
    elif hasattr(value, "sample") and not isinstance(value, torch.Tensor):
        yield value.sample
    else:
        yield value


def differences(expected: Any, actual: Any, where: str) -> Iterator[str]:
    """Where two results differ, in type, structure or value."""
    if type(expected) is not type(actual):
        yield f"{where}: {type(actual).__name__}, not {type(expected).__name__}"
    elif isinstance(expected, (torch.Tensor, np.ndarray, np.generic)):
        yield from _differing_arrays(expected, actual, where)
    elif isinstance(expected, Mapping):
        if list(expected.keys()) != list(actual.keys()):
            yield f"{where}: keys {list(actual.keys())}, not {list(expected.keys())}"
            return
        for key in expected.keys():  # noqa: SIM118 - a TensorDict iterates over its batch
            yield from differences(expected[key], actual[key], f"{where}[{key!r}]")
    elif isinstance(expected, (list, tuple)):
        if len(expected) != len(actual):
            yield f"{where}: length {len(actual)}, not {len(expected)}"
            return
        for index, (one, other) in enumerate(zip(expected, actual, strict=True)):
            yield from differences(one, other, f"{where}[{index}]")
    elif isinstance(expected, float):
        if not np.isclose(expected, actual, rtol=RTOL, atol=ATOL, equal_nan=True):
            yield f"{where}: {actual}, not {expected}"
    elif type(expected).__eq__ is object.__eq__ and hasattr(expected, "__dict__"):
        yield from differences(vars(expected), vars(actual), where)
    elif expected != actual:
        yield f"{where}: {actual!r}, not {expected!r}"


def _differing_arrays(expected: Any, actual: Any, where: str) -> Iterator[str]:
    one, other = torch.as_tensor(expected), torch.as_tensor(actual)
    if one.shape != other.shape or one.dtype != other.dtype:
        yield f"{where}: {other.dtype} {tuple(other.shape)}, not {one.dtype} {tuple(one.shape)}"
    elif one.requires_grad != other.requires_grad:
        yield f"{where}: requires_grad {other.requires_grad}, not {one.requires_grad}"
    elif _places(one) != _places(other):
        yield f"{where}: strides {other.stride()}, not {one.stride()}"
    elif not torch.allclose(one, other, rtol=RTOL, atol=ATOL, equal_nan=True):
        yield f"{where}: off by {(one.double() - other.double()).abs().max():.2g}"


def _places(tensor: torch.Tensor) -> list[int]:
    """The strides of the dimensions in which a tensor has more than one place."""
    if tensor.layout != torch.strided or tensor.numel() == 0:
        return []
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


def _in_process(name: str, options: argparse.Namespace, torchs: bool) -> Row:
    """The row of a program run in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.models", "--here", name, "--backend", options.backend]
    command += ["--no-gradients"] * options.no_gradients + ["--with-torch-compile"] * torchs
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=options.timeout, check=False)
    except subprocess.TimeoutExpired:
        return Row(name, error=f"took more than {options.timeout} seconds")
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        return Row(name, error=f"exit status {done.returncode}: " + (done.stderr.strip().splitlines() or [""])[-1])
    return Row(**json.loads(lines[-1]))


def _here(options: argparse.Namespace) -> None:
    """Prints the row of one program, run in this process, as JSON."""
    torch.set_num_threads(1)
    way = TorchCompile(options.backend) if options.torch else Fxjit(options.backend)
    print(json.dumps(dataclasses.asdict(measure(options.here, way, not options.no_gradients))), flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="every program of the list")
    parser.add_argument("--more", action="store_true", help="the other programs too")
    parser.add_argument("--libraries", action="store_true", help="the programs of many packages")
    parser.add_argument("--known", action="store_true", help="the programs that once took more breaks than under torch.compile")
    parser.add_argument("--packages", action="store_true", help="the programs of packages around models, and of more")
    parser.add_argument("--further", action="store_true", help="the programs of more packages made of torch")
    parser.add_argument("--names", action="store_true", help="print the programs' names")
    parser.add_argument("--only", action="append", default=[], help="this program; may be repeated")
    parser.add_argument("--backend", default="eager", choices=("eager", "aot_eager", "native"))
    parser.add_argument("--with-torch-compile", dest="torch", action="store_true", help="torch.compile in fxjit's place")
    parser.add_argument("--beside-torch-compile", dest="beside", action="store_true", help="its columns too, after fxjit's")
    parser.add_argument("--no-gradients", action="store_true")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for one program")
    parser.add_argument("--here", help=argparse.SUPPRESS)
    parser.add_argument("--notes", action="store_true", help="tell why graphs broke, and what differed")
    return parser


def main(argv: list[str] | None = None) -> None:
    options = _parser().parse_args(argv)
    names = list(PROGRAMS) + (list(MORE) if options.more else [])
    if options.libraries:
        names = list(LIBRARIES)
    if options.known:
        names = list(KNOWN)
    if options.packages:
        names = list(PACKAGES)
    if options.further:
        names = list(FURTHER)
    if options.here:
        _here(options)
        return
    if options.names:
        print("\n".join(names))
        return
    whole = options.list or options.more or options.libraries or options.known or options.packages or options.further
    chosen = options.only or (names if whole else [])
    if not chosen:
        _parser().error("say --list, --more, --libraries, --known, --packages, --further or --only NAME")
    ways = [False, True] if options.beside else [options.torch]
    lines = []
    for name in chosen:
        rows = [_in_process(name, options, torchs) for torchs in ways]
        lines.append((name, *(cell for row in rows for cell in row.cells())))
        print(" | ".join(lines[-1]), file=sys.stderr, flush=True)
        if options.notes:
            print("\n".join("    " + note for row in rows for note in row.notes), file=sys.stderr, flush=True)
    header = HEADER + tuple(f"torch.compile: {title}" for title in HEADER) * options.beside
    print(markdown(("program", *header), lines))
    print(f"\n{measured_beside()}")


if __name__ == "__main__":
    main()
