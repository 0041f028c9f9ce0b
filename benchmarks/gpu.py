"""`python -m benchmarks.gpu`: everything there is to know of fxjit on this machine's GPU, in under ten minutes.

First whether it is right: a list of operators and the dev models, results and gradients against eager. Then the numbers of
the project's goals, against torch.compile on the same machine: how much of the memory's bandwidth kernels reach, dev
models in inference and training, cold first calls, and what a call of a small graph costs. Each item has a process of
its own, so that one that fails costs only itself; what time does not allow is listed as left out. A table is printed, and
`--out` keeps all of it as JSON. Without a GPU this says so and exits with status 2.

It runs from a source tree with the extension built in place (`python setup.py build_ext --inplace; PYTHONPATH=src`), with
no network; `make gpu-wheels` packs the packages that such a machine may lack.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.timing import interleaved, markdown

NO_GPU = 2
#: The models that run unless others are asked for: of packages that a GPU machine usually has.
MODELS = (
    "hf_bert", "hf_gpt2", "hf_llama", "hf_t5", "hf_vit", "timm_convnextv2_atto", "prog_char_lstm", "prog_train_step_adamw",
)  # fmt: skip
DTYPES = ("float32", "bfloat16")
MODES = ("inference", "training")
WAYS = ("fxjit", "torch.compile")
#: Bytes of the input of a bandwidth kernel.
GIGABYTE = 1 << 30
TOLERANCE = {"float32": (2e-3, 2e-4), "bfloat16": (5e-2, 5e-2), "float16": (2e-2, 1e-2), "float64": (1e-6, 1e-8)}

Call = Callable[[], object]


def compiler(way: str, **options: Any) -> Callable[[Any], Any]:
    """`way` as a function of what is to be compiled."""
    import torch

    if way == "eager":
        return lambda fn: fn
    if way == "fxjit":
        import fxjit

        return lambda fn: fxjit.compile(fn, **options)
    return lambda fn: torch.compile(fn, **options)


# -- is it right ----------------------------------------------------------------------------------------------------


def operators() -> dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]]:
    """name -> (function, shapes of its inputs): each family of kernels, at sizes on both sides of what blocks hold."""
    import torch
    import torch.nn.functional as F

    def indexed(x: torch.Tensor) -> Any:
        places = torch.arange(0, x.shape[0], 3, device=x.device)
        return x[places] * 2, x.gather(1, places.remainder(x.shape[1]).expand(4, -1)), F.embedding(places, x)

    found: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
        "arithmetic": (lambda x, y: (x * 2 + y).relu() / (y.abs() + 1) - x.floor(), [(1000, 77), (1000, 77)]),
        "functions": (lambda x: x.exp().log1p() + x.tanh() * x.sin() + torch.erf(x) + x.abs().sqrt(), [(333, 101)]),
        "activations": (lambda x: F.gelu(x) + F.silu(x) + F.softplus(x) + F.leaky_relu(x), [(4096, 33)]),
        "broadcasting": (lambda x, y: x * y + x.sum(0), [(64, 513), (64, 1)]),
        "transposed": (lambda x, y: x.t() + y, [(300, 1025), (1025, 300)]),
        "sums": (lambda x: (x.sum(0), x.sum(1), x.sum(), x.mean(1)), [(257, 4099)]),
        "a long row": (lambda x: (x.sum(), x.amax(), (x > 3).any()), [(5_000_000,)]),
        "extremes": (lambda x: (x.amax(0), x.amin(1), x.max()), [(100, 3000)]),
        "variance": (lambda x: torch.var_mean(x, 1), [(100, 3000)]),
        "softmax": (lambda x: torch.softmax(x, -1), [(100, 1000)]),
        "softmax of long rows": (lambda x: torch.log_softmax(x, -1), [(20, 50_257)]),
        "softmax of columns": (lambda x: torch.softmax(x, 0), [(700, 90)]),
        "layer norm": (lambda x: F.layer_norm(x, x.shape[1:]), [(100, 768)]),
        "rms norm": (lambda x: F.rms_norm(x, x.shape[1:]), [(100, 5000)]),
        "group norm": (lambda x: F.group_norm(x, 4), [(8, 16, 20, 20)]),
        "indexing": (indexed, [(90, 64)]),
        "cat and pad": (lambda x, y: F.pad(torch.cat([x, y * 2], 1), (1, 2), value=1.0), [(50, 60), (50, 70)]),
        "pooling": (lambda x: F.max_pool2d(x, 2) + F.avg_pool2d(x, 2), [(2, 3, 32, 32)]),
        "scan and sort": (lambda x: (x.cumsum(1), x.sort(1)[0], x.topk(5, 1)[0]), [(30, 500)]),
        "matrix product": (lambda x, y: (x @ y + 1).relu(), [(128, 256), (256, 64)]),
        "attention": (F.scaled_dot_product_attention, [(2, 4, 128, 64)] * 3),
    }  # fmt: skip
    return found


def work_operators(
    device: str, only: list[str] | None = None, dtypes: tuple[str, ...] = ("float32", "bfloat16", "float64")
) -> list[dict[str, Any]]:
    """Each operator in each type, and with gradients where it has them: what differs, in words."""
    import torch

    import fxjit

    rows = []
    for name, (function, shapes) in operators().items():
        if only and name not in only:
            continue
        for dtype in dtypes:
            torch.manual_seed(0)
            kind = getattr(torch, dtype)
            inputs = [torch.randn(shape, device=device).to(kind).requires_grad_() for shape in shapes]
            fxjit.reset()
            try:
                problem = difference(fxjit.compile(function), function, inputs, dtype)
            except Exception as error:
                problem = f"{type(error).__name__}: {error}"[:300]
            rows.append({"name": name, "dtype": dtype, "problem": problem})
    return rows


def difference(ours: Callable[..., Any], eager: Callable[..., Any], inputs: list[Any], dtype: str) -> str:
    """How the two differ in results or gradients; empty if they do not."""
    import torch
    from torch.utils._pytree import tree_leaves

    def run(function: Callable[..., Any]) -> tuple[list[Any], list[Any]]:
        for each in inputs:
            each.grad = None
        outputs = [each for each in tree_leaves(function(*inputs)) if isinstance(each, torch.Tensor)]
        wanted = [each.float().square().mean() for each in outputs if each.requires_grad]
        if wanted:
            torch.stack(wanted).sum().backward()
        return [each.detach() for each in outputs], [each.grad for each in inputs]

    expected, actual = run(eager), run(ours)
    rtol, atol = TOLERANCE[dtype]
    for what, ones, others in zip(("result", "gradient"), actual, expected, strict=True):
        for k, (one, other) in enumerate(zip(ones, others, strict=True)):
            try:
                torch.testing.assert_close(one, other, rtol=rtol, atol=atol, equal_nan=True, check_stride=True)
            except AssertionError as problem:
                return f"{what} {k}: {' '.join(str(problem).split())}"[:300]
    return ""


# -- models ---------------------------------------------------------------------------------------------------------


def model_call(name: str, mode: str, dtype: str, way: str, device: str) -> tuple[Call, Any] | None:
    """One call of the model, compiled, and the model; None if it has no such mode."""
    import torch
    from torch.utils._pytree import tree_map

    from benchmarks.models import _loss
    from benchmarks.programs import MORE, PROGRAMS

    torch.manual_seed(0)
    program = (PROGRAMS.get(name) or MORE[name])()
    if mode == "training" and program.module is None and not program.needs_grad:
        return None
    kind = getattr(torch, dtype)

    def move(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        return x.to(device, kind) if x.is_floating_point() else x.to(device)

    if program.module is not None:
        program.module.to(device, kind)
    torch.manual_seed(1)
    arguments = tree_map(move, program.inputs(program.batches[0]))
    fn = compiler(way)(program.fn)

    def call() -> Any:
        with torch.set_grad_enabled(mode == "training" or program.needs_grad):
            out = program.run(fn, **arguments) if program.run is not None else fn(**arguments)
        if mode == "training" and program.module is not None:
            for parameter in program.module.parameters():
                parameter.grad = None
            _loss(out).backward()
        return out

    return call, program.module


def work_model(name: str, mode: str, dtype: str, device: str) -> dict[str, Any]:
    """Whether the model gives eager's results and gradients, and the seconds of fxjit's first call."""
    import torch
    from torch.utils._pytree import tree_leaves

    seen = []
    first = 0.0
    for way in ("eager", "fxjit"):
        made = model_call(name, mode, dtype, way, device)
        if made is None:
            return {"none": True}
        call, module = made
        start = time.perf_counter()
        torch.manual_seed(2)
        out = call()
        synchronize(device)
        first = time.perf_counter() - start
        gradients = [p.grad for p in module.parameters()] if module is not None and mode == "training" else []
        seen.append([each.detach() for each in (*tree_leaves(out), *gradients) if isinstance(each, torch.Tensor)])
    rtol, atol = TOLERANCE[dtype]
    problem = "" if len(seen[0]) == len(seen[1]) else f"{len(seen[1])} results, eager {len(seen[0])}"
    for k, (expected, actual) in enumerate(zip(*seen, strict=False)):
        try:
            # As far as the largest of a tensor's numbers says: a model's small gradients are sums of large ones.
            scale = float(expected.abs().max()) if expected.is_floating_point() and expected.numel() else 1.0
            torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol * max(scale, 1e-3), equal_nan=True)
        except AssertionError as error:
            problem = problem or f"tensor {k}: {' '.join(str(error).split())}"[:300]
    return {"first": first, "problem": problem}


def work_first(name: str, mode: str, dtype: str, way: str, device: str) -> dict[str, Any]:
    """Seconds of the first call, in this process, eager having run before it."""
    for each in ("eager", way):
        made = model_call(name, mode, dtype, each, device)
        if made is None:
            return {"none": True}
        start = time.perf_counter()
        made[0]()
        synchronize(device)
    return {"first": time.perf_counter() - start}


def work_steady(name: str, dtype: str, device: str) -> dict[str, Any]:
    """Milliseconds of a call, both modes, each compiler, taking turns."""
    out: dict[str, Any] = {}
    for mode in MODES:
        calls: dict[str, Call] = {}
        for way in ("eager", *WAYS):
            made = model_call(name, mode, dtype, way, device)
            if made is None:
                break
            calls[way] = made[0]
            for _ in range(4):
                calls[way]()
        else:
            out[mode] = take_turns(calls, device)
    return out


def take_turns(calls: dict[str, Call], device: str, rounds: int = 15) -> dict[str, float]:
    times: dict[str, list[float]] = {way: [] for way in calls}
    for _ in range(rounds):
        for way, call in calls.items():
            times[way].append(once(call, device))
    return {way: statistics.median(each) for way, each in times.items()}


def once(call: Call, device: str) -> float:
    """Milliseconds of one call, by events of the GPU."""
    import torch

    if device == "cpu":
        start = time.perf_counter()
        call()
        return (time.perf_counter() - start) * 1e3
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end))


def synchronize(device: str) -> None:
    if device != "cpu":
        import torch

        torch.cuda.synchronize()


# -- kernels and calls ----------------------------------------------------------------------------------------------


def bandwidth_kernels() -> dict[str, tuple[Callable[..., Any], int, float]]:
    """name -> (function of a matrix with rows of so many columns, bytes moved per byte of input)."""
    import torch
    import torch.nn.functional as F

    return {
        "copy": (lambda x: x.clone(), 4096, 2.0),
        "pointwise": (lambda x: F.gelu(x * 2 + 1), 4096, 2.0),
        "sum of rows": (lambda x: x.sum(-1), 4096, 1.0),
        "sum of all": (lambda x: x.sum(), 4096, 1.0),
        "sum of columns": (lambda x: x.sum(0), 4096, 1.0),
        "softmax": (lambda x: torch.softmax(x, -1), 4096, 2.0),
        "layer norm": (lambda x: F.layer_norm(x, x.shape[1:]), 4096, 2.0),
        "softmax of long rows": (lambda x: torch.softmax(x, -1), 65536, 2.0),
        "transposed": (lambda x: (x.t() + 1).contiguous(), 8192, 2.0),
    }


def work_bandwidth(dtype: str, device: str, size: int = GIGABYTE) -> list[dict[str, Any]]:
    """Bytes a second of each kernel, and of a copy by ATen measured beside it."""
    import torch

    import fxjit

    rows = []
    kind = getattr(torch, dtype)
    for name, (function, columns, moved) in bandwidth_kernels().items():
        x = torch.randn(size // kind.itemsize // columns, columns, device=device).to(kind)
        out = torch.empty_like(x)
        fxjit.reset()
        calls: dict[str, Call] = {"device copy": lambda x=x, out=out: out.copy_(x)}
        for way in ("eager", *WAYS):
            compiled = compiler(way)(function)
            calls[way] = lambda compiled=compiled, x=x: compiled(x)
            for _ in range(3):
                calls[way]()
        times = take_turns(calls, device)
        bytes_of = {way: x.nbytes * (2.0 if way == "device copy" else moved) for way in times}
        rates = {way: bytes_of[way] / ms * 1e3 for way, ms in times.items()}
        rows.append({"name": name, "dtype": dtype, "milliseconds": times, "bytes_per_second": rates})
        del x, out, calls
    return rows


def work_calls(device: str) -> list[dict[str, Any]]:
    """Microseconds of the processor for a call of a small graph."""
    import torch

    rows = []
    for mode in ("default", "reduce-overhead"):
        x = torch.randn(16, device=device)
        calls: dict[str, Call] = {"eager": lambda x=x: x.sin() + 1}
        for way in WAYS:
            compiled = compiler(way, mode=mode)(lambda x: (x.sin() + 1) * 2 - x)
            calls[way] = lambda compiled=compiled, x=x: compiled(x)
            for _ in range(6):
                calls[way]()
        synchronize(device)
        with torch.no_grad():
            seconds = interleaved(calls, 0.3, 21)
        synchronize(device)
        rows.append({"mode": mode, "microseconds": {way: each * 1e6 for way, each in seconds.items()}})
    return rows


WORK: dict[str, Callable[..., Any]] = {
    each.__name__.removeprefix("work_"): each
    for each in (work_operators, work_model, work_first, work_steady, work_bandwidth, work_calls)
}

# -- all of it ------------------------------------------------------------------------------------------------------


class Bench:
    """Runs items in processes, within the time there is."""

    def __init__(self, seconds: float, device: str, caches: str) -> None:
        self.deadline = time.monotonic() + seconds
        self.device, self.caches = device, caches
        self.results: list[dict[str, Any]] = []

    def left(self) -> float:
        return self.deadline - time.monotonic()

    def run(self, work: str, limit: float, cold: bool = False, **arguments: Any) -> dict[str, Any]:
        """One item; `cold`: with empty caches of its own."""
        item: dict[str, Any] = {"work": work, **arguments}
        limit = min(limit, self.left())
        if limit < 5:
            item["error"] = "left out: no time was left"
        else:
            with self.cache_folder(cold) as folder:
                item.update(in_process(work, {**arguments, "device": self.device}, limit, folder))
        self.results.append(item)
        print(f"{time.strftime('%H:%M:%S')} {describe(item)}", flush=True)
        return item

    @contextlib.contextmanager
    def cache_folder(self, cold: bool) -> Iterator[str]:
        if not cold:
            yield self.caches
            return
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            yield folder

    def side_by_side(self, items: list[dict[str, Any]], processes: int) -> None:
        with concurrent.futures.ThreadPoolExecutor(processes) as pool:
            list(pool.map(lambda item: self.run(**item), items))


def in_process(work: str, arguments: dict[str, Any], limit: float, caches: str) -> dict[str, Any]:
    """The item's result, or in words why there is none."""
    environment = {
        **os.environ, "FXJIT_CACHE_DIR": os.path.join(caches, "fxjit"),
        "TORCHINDUCTOR_CACHE_DIR": os.path.join(caches, "inductor"), "TRITON_CACHE_DIR": os.path.join(caches, "triton"),
    }  # fmt: skip
    command = [sys.executable, "-m", "benchmarks.gpu", "--work", json.dumps([work, arguments])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, env=environment, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"it took more than {limit:.0f} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if done.returncode or not lines:
        return {"error": (done.stderr or done.stdout).strip()[-400:] or f"exit status {done.returncode}"}
    return {"result": json.loads(lines[-1].removeprefix("RESULT "))}


def describe(item: dict[str, Any]) -> str:
    words = [str(value) for key, value in item.items() if key not in ("result", "error")]
    return " ".join(words) + (f": {item['error']}" if "error" in item else "")


def run_all(bench: Bench, models: tuple[str, ...], processes: int) -> None:
    """Correctness first, then cold first calls (which fill the caches), then what must have the machine to itself."""
    bench.run("operators", 150)
    pairs = [(name, mode, dtype) for name in models for dtype in DTYPES for mode in MODES]
    bench.side_by_side(
        [{"work": "model", "limit": 90, "name": n, "mode": m, "dtype": d} for n, m, d in pairs], processes
    )
    firsts = [{"work": "first", "limit": 150, "cold": True, "name": n, "mode": m, "dtype": "float32", "way": way}
              for n in models[:4] for m in MODES for way in WAYS]  # fmt: skip
    bench.side_by_side(firsts, processes)
    for dtype in DTYPES:
        bench.run("bandwidth", 90, dtype=dtype)
    bench.run("calls", 60)
    for dtype in ("bfloat16", "float32"):
        for name in models:
            bench.run("steady", 100, name=name, dtype=dtype)


def tables(results: list[dict[str, Any]]) -> str:
    """What was measured, as Markdown."""
    parts = [wrong_table(results), bandwidth_table(results), steady_table(results), first_table(results), call_table(results)]
    problems = [f"* {describe(item)}" for item in results if "error" in item]
    if problems:
        parts.append("Not measured:\n\n" + "\n".join(problems))
    return "\n\n".join(part for part in parts if part)


def results_of(results: list[dict[str, Any]], work: str) -> list[dict[str, Any]]:
    return [item for item in results if item["work"] == work and "result" in item]


def wrong_table(results: list[dict[str, Any]]) -> str:
    checked, wrong = 0, []
    for item in results_of(results, "operators"):
        for row in item["result"]:
            checked += 1
            if row["problem"]:
                wrong.append((f"{row['name']}, {row['dtype']}", row["problem"].replace("|", "/")))
    for item in results_of(results, "model"):
        if "none" not in item["result"]:
            checked += 1
            if item["result"]["problem"]:
                where = f"{item['name']}, {item['mode']}, {item['dtype']}"
                wrong.append((where, item["result"]["problem"].replace("|", "/")))
    text = f"{checked} operators and models were compared with eager, {len(wrong)} differ."
    return text + ("\n\n" + markdown(("what", "how"), wrong) if wrong else "")


def ratio(a: float | None, b: float | None) -> str:
    return f"{a / b:.2f}" if a and b else "-"


def bandwidth_table(results: list[dict[str, Any]]) -> str:
    rows = []
    for item in results_of(results, "bandwidth"):
        for row in item["result"]:
            rate = row["bytes_per_second"]
            cells = (f"{rate[way] / 1e9:.0f}" for way in ("device copy", "eager", *WAYS))
            rows.append((f"{row['name']}, {row['dtype']}", *cells,
                         ratio(rate["fxjit"], rate["device copy"]), ratio(rate["fxjit"], rate["torch.compile"])))  # fmt: skip
    header = ("kernel, 1 GB", "copy, GB/s", "eager", "fxjit", "torch.compile", "of the copy's", "of torch.compile's")
    return markdown(header, rows) if rows else ""


def geomean(values: list[float]) -> float:
    return statistics.geometric_mean(values) if values else float("nan")


def steady_table(results: list[dict[str, Any]]) -> str:
    rows, gains = [], []
    for item in results_of(results, "steady"):
        for mode, times in item["result"].items():
            gains.append(times["torch.compile"] / times["fxjit"])
            cells = (f"{times[way]:.3f}" for way in ("eager", *WAYS))
            rows.append((f"{item['name']}, {mode}, {item['dtype']}", *cells, f"{gains[-1]:.2f}"))
    if not rows:
        return ""
    rows.append(("geometric mean", "", "", "", f"{geomean(gains):.2f}"))
    return markdown(("model", "eager, ms", "fxjit", "torch.compile", "times as fast as torch.compile"), rows)


def first_table(results: list[dict[str, Any]]) -> str:
    found: dict[str, dict[str, float]] = {}
    for item in results_of(results, "first"):
        if "first" in item["result"]:
            found.setdefault(f"{item['name']}, {item['mode']}", {})[item["way"]] = item["result"]["first"]
    rows = [(name, *(f"{times[way]:.1f}" if way in times else "-" for way in WAYS),
             ratio(times.get("fxjit"), times.get("torch.compile"))) for name, times in found.items()]  # fmt: skip
    return markdown(("cold first call", "fxjit, s", "torch.compile", "of torch.compile's"), rows) if rows else ""


def call_table(results: list[dict[str, Any]]) -> str:
    rows = []
    for item in results_of(results, "calls"):
        for row in item["result"]:
            times = row["microseconds"]
            cells = (f"{times[way]:.1f}" for way in ("eager", *WAYS))
            rows.append((row["mode"], *cells, ratio(times["fxjit"], times["torch.compile"])))
    header = ("a call of a small graph", "eager, us", "fxjit", "torch.compile", "of torch.compile's")
    return markdown(header, rows) if rows else ""


def machine() -> dict[str, str]:
    import torch

    from benchmarks.models import fxjit  # the package under test, by the tree it stands in

    found = {"date": time.strftime("%Y-%m-%d"), "python": platform.python_version(), "torch": torch.__version__,
             "fxjit": os.path.dirname(fxjit.__file__)}  # fmt: skip
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
        found["cuda"] = str(torch.version.cuda)
    with contextlib.suppress(ImportError):
        import triton

        found["triton"] = triton.__version__
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="keep everything here, as JSON")
    parser.add_argument("--seconds", type=float, default=570, help="the time that all of it may take")
    parser.add_argument("--models", nargs="*", default=MODELS, help=f"default: {' '.join(MODELS)}")
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) // 2), help="where timings allow it")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.work:
        work, arguments = json.loads(options.work)
        print("RESULT " + json.dumps(WORK[work](**arguments)), flush=True)
        return 0
    import torch

    if not torch.cuda.is_available():
        print("benchmarks.gpu: no CUDA device was found; nothing was measured.", file=sys.stderr)
        return NO_GPU
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as caches:
        bench = Bench(options.seconds, "cuda", caches)
        run_all(bench, tuple(options.models), options.processes)
    report = {"machine": machine(), "results": bench.results}
    if options.out:
        with open(options.out, "w") as file:
            json.dump(report, file, indent=1)
    print("\n" + ", ".join(f"{key} {value}" for key, value in report["machine"].items()))  # type: ignore[attr-defined]
    print("\n" + tables(bench.results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
