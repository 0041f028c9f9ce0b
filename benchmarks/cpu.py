"""`python -m benchmarks.cpu`: the C++ backend beside eager and torch.compile (inductor) on a CPU.

For each of the programs of benchmarks/programs.py, inference and training: the first call with empty caches, the first call
of a new process that finds what the last one left, the steady state and the peak of memory. For a set of kernels (a
GELU-like chain, softmax, residual and layer norm, 1e3 to 1e8 elements): the steady state, and the bandwidth beside a copy's.

What is compared takes turns in one process, or in processes that follow each other; numbers are medians, and ratios are
what they are good for. A program has four processes: fxjit's and torch.compile's first calls with empty caches, fxjit's with
what the last one left, and the steady state, which begins with torch.compile's first calls with what its last process left.
Each measures inference and then training, with everything imported but the compiler: what fxjit and torch.compile import and
set up for themselves is in the first call of inference. Eager runs before, so that both find the libraries warm.

With `--json FILE` a run goes on where it ended: programs that are in the file are not measured again. `--torch-results FILE`
takes torch.compile's numbers from an earlier run's JSON (its steady state as the ratio to eager's), which saves most of the
time.
"""

from __future__ import annotations

import argparse
import compileall
import ctypes
import dataclasses
import gc
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.timing import markdown, measured_beside

Call = Callable[[], object]
WAYS = ("eager", "fxjit", "torch")
MODES = ("inference", "training")
#: What fits into the default budget, the most telling first; `--models all` has the whole list.
SAMPLE = (
    "hf_bert:inference", "hf_bert:training", "timm_mobilenetv4_small:inference", "hf_llama:inference", "hf_vit:training",
    "torchdiffeq_rk4:inference", "hf_clip:inference", "prog_trivial_add:inference", "pyg_gcn:training",
    "xt_decoder_rotary_swiglu:training", "hf_t5:inference", "df_unet2d:inference",
)  # fmt: skip
SIZES = (10**3, 10**4, 10**5, 10**6, 10**7, 10**8)


@dataclasses.dataclass
class Result:
    """What was measured of one program in one mode; seconds, and bytes."""

    name: str
    mode: str
    cold: dict[str, float] = dataclasses.field(default_factory=dict)
    warm: dict[str, float] = dataclasses.field(default_factory=dict)
    steady: dict[str, float] = dataclasses.field(default_factory=dict)
    peak: dict[str, int] = dataclasses.field(default_factory=dict)
    problems: list[str] = dataclasses.field(default_factory=list)
    #: torch.compile's numbers are an earlier run's.
    kept: bool = False


# -- one process ----------------------------------------------------------------------------------------------------


def take_turns(calls: Mapping[str, Call], seconds: float, most: int = 41, least: int = 5) -> dict[str, float]:
    """Median seconds of one call of each; rounds in turns until `seconds` for each way are over."""
    loops: dict[str, int] = {}
    for name, call in calls.items():
        call()
        start = time.perf_counter()
        call()
        loops[name] = max(1, int(seconds / most / max(time.perf_counter() - start, 1e-7)))
    samples: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds * len(calls)
    for turn in range(most):
        if turn >= least and time.perf_counter() > end:
            break
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(loops[name]):
                call()
            samples[name].append((time.perf_counter() - start) / loops[name])
    return {name: statistics.median(times) for name, times in samples.items()}


def peak_of(call: Call) -> int:
    """Bytes by which the process grew at most during a call: the median of five. 0 where the kernel does not tell."""
    found = []
    for _ in range(5):
        gc.collect()
        try:
            ctypes.CDLL(None).malloc_trim(0)
            Path("/proc/self/clear_refs").write_text("5")
            before = _status("VmRSS")
            call()
            found.append(_status("VmHWM") - before)
        except (OSError, AttributeError, KeyError):
            return 0
    return int(statistics.median(found))


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def _compiler(way: str) -> Callable[[Any], Any]:
    if way == "eager":
        return lambda fn: fn
    if way == "fxjit":
        import fxjit

        return fxjit.compile
    import torch

    return torch.compile


def _program_call(name: str, mode: str, way: str) -> tuple[Callable[[], Call], bool]:
    """(what compiles the program and gives one call of it, whether the program has this mode)."""
    import torch

    from benchmarks.models import _loss
    from benchmarks.programs import MORE, PROGRAMS

    torch.manual_seed(0)
    program = (PROGRAMS.get(name) or MORE[name])()
    torch.manual_seed(1)
    arguments = program.inputs(program.batches[0])
    has_mode = (program.module is not None or program.needs_grad) if mode == "training" else not program.needs_grad

    def make() -> Call:
        fn = _compiler(way)(program.fn)

        def forward() -> Any:
            return program.run(fn, **arguments) if program.run is not None else fn(**arguments)

        def infer() -> object:
            with torch.no_grad():
                return forward()

        def train() -> object:
            assert program.module is not None
            for parameter in program.module.parameters():
                parameter.grad = None
            _loss(forward()).backward()
            return None

        if program.needs_grad:
            return forward
        return train if mode == "training" else infer

    return make, has_mode


def work_first(name: str, modes: list[str], way: str) -> Iterator[dict[str, Any]]:
    """Seconds of the first call in each mode, in this process."""
    for mode in modes:
        plain, has_mode = _program_call(name, mode, "eager")
        if not has_mode:
            continue
        plain()()
        make, _ = _program_call(name, mode, way)
        _forget()
        start = time.perf_counter()
        make()()
        yield {"mode": mode, "seconds": time.perf_counter() - start}


def work_steady(name: str, modes: list[str], ways: list[str], seconds: float) -> Iterator[dict[str, Any]]:
    """In each mode: the first call of torch.compile, if it is among the ways, then the steady state of all and their peaks."""
    for mode in modes:
        calls: dict[str, Call] = {}
        first: dict[str, float] = {}
        _forget()
        for way in ways:
            make, has_mode = _program_call(name, mode, way)
            if not has_mode:
                break
            start = time.perf_counter()
            calls[way] = make()
            calls[way]()
            first[way] = time.perf_counter() - start
            for _ in range(2):
                calls[way]()
        else:
            steady = take_turns(calls, seconds)
            peak = {way: peak_of(call) for way, call in calls.items()}
            yield {"mode": mode, "first": first, "steady": steady, "peak": peak}


def _forget() -> None:
    """What was compiled for one mode is no candidate for the next."""
    import torch

    for compiler in ("fxjit", "torch._dynamo"):
        if compiler in sys.modules:
            (sys.modules["fxjit"] if compiler == "fxjit" else torch._dynamo).reset()


# -- kernels --------------------------------------------------------------------------------------------------------


def _kernels() -> dict[str, tuple[Callable[..., Any], int, int]]:
    """name -> (function, how many tensors it takes, bytes read and written an element)."""
    import torch
    import torch.nn.functional as F

    def gelu_like(x: torch.Tensor) -> torch.Tensor:
        return 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x * x * x)))

    def scale_add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x * 2 + 1) * 0.5 - y

    def softmax(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * 0.5, dim=-1)

    def layer_norm(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x + y, (x.shape[-1],))

    return {"gelu-like": (gelu_like, 1, 8), "scale and add": (scale_add, 2, 12), "softmax": (softmax, 1, 8),
            "residual + layer norm": (layer_norm, 2, 12)}


def work_kernels(ways: list[str], sizes: list[int], seconds: float) -> Iterator[dict[str, Any]]:
    """One entry a kernel and size."""
    import torch

    with torch.no_grad():
        for size in sizes:
            columns = min(1000, max(100, size // 1000))
            columns = columns if size % columns == 0 else 1000
            for name, (fn, count, traffic) in _kernels().items():
                inputs = [torch.randn(size // columns, columns) for _ in range(count)]
                calls = {way: _kernel_call(way, fn, inputs) for way in ways}
                if size == max(sizes):
                    calls["copy"] = inputs[0].clone
                steady = take_turns(calls, seconds)
                bandwidth = {way: (8 if way == "copy" else traffic) * size / time_ for way, time_ in steady.items()}
                yield {"name": name, "size": size, "steady": steady, "bandwidth": bandwidth}


def _kernel_call(way: str, fn: Callable[..., Any], inputs: list[Any]) -> Call:
    import torch

    if way == "torch":
        torch._dynamo.reset()
        compiled = torch.compile(fn, dynamic=False)
    else:
        compiled = _compiler(way)(fn)
        if way == "fxjit":
            import fxjit

            fxjit.reset()
            compiled = fxjit.compile(fn, dynamic=False)
    return lambda: compiled(*inputs)


# -- all processes --------------------------------------------------------------------------------------------------


class Bench:
    """Runs workers with the caches of one folder."""

    def __init__(self, folder: str, options: argparse.Namespace) -> None:
        self.folder, self.options = folder, options
        self.end = 0.0
        self.kept = _kept(options.torch_results)

    def run(self, task: dict[str, Any], caches: str) -> tuple[list[Any], str | None]:
        """The lines that a worker says, and what went wrong where it failed or took too long."""
        environment = dict(os.environ)
        environment |= {"FXJIT_CACHE_DIR": f"{self.folder}/{caches}/fxjit",
                        "TORCHINDUCTOR_CACHE_DIR": f"{self.folder}/{caches}/inductor"}
        command = [sys.executable, "-m", "benchmarks.cpu", "--worker", json.dumps(task)]
        limit = max(30.0, self.end - time.monotonic())
        problem = None
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False, env=environment)
            said = done.stdout
            if done.returncode != 0:
                problem = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1][:300]
        except subprocess.TimeoutExpired as over:
            said = over.stdout.decode() if isinstance(over.stdout, bytes) else over.stdout or ""
            problem = f"took more than {limit:.0f} s"
        return [json.loads(line) for line in said.splitlines() if line.startswith("{")], problem

    def kernels(self) -> list[Any]:
        """The rows of all kernels."""
        self.end = time.monotonic() + 10 * self.options.budget
        ways = ["eager", "fxjit"] if self.options.without_torch_compile else list(WAYS)
        sizes = [int(float(size)) for size in self.options.sizes.split(",")]
        task = {"work": "kernels", "ways": ways, "sizes": sizes, "seconds": self.options.seconds / 4}
        rows, problem = self.run(task, "kernels")
        if problem is not None:
            print(f"kernels: {problem}", file=sys.stderr)
        return rows

    def measure(self, name: str, modes: list[str]) -> list[Result]:
        """One program; no result of a mode that it does not have."""
        self.end = time.monotonic() + self.options.budget
        results: dict[str, Result] = {}
        kept = [mode for mode in modes if (name, mode) in self.kept]
        with_torch = not kept and not self.options.without_torch_compile
        # torch.compile last: it is what may not fit into the budget.
        firsts = [("fxjit", "cold"), ("fxjit", "warm"), *([("torch", "cold")] if with_torch else [])]
        for way, when in firsts:
            said, problem = self.run({"work": "first", "name": name, "modes": modes, "way": way}, name)
            for each in said:
                getattr(results.setdefault(each["mode"], Result(name, each["mode"])), when)[way] = each["seconds"]
            if problem is not None:
                missing = next((mode for mode in modes if mode not in {each["mode"] for each in said}), modes[-1])
                results.setdefault(missing, Result(name, missing)).problems.append(f"{way}, {when}: {problem}")
        ways = [*(["torch"] if with_torch and all("torch" in each.cold for each in results.values()) else []), "fxjit", "eager"]
        ready = [mode for mode in modes if mode in results]
        task = {"work": "steady", "name": name, "modes": ready, "ways": ways, "seconds": self.options.seconds}
        said, problem = self.run(task, name)
        for each in said:
            result = results[each["mode"]]
            result.steady, result.peak = each["steady"], each["peak"]
            if "torch" in each["first"]:
                result.warm["torch"] = each["first"]["torch"]
            if result.mode in kept:
                _use_kept(result, self.kept[name, result.mode])
        if problem is not None and results:
            [*results.values()][-1].problems.append(f"steady: {problem}")
        return [*results.values()]


def _kept(file: str | None) -> dict[tuple[str, str], dict[str, Any]]:
    if file is None:
        return {}
    found = json.loads(Path(file).read_text())
    return {(each["name"], each["mode"]): each for each in found["models"] if "torch" in each["steady"]}


def _use_kept(result: Result, kept: Mapping[str, Any]) -> None:
    """torch.compile's numbers of an earlier run."""
    result.kept = True
    for field in ("cold", "warm", "peak"):
        if "torch" in kept[field]:
            getattr(result, field)["torch"] = kept[field]["torch"]
    if "eager" in kept["steady"] and "eager" in result.steady:
        result.steady["torch"] = result.steady["eager"] * kept["steady"]["torch"] / kept["steady"]["eager"]


# -- tables ---------------------------------------------------------------------------------------------------------


def ratio(numbers: Mapping[str, float], over: str, under: str) -> float | None:
    """numbers[over] / numbers[under], where both are known and positive."""
    a, b = float(numbers.get(over, 0)), float(numbers.get(under, 0))
    return a / b if a > 0 and b > 0 else None


def geomean(ratios: Iterable[float | None]) -> float | None:
    known = [each for each in ratios if each is not None]
    return math.exp(sum(map(math.log, known)) / len(known)) if known else None


def _cell(value: float | None, suffix: str = "x") -> str:
    return "-" if value is None else f"{value:.2f}{suffix}"


MODEL_HEADER = ("program", "mode", "cold, s: fxjit", "torch.compile", "warm, s: fxjit", "torch.compile", "eager, ms",
                "fxjit over eager", "torch.compile over eager", "fxjit over torch.compile", "peak, MB: eager", "fxjit",
                "torch.compile")


def model_row(result: Result) -> tuple[str, ...]:
    """One row of the table of programs."""
    mega = {way: f"{size / 2**20:.1f}" for way, size in result.peak.items()}
    eager = result.steady.get("eager")
    return (result.name, result.mode, _cell(result.cold.get("fxjit"), ""), _cell(result.cold.get("torch"), ""),
            _cell(result.warm.get("fxjit"), ""), _cell(result.warm.get("torch"), ""),
            "-" if eager is None else f"{eager * 1e3:.3f}", _cell(ratio(result.steady, "eager", "fxjit")),
            _cell(ratio(result.steady, "eager", "torch")), _cell(ratio(result.steady, "torch", "fxjit")),
            mega.get("eager", "-"), mega.get("fxjit", "-"), mega.get("torch", "-"))


KERNEL_HEADER = ("kernel", "elements", "eager, µs", "fxjit over eager", "torch.compile over eager",
                 "fxjit over torch.compile", "fxjit, GB/s", "a copy, GB/s")


def kernel_row(row: Mapping[str, Any]) -> tuple[str, ...]:
    """One row of the table of kernels."""
    steady, bandwidth = row["steady"], row["bandwidth"]
    copy = bandwidth.get("copy")
    return (row["name"], f"{row['size']:.0e}", f"{steady['eager'] * 1e6:.1f}", _cell(ratio(steady, "eager", "fxjit")),
            _cell(ratio(steady, "eager", "torch")), _cell(ratio(steady, "torch", "fxjit")),
            f"{bandwidth['fxjit'] / 1e9:.1f}", "-" if copy is None else f"{copy / 1e9:.1f}")


def _mean(results: list[Result], field: str, over: str, under: str) -> str:
    return _cell(geomean(ratio(getattr(each, field), over, under) for each in results))


def summary(results: list[Result], kernels: list[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """The numbers that are aimed at, over what was measured."""
    rows: list[tuple[str, str]] = []
    for mode in MODES:
        chosen = [each for each in results if each.mode == mode]
        if not chosen:
            continue
        against = [ratio(each.steady, "eager", "fxjit") for each in chosen]
        worst = min(((value, each.name) for value, each in zip(against, chosen, strict=True) if value is not None),
                    default=(None, "-"))
        of = f"{mode}: "
        rows += [
            (of + "cold first call, fxjit over torch.compile", _mean(chosen, "cold", "fxjit", "torch")),
            (of + "first call with a warm cache, the same", _mean(chosen, "warm", "fxjit", "torch")),
            (of + "steady, times as fast as torch.compile", _mean(chosen, "steady", "torch", "fxjit")),
            (of + "steady, times as fast as eager", _mean(chosen, "steady", "eager", "fxjit")),
            (of + "the same of torch.compile", _mean(chosen, "steady", "eager", "torch")),
            (of + "the slowest against eager", f"{_cell(worst[0])} {worst[1]}"),
            (of + "peak of memory, fxjit over torch.compile", _mean(chosen, "peak", "fxjit", "torch")),
        ]
    if kernels:
        for way, title in (("torch", "torch.compile"), ("eager", "eager")):
            mean = geomean(ratio(row["steady"], way, "fxjit") for row in kernels)
            rows.append((f"kernels: times as fast as {title}", _cell(mean)))
    for row in kernels:
        if "copy" in row["bandwidth"]:
            share = row["bandwidth"]["fxjit"] / row["bandwidth"]["copy"]
            rows.append((f"{row['name']}, {row['size']:.0e} elements: bandwidth over a copy's", _cell(share)))
    return rows


def report(results: list[Result], kernels: list[Mapping[str, Any]]) -> str:
    parts = []
    if results:
        parts.append(markdown(MODEL_HEADER, [model_row(each) for each in results]))
    if kernels:
        parts.append(markdown(KERNEL_HEADER, [kernel_row(each) for each in kernels]))
    parts.append(markdown(("number", "measured"), list(summary(results, kernels))))
    return "\n\n".join(parts)


# -- the command ----------------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="sample", help="sample, all, none, or names with commas: name or name:mode")
    parser.add_argument("--modes", default="inference,training", help="of models named without a mode")
    parser.add_argument("--kernels", default="all", choices=("all", "none"))
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="elements of the kernels' tensors")
    parser.add_argument("--seconds", type=float, default=1.0, help="measuring time of each way of each case")
    parser.add_argument("--budget", type=float, default=180.0, help="seconds for one program; what does not fit is left out")
    parser.add_argument("--torch-results", help="an earlier run's JSON, for torch.compile's numbers")
    parser.add_argument("--without-torch-compile", action="store_true")
    parser.add_argument("--json", help="where the results go, after each program; what it has is not measured again")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser


def chosen_cases(options: argparse.Namespace) -> dict[str, list[str]]:
    """The modes of each program, in the order they are measured."""
    from benchmarks.programs import PROGRAMS

    if options.models == "none":
        return {}
    names = {"sample": SAMPLE, "all": tuple(PROGRAMS)}.get(options.models) or tuple(options.models.split(","))
    cases: dict[str, list[str]] = {}
    for name in names:
        program, _, mode = name.partition(":")
        cases.setdefault(program, []).extend([mode] if mode else options.modes.split(","))
    return cases


def work(task: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """In a worker's process."""
    import torch

    from benchmarks import programs  # noqa: F401  (declares operators before anything imports torchvision)

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "0")) or torch.get_num_threads())
    if task["work"] == "first":
        return work_first(task["name"], task["modes"], task["way"])
    if task["work"] == "steady":
        return work_steady(task["name"], task["modes"], task["ways"], task["seconds"])
    return work_kernels(task["ways"], task["sizes"], task["seconds"])


def main(argv: list[str] | None = None) -> None:
    options = _parser().parse_args(argv)
    if options.worker:
        for line in work(json.loads(options.worker)):
            print(json.dumps(line), flush=True)
        return
    import fxjit

    compileall.compile_dir(Path(fxjit.__file__).parent, quiet=1)  # as installing does: first calls do not compile Python
    results, kernels = _load(options.json)
    with tempfile.TemporaryDirectory(prefix="fxjit-bench-") as folder:
        bench = Bench(folder, options)
        for name, modes in chosen_cases(options).items():
            if any(each.name == name for each in results):
                continue
            found = bench.measure(name, modes)
            results += found
            for result in found:
                print(" | ".join(model_row(result)), *result.problems, file=sys.stderr, flush=True)
            _save(options.json, results, kernels)
        if options.kernels == "all" and not kernels:
            kernels = bench.kernels()
            _save(options.json, results, kernels)
    print(report(results, kernels))
    print(f"\n{measured_beside()}")


def _load(file: str | None) -> tuple[list[Result], list[Any]]:
    """What an earlier run measured."""
    if file is None or not Path(file).exists():
        return [], []
    found = json.loads(Path(file).read_text())
    return [Result(**each) for each in found["models"]], found["kernels"]


def _save(file: str | None, results: list[Result], kernels: list[Any]) -> None:
    import torch

    if file is None:
        return

    facts = {"torch": torch.__version__, "python": platform.python_version(), "processors": os.cpu_count(),
             "threads": torch.get_num_threads()}
    found = {"facts": facts, "models": [dataclasses.asdict(each) for each in results], "kernels": kernels,
             "summary": summary(results, kernels)}
    Path(file).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
