"""`python -m benchmarks.gpu`: everything there is to know of fxjit on this machine's GPU, in under ten minutes.

First whether it is right: a list of operators, the modes (CUDA graphs, templates for products, several streams) and the dev
models, results and gradients against eager. Then the numbers of the project's goals, against torch.compile on the same
machine: models of the sizes that people run (gpu_models.py), how much of the memory's bandwidth kernels reach, what a call of a
small graph costs, and cold first calls. Each item has a process of its own, so that one that fails costs only itself, and each
stage a share of the time; what time does not allow is listed as left out. A table is printed, and `--out` keeps all of it as
JSON, written again after each item. Without a GPU this says so and exits with status 2; `--device cpu` runs all of it on the
processor, on less, to see that it runs.

It runs from a source tree with the extension built in place (`python setup.py build_ext --inplace; PYTHONPATH=src`), with
no network; `make gpu-wheels` packs the packages that such a machine may lack.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import fcntl
import functools
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

from benchmarks.gpu_calls import Call, compiler, measured, synchronize, take_turns, what_failed
from benchmarks.timing import interleaved, markdown

NO_GPU = 2
#: The models that run unless others are asked for: of packages that a GPU machine usually has.
MODELS = (
    "plain_gpt", "plain_convnet", "hf_bert", "hf_gpt2", "hf_llama", "hf_t5", "hf_vit", "timm_convnextv2_atto", "prog_char_lstm",
    "prog_train_step_adamw",
)  # fmt: skip
#: The package that the models of a prefix are of.
PACKAGES = {"hf": "transformers", "timm": "timm", "tv": "torchvision"}
#: Seconds of each stage, of ten minutes; time that one leaves goes to those after it.
STAGES = {"operators": 45, "modes": 35, "model": 60, "real": 240, "bandwidth": 90, "calls": 25, "first": 75}
#: The environment's name for the file that is locked by the process that measures.
TURN = "GPU_BENCHMARK_TURN"
DTYPES = ("float32", "bfloat16")
MODES = ("inference", "training")
WAYS = ("fxjit", "torch.compile")
#: Bytes of the input of a bandwidth kernel.
GIGABYTE = 1 << 30
#: So many that the GPU is never idle: one takes half a millisecond, of which a call's part on the processor would be a tenth.
KERNELS_IN_A_ROW = 8

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
        "integers": (lambda x: ((x * 9).int() // 4, (x * 9).long() % 5, (x > 0) & (x < 1), (x * 9).int().sum(1)), [(100, 130)]),
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
) -> Iterator[dict[str, Any]]:
    """Each operator in each type, and with gradients where it has them: what differs, in words."""
    import torch

    import fxjit
    from benchmarks.gpu_difference import difference

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
                problem = what_failed(error)
            yield {"name": name, "dtype": dtype, "problem": problem}


# -- modes ----------------------------------------------------------------------------------------------------------


def work_modes(device: str, only: list[str] | None = None) -> Iterator[dict[str, Any]]:
    """What the modes are for, each against eager, with fxjit's counters: what was recorded or measured, or why not."""
    import fxjit
    from benchmarks.gpu_modes import modes
    from fxjit.counters import counters

    for name, program in modes(device).items():
        if only and name not in only:
            continue
        fxjit.reset()
        for part in counters.values():
            part.clear()
        try:
            problem = program()
        except Exception as error:
            problem = what_failed(error)
        facts = {part: dict(counters[part]) for part in ("cudagraphs", "native")}
        yield {"name": name, "dtype": "", "problem": problem, "counters": facts}


# -- models ---------------------------------------------------------------------------------------------------------


def model_call(name: str, mode: str, dtype: str, way: str, device: str) -> tuple[Call, Any] | None:
    """One call of the model, compiled, and the model; None if it has no such mode. The way `exact`: eager, the same numbers in
    float64."""
    import torch
    from torch.utils._pytree import tree_map

    from benchmarks.models import _loss
    from benchmarks.programs import MORE, PROGRAMS

    kind, before = getattr(torch, dtype), torch.get_default_dtype()
    torch.manual_seed(0)
    # A program that holds its model to itself makes it where the default says, and as that.
    torch.set_default_dtype(kind)
    try:
        with torch.device(device):
            program = (PROGRAMS.get(name) or MORE[name])()
    finally:
        torch.set_default_dtype(before)
    if mode == "training" and program.module is None and not program.needs_grad:
        return None
    if mode == "training" and program.module is not None:
        for each in program.module.modules():
            if isinstance(each, torch.nn.RNNBase):
                each.train()  # cuDNN differentiates no other
    runs_in = torch.float64 if way == "exact" else kind

    def move(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        return x.to(device, kind).to(runs_in) if x.is_floating_point() else x.to(device)

    if program.module is not None:
        program.module.to(device, kind).to(runs_in)
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

    import fxjit
    from benchmarks.gpu_difference import TOLERANCE, about_as_near

    fxjit.config.fallback_random = True

    def run(way: str) -> tuple[list[Any], float] | None:
        made = model_call(name, mode, dtype, way, device)
        if made is None:
            return None
        call, module = made
        start = time.perf_counter()
        torch.manual_seed(2)
        out = call()
        synchronize(device)
        first = time.perf_counter() - start
        gradients = [p.grad for p in module.parameters()] if module is not None and mode == "training" else []
        return [each.detach() for each in (*tree_leaves(out), *gradients) if isinstance(each, torch.Tensor)], first

    eager, ours = run("eager"), run("fxjit")
    if eager is None or ours is None:
        return {"none": True}
    rtol, atol = TOLERANCE[dtype]
    problem = "" if len(eager[0]) == len(ours[0]) else f"{len(ours[0])} results, eager {len(eager[0])}"
    exact: list[Any] | None = None
    for k, (expected, actual) in enumerate(zip(eager[0], ours[0], strict=False)):
        try:
            # As far as the largest of a tensor's numbers says: a model's small gradients are sums of large ones.
            scale = float(expected.abs().max()) if expected.is_floating_point() and expected.numel() else 1.0
            torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol * max(scale, 1e-3), equal_nan=True)
        except AssertionError as error:
            if exact is None:
                exact = (run("exact") or ([],))[0]
            if not about_as_near(actual, expected, exact[k] if len(exact) == len(eager[0]) else None):
                problem = problem or f"tensor {k}: {' '.join(str(error).split())}"[:300]
    return {"first": ours[1], "problem": problem}


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


@contextlib.contextmanager
def beside_others() -> Iterator[Callable[[], None]]:
    """Inside, other processes may compile as this one does, and none measures; from the call of what it gives on, no other
    does either."""
    if TURN not in os.environ:
        yield lambda: None
        return
    with open(os.environ[TURN], "w") as turn:
        fcntl.flock(turn, fcntl.LOCK_SH)
        yield lambda: fcntl.flock(turn, fcntl.LOCK_EX)


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


def work_bandwidth(dtype: str, device: str, size: int = GIGABYTE) -> Iterator[dict[str, Any]]:
    """Bytes a second of each kernel, and of a copy by ATen measured beside it."""
    import torch

    import fxjit

    kind = getattr(torch, dtype)

    def turns(calls: dict[str, Call]) -> dict[str, Any]:
        return {"milliseconds": take_turns(calls, device, in_a_row=KERNELS_IN_A_ROW)}

    for name, (function, columns, moved) in bandwidth_kernels().items():
        x = torch.randn(size // kind.itemsize // columns, columns, device=device, dtype=kind)
        out = torch.empty_like(x)
        fxjit.reset()
        calls: dict[str, Call] = {"device copy": lambda x=x, out=out: out.copy_(x)}
        for way in ("eager", *WAYS):
            calls[way] = lambda compiled=compiler(way)(function), x=x: compiled(x)
        row = measured({"name": name, "dtype": dtype}, calls, device, 3, turns)
        moves = {way: x.nbytes * (2.0 if way == "device copy" else moved) for way in row["milliseconds"]}
        row["bytes_per_second"] = {way: moves[way] / ms * 1e3 for way, ms in row["milliseconds"].items()}
        yield row
        del x, out, calls


def work_calls(device: str, seconds: float = 0.3) -> Iterator[dict[str, Any]]:
    """Microseconds of the processor for a call of a small graph."""
    import torch

    import fxjit
    from fxjit.counters import counters

    def microseconds(calls: dict[str, Call]) -> dict[str, Any]:
        return {"microseconds": {way: each * 1e6 for way, each in interleaved(calls, seconds, 21).items()}}

    for mode in ("default", "reduce-overhead"):
        x = torch.randn(16, device=device)
        fxjit.reset()
        torch.compiler.reset()
        calls: dict[str, Call] = {"eager": lambda x=x: (x.sin() + 1) * 2 - x}
        for way in WAYS:
            calls[way] = lambda compiled=compiler(way, mode=mode)(lambda x: (x.sin() + 1) * 2 - x), x=x: compiled(x)
        with torch.no_grad():
            row = measured({"mode": mode}, calls, device, 8, microseconds)
        synchronize(device)
        yield {**row, "counters": {part: dict(counters[part]) for part in ("cudagraphs", "native")}}


def work_real(name: str, mode: str, batch: int, device: str, ways: list[str] | None = None) -> Iterator[dict[str, Any]]:
    """A model of the size that people run: first calls beside others, the rest alone."""
    from benchmarks import gpu_models

    row: dict[str, Any] = {}
    with beside_others() as others_wait:
        made = gpu_models.calls_of(name, mode, batch, ways or list(gpu_models.WAYS), device)
        calls = gpu_models.first_calls(made, row, 4)
        yield dict(row)
        others_wait()
        row["milliseconds"] = take_turns(calls, device, rounds=11)
        if device != "cpu":
            row["peak"] = {way: gpu_models.peak_of(call) for way, call in calls.items()}
            row["gpu"] = {way: gpu_models.profile_of(call) for way, call in calls.items()}
    yield row


WORK: dict[str, Callable[..., Any]] = {
    each.__name__.removeprefix("work_"): each
    for each in (work_operators, work_modes, work_model, work_first, work_bandwidth, work_calls, work_real)
}

# -- all of it ------------------------------------------------------------------------------------------------------


class Bench:
    """Runs items in processes, within the time there is."""

    def __init__(self, seconds: float, device: str, caches: str, out: str | None = None) -> None:
        self.deadline = self.until = time.monotonic() + seconds
        self.device, self.caches, self.out = device, caches, out
        self.stages = dict(STAGES)
        self.results: list[dict[str, Any]] = []

    def stage(self, name: str) -> None:
        """What follows has this stage's share of the time that is left."""
        now = time.monotonic()
        share = self.stages[name] / sum(self.stages.values())
        self.until = now + (self.deadline - now) * share
        del self.stages[name]

    def left(self) -> float:
        return self.until - time.monotonic()

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
        self.keep()
        return item

    def keep(self) -> None:
        """What there is so far, as JSON: a run that is cut short leaves that."""
        if self.out:
            text = json.dumps({"machine": machine(), "results": list(self.results)}, indent=1)
            part = f"{self.out}.{threading.get_ident()}"
            with open(part, "w") as file:
                file.write(text)
            os.replace(part, self.out)

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
    """The item's result, as far as it came, and in words what went wrong."""
    environment = {
        **os.environ, "FXJIT_CACHE_DIR": os.path.join(caches, "fxjit"),
        "TORCHINDUCTOR_CACHE_DIR": os.path.join(caches, "inductor"), "TRITON_CACHE_DIR": os.path.join(caches, "triton"),
        TURN: os.path.join(caches, "turn"),
    }  # fmt: skip
    command = [sys.executable, "-m", "benchmarks.gpu", "--work", json.dumps([work, arguments])]
    # Files and not pipes: the processes that compilers start may outlive the one that is waited for.
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as complaints:
        child = subprocess.Popen(command, stdout=said, stderr=complaints, env=environment, start_new_session=True)
        error = ""
        try:
            status = child.wait(limit)
        except subprocess.TimeoutExpired:
            status, error = 0, f"it took more than {limit:.0f} s"
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        for each in (said, complaints):
            each.seek(0)
        lines, words = said.read().splitlines(), complaints.read().strip()
    results = [json.loads(line.removeprefix("RESULT ")) for line in lines if line.startswith("RESULT ")]
    rows = [json.loads(line.removeprefix("ROW ")) for line in lines if line.startswith("ROW ")]
    if not error and (status or not results):
        error = words[-3000:] or f"exit status {status}"
    found = results[0] if results and results[0] is not None else rows
    return {**({"result": found} if found or not error else {}), **({"error": error} if error else {})}


def describe(item: dict[str, Any]) -> str:
    words = [str(value) for key, value in item.items() if key not in ("result", "error", "only")]
    return " ".join(words) + (f": {item['error']}" if "error" in item else "")


def run_all(bench: Bench, models: tuple[str, ...], processes: int) -> None:
    """Correctness first, then models of the sizes that people run, kernels by themselves, and cold first calls."""
    from benchmarks import gpu_models
    from benchmarks.gpu_modes import modes

    small = {} if bench.device != "cpu" else {"size": 1 << 20}
    bench.stage("operators")
    kinds = ("float32", "bfloat16", "float64")
    names, parts = list(operators()), 3
    bench.side_by_side([{"work": "operators", "limit": 150, "dtypes": [kind], "only": names[part::parts]}
                        for kind in kinds for part in range(parts)], processes)
    bench.stage("modes")
    names = list(modes(bench.device))
    bench.side_by_side([{"work": "modes", "limit": 150, "only": names[part::parts]} for part in range(parts)], processes)
    bench.stage("model")
    pairs = [(name, mode, dtype) for name in models for dtype in DTYPES for mode in MODES]
    bench.side_by_side(
        [{"work": "model", "limit": 90, "name": n, "mode": m, "dtype": d} for n, m, d in pairs], processes
    )
    bench.stage("real")
    bench.side_by_side([{"work": "real", "limit": bench.left(), **each} for each in gpu_models.items(bench.device)], 16)
    bench.stage("bandwidth")
    for dtype in DTYPES:
        bench.run("bandwidth", bench.left() / 2 if dtype == DTYPES[0] else bench.left(), dtype=dtype, **small)
    bench.stage("calls")
    bench.run("calls", 60)
    bench.stage("first")
    firsts = [{"work": "first", "limit": 150, "cold": True, "name": n, "mode": m, "dtype": "float32", "way": way}
              for n in models[:4] for m in MODES for way in WAYS]  # fmt: skip
    bench.side_by_side(firsts, min(processes, 4))


def there(models: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the models whose packages are installed."""
    return tuple(name for name in models if find_spec(PACKAGES.get(name.partition("_")[0], "torch")) is not None)


def tables(results: list[dict[str, Any]]) -> str:
    """What was measured, as Markdown."""
    parts = [wrong_table(results), bandwidth_table(results), real_table(results), first_table(results), call_table(results)]
    problems = [f"* {describe(item)}" for item in results if "error" in item]
    for item in results:
        rows = item.get("result") if isinstance(item.get("result"), list) else []
        for row in rows or []:
            fails = {key: text for key, text in row.items() if key.endswith(" fails")}
            what = f"{describe(item)} {row.get('name', row.get('mode', ''))}".rstrip()
            problems += [f"* {what}, {key}: {in_a_cell(fails[key])}" for key in fails]
    if problems:
        parts.append("Not measured:\n\n" + "\n".join(problems))
    return "\n\n".join(part for part in parts if part)


def results_of(results: list[dict[str, Any]], work: str) -> list[dict[str, Any]]:
    return [item for item in results if item["work"] == work and "result" in item]


def in_a_cell(text: str) -> str:
    """The first line: all of it is in the file."""
    return text.partition("\n")[0].replace("|", "/")


def wrong_table(results: list[dict[str, Any]]) -> str:
    checked, wrong = 0, []
    for item in (*results_of(results, "operators"), *results_of(results, "modes")):
        for row in item["result"]:
            checked += 1
            if row["problem"]:
                where = ", ".join(filter(None, (row["name"], row["dtype"])))
                wrong.append((where, in_a_cell(row["problem"])))
    for item in results_of(results, "model"):
        if "none" not in item["result"]:
            checked += 1
            if item["result"]["problem"]:
                where = f"{item['name']}, {item['mode']}, {item['dtype']}"
                wrong.append((where, in_a_cell(item["result"]["problem"])))
    text = f"{checked} operators and models were compared with eager, {len(wrong)} differ."
    return text + ("\n\n" + markdown(("what", "how"), wrong) if wrong else "")


def ratio(a: float | None, b: float | None) -> str:
    return f"{a / b:.2f}" if a and b else "-"


def cells(times: dict[str, float], ways: tuple[str, ...], form: str, unit: float = 1.0) -> tuple[str, ...]:
    """A cell for each way; one that failed has none."""
    return tuple(format(times[way] / unit, form) if way in times else "-" for way in ways)


def bandwidth_table(results: list[dict[str, Any]]) -> str:
    rows = []
    for item in results_of(results, "bandwidth"):
        for row in item["result"]:
            rate = row["bytes_per_second"]
            ours = rate.get("fxjit")
            rows.append((f"{row['name']}, {row['dtype']}", *cells(rate, ("device copy", "eager", *WAYS), ".0f", 1e9),
                         ratio(ours, rate.get("device copy")), ratio(ours, rate.get("torch.compile"))))  # fmt: skip
    header = ("kernel, 1 GB", "copy, GB/s", "eager", "fxjit", "torch.compile", "of the copy's", "of torch.compile's")
    return markdown(header, rows) if rows else ""


def geomean(values: list[float]) -> float:
    return statistics.geometric_mean(values) if values else float("nan")


def real_table(results: list[dict[str, Any]]) -> str:
    """Times over eager's, by the wall clock and on the GPU alone, first calls and peaks over torch.compile's."""
    rows, gains = [], []
    for item in results_of(results, "real"):
        row = item["result"][-1]
        times, first, peak = row.get("milliseconds", {}), row.get("first", {}), row.get("peak", {})
        alone = {way: each["total"] for way, each in row.get("gpu", {}).items()}
        for ours, theirs in (("fxjit", "torch.compile"), ("fxjit, graphs", "torch.compile, graphs")):
            if ours not in times:
                continue
            if theirs in times:
                gains.append(times[theirs] / times[ours])
            mode = item["mode"] + (", CUDA graphs" if "graphs" in ours else "")
            rows.append((f"{item['name']}, {mode}, {item['batch']}", f"{times.get('eager', float('nan')):.2f}",
                         ratio(times.get("eager"), times.get(theirs)), ratio(times.get("eager"), times[ours]),
                         ratio(alone.get("eager"), alone.get(theirs)), ratio(alone.get("eager"), alone.get(ours)),
                         ratio(first.get(ours), first.get(theirs)), ratio(peak.get(ours), peak.get(theirs))))  # fmt: skip
    if not rows:
        return ""
    rows.append(("times as fast as torch.compile, geometric mean", "", "", f"{geomean(gains):.2f}", "", "", "", ""))
    header = ("model, mode, batch", "eager, ms", "torch.compile", "fxjit", "GPU alone: torch.compile", "fxjit",
              "first call, of torch.compile's", "peak, of torch.compile's")
    return markdown(header, rows)


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
            numbers = cells(times, ("eager", *WAYS), ".1f")
            rows.append((row["mode"], *numbers, ratio(times.get("fxjit"), times.get("torch.compile"))))
    header = ("a call of a small graph", "eager, us", "fxjit", "torch.compile", "of torch.compile's")
    return markdown(header, rows) if rows else ""


@functools.cache
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
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a dry_run on the processor")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.work:
        work, arguments = json.loads(options.work)
        found = WORK[work](**arguments)
        if isinstance(found, Iterator):
            for row in found:
                print("ROW " + json.dumps(row), flush=True)
            found = None
        print("RESULT " + json.dumps(found), flush=True)
        return 0
    import torch

    if options.device != "cpu" and not torch.cuda.is_available():
        print("benchmarks.gpu: no CUDA device was found; nothing was measured.", file=sys.stderr)
        return NO_GPU
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as caches:
        bench = Bench(options.seconds, options.device, caches, options.out)
        run_all(bench, there(tuple(options.models)), options.processes)
    bench.keep()
    print("\n" + ", ".join(f"{key} {value}" for key, value in machine().items()))
    print("\n" + tables(bench.results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
