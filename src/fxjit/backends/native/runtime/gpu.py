"""The kernels of one graph that are written in Triton: compiled together, and called by the executor.

Of each kernel there may be several binaries: `Variant`s by what is assumed of its arguments (16 divides pointers and sizes,
indices have 32 bits), and candidates by block sizes. The likeliest variant is compiled while the graph is, the others when
a call needs them. Where several block sizes are candidates, they are measured at the first call, and the choice is kept.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch

from fxjit import _C, config, logs, progress, torch_private
from fxjit.backends.store.artifacts import get_facts, put_facts
from fxjit.counters import counters, timed
from fxjit.errors import TritonCompileError

from ..codegen.triton import Config, TritonKernel
from ..hints import Hints
from ..index import Size
from .interpreted import InterpretedKernel
from .launch_configuration import evaluate, is_wide
from .triton_compile import OPTIONS, Binary, compiler, triton_version

log = logs.artifact("autotuning")
# Without a GPU in this machine, kernels are compiled for this one.
ABSENT = (9, 0)
# Below this many bytes a kernel's time is its launch, whatever its blocks.
TUNED_BYTES = 16 * 2**20
REPEATS = 5


class TritonLaunchers:
    """The callables of a graph's kernels: begins to compile them, and gives them when the graph's executor is made."""

    def __init__(self, kernels: Mapping[str, TritonKernel], hints: Hints) -> None:
        self.kernels, self.interpret = kernels, config.triton.interpret
        self.callers: dict[str, KernelCaller] = {}
        if not self.interpret:
            self.callers = {entry: KernelCaller(each, [*map(hints, each.sizes)]) for entry, each in kernels.items()}

    def start(self) -> None:
        """Begins to compile: all kernels at once."""
        for caller in self.callers.values():
            caller.start()

    def cells(self) -> dict[str, list[Callable[..., Any]]]:
        """What the executor calls, in lists of one, where a choice is put once it is made. Waits for the compiler, and raises
        TritonCompileError if it failed."""
        if self.interpret:
            return {entry: [InterpretedKernel(kernel)] for entry, kernel in self.kernels.items()}
        with timed("native.triton"):
            return {entry: self._ready(caller) for entry, caller in self.callers.items()}

    @staticmethod
    def _ready(caller: KernelCaller) -> list[Callable[..., Any]]:
        cell = caller.ready()
        progress.kernels_done(1)
        return cell


@dataclass(frozen=True, slots=True)
class Variant:
    """The specialisation of a binary: pointers that 16 divides, the sizes it divides (a bit each), indices of 64 bits or
    fewer."""

    aligned: bool
    divisible: int
    wide: bool


class KernelCaller:
    """One kernel: its variants and candidates, and the callable that stands for it."""

    def __init__(self, kernel: TritonKernel, likely: list[int]) -> None:
        self.kernel, self.likely = kernel, likely
        self.launchers: dict[tuple[Variant, Config], Any] = {}
        self.config: Config | None = None
        self.cell: list[Callable[..., Any]] = []
        self.usual = self.variant(likely, aligned=True)

    # Compiling

    def variant(self, integers: Any, aligned: bool) -> Variant:
        kernel = self.kernel
        divisible = sum(1 << k for k in range(kernel.passed) if integers[k] % 16 == 0)
        return Variant(aligned, divisible, is_wide(kernel, integers))

    def candidates(self) -> list[Config]:
        if self.config is not None:
            return [self.config]
        kept = self.kept_choice()
        if kept is not None:
            self.config = kept
            return [kept]
        if not config.triton.autotune or not is_here() or not self.gains_from_tuning():
            self.config = self.kernel.configs[0]
        return self.kernel.configs if self.config is None else [self.config]

    def gains_from_tuning(self) -> bool:
        span = evaluate(self.kernel, self.kernel.span, self.likely)
        return len(self.kernel.configs) > 1 and (config.triton.max_autotune or span * 4 >= TUNED_BYTES)

    def start(self) -> None:
        for chosen in self.candidates():
            self.binary(self.usual, chosen)

    def binary(self, variant: Variant, chosen: Config) -> Future[Binary]:
        return compiler.submit(job_of(self.kernel, variant, chosen, capability(self.kernel.device)))

    # Calling

    def ready(self) -> list[Callable[..., Any]]:
        """The callable, in a list where another takes its place once the candidates were measured. Waits for the first."""
        candidates = self.candidates()
        self.binary(self.usual, candidates[0]).result()
        if not is_here():
            self.cell[:] = [absent(self.kernel)]
        elif len(candidates) == 1:
            self.cell[:] = [self.launcher(self.usual, candidates[0])]
        else:
            self.cell[:] = [self.otherwise]
        return self.cell

    def otherwise(self, *args: Any) -> None:
        """Calls for which the usual variant is not right, and the first call where there are candidates to choose from."""
        count = len(self.kernel.buffers)
        aligned = not any(tensor.data_ptr() & 15 for tensor in args[:count])
        variant = self.variant(args[count:], aligned)
        if self.config is None and not torch.cuda.is_current_stream_capturing():
            self.choose(variant, args)
        # Nothing can be measured while a program of its own records a CUDA graph: the choice is deferred to another call.
        self.launcher(variant, self.config or self.kernel.configs[0])(*args)

    def launcher(self, variant: Variant, chosen: Config) -> Any:
        known = self.launchers.get((variant, chosen))
        if known is None:
            known = launcher(self.kernel, variant, chosen, self.binary(variant, chosen).result(), self.otherwise)
            self.launchers[variant, chosen] = known
        return known

    # Choosing block sizes

    def choice_key(self) -> str:
        sizes = [bucket(each) for each in self.likely]
        facts = (self.kernel.source, self.kernel.configs, sizes, gpu_name(self.kernel.device), triton_version())
        return hashlib.sha256(repr(facts).encode()).hexdigest()[:40]

    def kept_choice(self) -> Config | None:
        facts = get_facts(self.choice_key()) if len(self.kernel.configs) > 1 else None
        try:
            return None if facts is None else self.kernel.configs[facts["chosen"]]
        except (KeyError, IndexError, TypeError):
            return None

    def choose(self, variant: Variant, args: tuple[Any, ...]) -> None:
        """Times each candidate on copies of what it changes; where there is no memory for those, it is the first."""
        count = len(self.kernel.buffers)
        try:
            given = [
                tensor.clone() if name in self.kernel.written else tensor
                for name, tensor in zip(self.kernel.buffers, args[:count], strict=True)
            ]
        except torch.OutOfMemoryError:
            log.info("nothing is measured: there is no memory for it")
            self.take(self.kernel.configs[0])
            return
        with torch.cuda.device(self.kernel.device):
            times = [self.time(variant, chosen, (*given, *args[count:])) for chosen in self.kernel.configs]
        best = min(range(len(times)), key=times.__getitem__)
        self.take(self.kernel.configs[best])
        counters["native"]["kernels measured"] += 1
        log.info("%s of %s", self.config, times)
        put_facts(self.choice_key(), {"chosen": best, "milliseconds": times})

    def take(self, chosen: Config) -> None:
        self.config = chosen
        self.cell[:] = [self.launcher(self.usual, chosen)]

    def time(self, variant: Variant, chosen: Config, args: tuple[Any, ...]) -> float:
        """Milliseconds of a candidate; one that the compiler or this GPU has no room for is never the fastest."""
        try:
            return measure(self.launcher(variant, chosen), args)
        except (TritonCompileError, RuntimeError) as problem:
            log.info("%s does not run: %s", chosen, str(problem).partition("\n")[0])
            return math.inf


def bucket(size: int) -> int:
    """Sizes of one power of 2 share a choice."""
    return size.bit_length()


def measure(call: Callable[..., Any], args: tuple[Any, ...]) -> float:
    """The median time, in milliseconds of the GPU."""
    for _ in range(2):
        call(*args)
    marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(REPEATS)]
    for start, end in marks:
        start.record()
        call(*args)
        end.record()
    torch.cuda.synchronize()
    times: list[float] = sorted(start.elapsed_time(end) for start, end in marks)
    return times[REPEATS // 2]


def job_of(kernel: TritonKernel, variant: Variant, chosen: Config, arch: int) -> dict[str, Any]:
    """The request to the compiling process."""
    size = "i64" if variant.wide else "i32"
    count = len(kernel.pointers)
    constants: dict[str, Any] = {**dict(chosen.blocks), "WIDE": variant.wide}
    signature = {f"p{k}": kind for k, kind in enumerate(kernel.pointers)} | {f"n{k}": size for k in range(kernel.passed)}
    divisible = list(range(count)) if variant.aligned else []
    divisible += [count + k for k in range(kernel.passed) if variant.divisible >> k & 1]
    return {
        "source": kernel.source,
        "name": kernel.name,
        "signature": signature | dict.fromkeys(constants, "constexpr"),
        "constants": constants,
        "divisible": divisible,
        "arch": arch,
        "warps": chosen.warps,
        "stages": chosen.stages,
        "options": {**OPTIONS, "debug": kernel.asserts},
    }


def launcher(kernel: TritonKernel, variant: Variant, chosen: Config, binary: Binary, otherwise: Callable[..., Any]) -> Any:
    """The binary on its device, as a callable in C."""
    index = kernel.device.index or 0
    function, context, registers, local = load(binary, index)
    log.info("%s %s: %d registers, %d bytes spilled", kernel.device, chosen, registers, local)

    def placed(size: Size) -> tuple[int, int]:
        return (0, size) if isinstance(size, int) else (1, kernel.sizes.index(size))

    grid = [number for size, block in kernel.axes for number in (*placed(size), dict(chosen.blocks)[block])]
    grid += [*placed(kernel.rest), 1]
    return _C.CudaKernel(
        function,
        context,
        index,
        tensors=len(kernel.buffers),
        integers=len(kernel.sizes),
        passed=kernel.passed,
        hidden=binary.parameters - len(kernel.buffers) - kernel.passed,
        warps=binary.warps,
        shared=binary.shared,
        grid=tuple(grid),
        wide=variant.wide,
        span=-1 if isinstance(kernel.span, int) else kernel.sizes.index(kernel.span),
        aligned=variant.aligned,
        divisible=variant.divisible,
        otherwise=otherwise,
    )


_loaded: dict[tuple[str, int], tuple[int, int, int, int]] = {}


def load(binary: Binary, index: int) -> tuple[int, int, int, int]:
    """(function, context, registers, bytes of local memory); what is loaded stays, and is loaded once."""
    key = hashlib.sha256(binary.code).hexdigest(), index
    if key not in _loaded:
        torch.cuda.init()
        open_driver()
        _loaded[key] = _C.cuda_load(binary.code, binary.name, binary.shared, index)
    return _loaded[key]


def start_compilers(device: torch.device) -> None:
    """Has the processes that compile for the device started, if this machine has it: called before the graph is traced."""
    if is_here() and not config.triton.interpret:
        compiler.warm(capability(device))


def is_here() -> bool:
    """Whether this machine has a GPU that torch can use."""
    return torch.cuda.is_available()


@functools.cache
def open_driver() -> None:
    _C.cuda_open("libcuda.so.1", torch_private.get("torch._C._cuda_getCurrentRawStream"), True)  # type: ignore[attr-defined]  # not in the stubs


@functools.cache
def capability(device: torch.device) -> int:
    major, minor = torch.cuda.get_device_capability(device) if is_here() else ABSENT
    return major * 10 + minor


@functools.cache
def gpu_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if is_here() else ""


def absent(kernel: TritonKernel) -> Callable[..., Any]:
    """A placeholder for a kernel on a machine without a GPU: it was compiled, and raises when it is called."""

    def call(*args: Any) -> None:
        raise RuntimeError(f"This kernel is for {kernel.device}, and this machine has no GPU.")

    return call
