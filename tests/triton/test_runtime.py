"""Compiling, keeping, choosing and launching kernels: with a driver that writes down its calls in place of a GPU."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from fxjit import _C, config
from fxjit.backends.native.codegen import graph_kernels
from fxjit.backends.native.runtime import gpu, triton_compile
from fxjit.backends.native.runtime.triton_compile import Compiler, key_of
from fxjit.backends.store.artifacts import BINARY, FACTS, KernelCache, get_facts, open_cache, put_facts
from fxjit.counters import counters
from fxjit.errors import TritonCompileError

from .conftest import for_gpu


@pytest.fixture
def machine(monkeypatch, driver, tmp_path):
    """A machine with a GPU that keeps a diary, and an empty cache."""
    monkeypatch.setattr(gpu, "is_here", lambda: True)
    monkeypatch.setattr(gpu, "open_driver", lambda: None)
    monkeypatch.setattr(gpu, "capability", lambda device: 90)
    monkeypatch.setattr(gpu, "gpu_name", lambda device: "a GPU")
    monkeypatch.setattr(gpu.torch.cuda, "init", lambda: None)
    monkeypatch.setattr(gpu.torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(gpu, "_loaded", {})
    with config.patch(cache_dir=str(tmp_path)):
        yield driver


def kernel_for(seen, function, *shapes, **options):
    """The one kernel of a function over CUDA tensors, with what calls it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu, "is_here", lambda: False)
        for_gpu(function, *shapes, **options)
    (kernel,) = seen.kernels
    return kernel


def diary(driver):
    return [line for line in driver.said() if line.startswith("launch")]


def test_a_kernel_is_compiled_loaded_and_launched(machine, seen):
    kernel = kernel_for(seen, lambda x: torch.softmax(x, -1), (100, 1000))
    (call,) = gpu.KernelCaller(kernel, []).ready()
    assert isinstance(call, _C.CudaKernel)
    machine.expects(8, 8, 8, 8)
    a, b = torch.empty(100, 1000), torch.empty(100, 1000)
    call(a, b)
    (line,) = diary(machine)
    rows = dict(kernel.configs[0].blocks)["XB"]
    assert f"grid {-(-100 // rows)} threads {32 * kernel.configs[0].warps}" in line
    assert line.endswith(f": {a.data_ptr()} {b.data_ptr()} 0 0")


def test_a_tensor_off_its_boundary_has_a_binary_of_its_own(machine, seen):
    kernel = kernel_for(seen, lambda x: x * 2, (64,))
    caller = gpu.KernelCaller(kernel, [])
    (call,) = caller.ready()
    machine.expects(8, 8)
    memory = torch.empty(80)
    call(memory[:64], torch.empty(64))
    call(memory[1:65], torch.empty(64))
    assert len(diary(machine)) == 2
    assert {variant.aligned for variant, _ in caller.launchers} == {True, False}


def test_sizes_that_vary_and_what_is_known_of_them(machine):
    """16 divides the size that was seen: a call with another size takes a binary that does not rely on it."""
    kernel, caller = dynamic_kernel(48)
    assert caller.usual.divisible == 1 and not caller.usual.wide
    (call,) = caller.ready()
    count = len(kernel.sizes)
    machine.expects(8, 8, 4)
    for size in (64, 50):
        call(torch.empty(size), torch.empty(size), *([size] * kernel.passed), *launch_only(kernel, size))
    assert len(diary(machine)) == 2
    assert {variant.divisible for variant, _ in caller.launchers} == {1, 0}
    machine.expects(8, 8, 8)
    call(torch.empty(1), torch.empty(1), 2**31, *([2**31 + 1] * (count - 1)))
    assert {variant.wide for variant, _ in caller.launchers} == {True, False}
    assert diary(machine)[0].split()[-1] == str(2**31)


def dynamic_kernel(size):
    """A pointwise kernel over one symbolic dimension, as lowering makes it."""
    from torch.fx.experimental.proxy_tensor import make_fx

    from fxjit.backends.native import pipeline

    kept = []
    with pytest.MonkeyPatch.context() as patch:
        plain = graph_kernels.render_product
        patch.setattr(graph_kernels, "render_product", lambda schedule, hints: kept.append(plain(schedule, hints)) or kept[-1])
        gm = make_fx(lambda x: x * 2, tracing_mode="symbolic")(torch.ones(size))
        with config.patch(**{"triton.interpret": True}):
            pipeline.compile_graph(gm, (torch.ones(size),), "test", lone_kernels=True)
    (kernel,) = kept
    return kernel, gpu.KernelCaller(kernel, [size, *launch_only(kernel, size)])


def launch_only(kernel, size):
    (symbol,) = kernel.sizes[: kernel.passed]
    return [int(each.subs({symbol: size})) for each in kernel.sizes[kernel.passed :]]


# Choosing block sizes


def test_the_fastest_candidate_is_taken_and_remembered(machine, seen, monkeypatch):
    kernel = kernel_for(seen, lambda x: x.exp() * 2, (8192, 8192))
    assert len(kernel.configs) == 3
    times = iter([3.0, 1.0, 2.0])
    monkeypatch.setattr(gpu, "measure", lambda call, args: next(times))
    monkeypatch.setattr(gpu.torch.cuda, "device", lambda device: torch.no_grad())
    machine.expects()
    caller = gpu.KernelCaller(kernel, [])
    cell, (a, b) = caller.ready(), (torch.empty(8), torch.empty(8))
    cell[0](a, b)
    # From now on without Python in between.
    assert isinstance(cell[0], _C.CudaKernel)
    cell[0](a, b)
    assert caller.config == kernel.configs[1] and len(diary(machine)) == 2
    # In the next process nothing is measured, and only the choice is compiled.
    monkeypatch.setattr(gpu, "measure", lambda call, args: pytest.fail("it was measured again"))
    again = gpu.KernelCaller(kernel, [])
    again.ready()[0](a, b)
    assert again.config == kernel.configs[1]


@pytest.mark.parametrize("problem", [RuntimeError("out of resources"), TritonCompileError("no shared memory")])
def test_a_candidate_that_there_is_no_room_for_is_not_taken(machine, seen, monkeypatch, problem):
    kernel = kernel_for(seen, lambda x: x.exp() * 2, (8192, 8192))
    results = iter([2.0, problem, 3.0])

    def measure(call, args):
        found = next(results)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(gpu, "measure", measure)
    monkeypatch.setattr(gpu.torch.cuda, "device", lambda device: torch.no_grad())
    machine.expects()
    caller = gpu.KernelCaller(kernel, [])
    caller.ready()[0](torch.empty(8), torch.empty(8))
    assert caller.config == kernel.configs[0] == gpu.KernelCaller(kernel, []).kept_choice()


def test_without_memory_for_copies_the_first_candidate_is_taken(machine, seen, monkeypatch):
    kernel = kernel_for(seen, lambda x: x.exp() * 2, (8192, 8192))
    given = torch.empty(8), torch.empty(8)

    def clone(tensor):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(gpu, "measure", lambda call, args: pytest.fail("it was measured"))
    monkeypatch.setattr(torch.Tensor, "clone", clone)
    machine.expects()
    caller = gpu.KernelCaller(kernel, [])
    caller.ready()[0](*given)
    assert caller.config == kernel.configs[0] and caller.kept_choice() is None and len(diary(machine)) == 1


def test_nothing_is_measured_while_the_program_records(machine, seen, monkeypatch):
    kernel = kernel_for(seen, lambda x: x.exp() * 2, (8192, 8192))
    monkeypatch.setattr(gpu, "measure", lambda call, args: pytest.fail("it was measured"))
    monkeypatch.setattr(gpu.torch.cuda, "is_current_stream_capturing", lambda: True)
    caller = gpu.KernelCaller(kernel, [])
    machine.expects()
    caller.ready()[0](torch.empty(8), torch.empty(8))
    assert len(diary(machine)) == 1 and caller.config is None


def test_candidates_are_measured_on_copies_of_what_they_change(machine, seen, monkeypatch):
    kernel = kernel_for(seen, lambda x: x.exp() * 2, (8192, 8192))
    given = []
    monkeypatch.setattr(gpu, "measure", lambda call, args: given.append(args) or 1.0)
    monkeypatch.setattr(gpu.torch.cuda, "device", lambda device: torch.no_grad())
    tensors = dict(zip(kernel.buffers, (torch.empty(8), torch.empty(8))))
    gpu.KernelCaller(kernel, []).ready()[0](*tensors.values())
    for args in given:
        for name, tensor in zip(kernel.buffers, args):
            assert (tensor is tensors[name]) == (name not in kernel.written)


def test_small_kernels_and_those_without_choice_are_not_measured(machine, seen):
    kernel = kernel_for(seen, lambda x: x.exp() * 2, (100,))
    caller = gpu.KernelCaller(kernel, [])
    assert caller.candidates() == [kernel.configs[0]]
    with config.patch(**{"triton.autotune": False}):
        assert not gpu.KernelCaller(kernel, []).gains_from_tuning()


@pytest.mark.parametrize("content", [b"not json", b'{"chosen": 99}', b"{}"])
def test_a_kept_choice_that_makes_no_sense_is_ignored(machine, seen, content):
    kernel = kernel_for(seen, lambda x: x.exp() * 2, (8192, 8192))
    caller = gpu.KernelCaller(kernel, [])
    open_cache().put(caller.choice_key(), FACTS, content)
    assert caller.kept_choice() is None


# Compiling


JOB = {
    "source": "import triton\nimport triton.language as tl\n\n@triton.jit\ndef kernel(p0, XB: tl.constexpr):\n"
    "    x = tl.program_id(0) * XB + tl.arange(0, XB)\n    tl.store(p0 + x, x.to(tl.float32))\n",
    "name": "kernel", "signature": {"p0": "*fp32", "XB": "constexpr"}, "constants": {"XB": 128}, "divisible": [0], "arch": 80,
    "warps": 4, "stages": 1, "options": {},
}  # fmt: skip


@pytest.fixture
def empty_cache(tmp_path):
    with config.patch(cache_dir=str(tmp_path)):
        yield KernelCache(tmp_path / "kernels")


@pytest.fixture
def fresh():
    made = Compiler()
    yield made
    made.end()


def test_a_compiled_kernel_is_found_by_the_next_process(empty_cache, fresh, monkeypatch):
    before = dict(counters["cache"])
    binary = fresh.submit(JOB).result()
    assert binary.name == "kernel" and binary.warps == 4 and binary.parameters >= 1 and binary.code[:4] == b"\x7fELF"
    monkeypatch.setattr(triton_compile, "Worker", lambda: pytest.fail("a process was started"))
    assert Compiler().submit(JOB).result() == binary
    assert counters["cache"]["hit"] - before.get("hit", 0) == 1 and counters["cache"]["miss"] - before.get("miss", 0) == 1


def test_equal_jobs_at_the_same_time_are_one(empty_cache, fresh):
    assert fresh.submit(JOB) is fresh.submit(dict(JOB))


def test_a_damaged_entry_is_made_again(empty_cache, fresh):
    binary = fresh.submit(JOB).result()
    path = empty_cache.folder.path / f"{key_of(JOB)}.cubin"
    path.write_bytes(path.read_bytes()[:-1])
    again = Compiler()
    try:
        assert again.submit(JOB).result() == binary
    finally:
        again.end()


def test_an_entry_that_others_may_write_is_not_loaded(empty_cache, fresh):
    fresh.submit(JOB).result()
    path = empty_cache.folder.path / f"{key_of(JOB)}.cubin"
    path.chmod(0o666)
    assert open_cache().get(key_of(JOB), BINARY) is None


def test_what_triton_refuses_is_an_error_with_the_source(empty_cache, fresh):
    job = {**JOB, "source": JOB["source"].replace("x.to", "unknown.to")}
    with pytest.raises(TritonCompileError, match="(?s)Triton refused a kernel: .*unknown.*tl.store"):
        fresh.submit(job).result()
    # The process goes on.
    assert fresh.submit(JOB).result().name == "kernel"


def test_a_process_that_ends_is_an_error_and_the_next_one_works(empty_cache, fresh):
    job = {**JOB, "source": "import os\nos._exit(7)\n"}
    with pytest.raises(TritonCompileError, match="The process that compiles kernels ended .7."):
        fresh.submit(job).result()
    assert fresh.submit(JOB).result().name == "kernel"


def test_everything_a_binary_is_made_from_is_in_its_key():
    keys = {key_of(JOB)}
    for change in ({"arch": 90}, {"warps": 8}, {"divisible": []}, {"constants": {"XB": 256}}, {"options": {"debug": True}}):
        keys.add(key_of({**JOB, **change}))
    assert len(keys) == 6


def test_independent_kernels_are_compiled_at_the_same_time(empty_cache, fresh):
    """More than one process, where there is more than one kernel."""
    jobs = [fresh.submit({**JOB, "constants": {"XB": 1 << k}}) for k in range(5, 9)]
    assert len({job.result().code for job in jobs}) == 4
    assert 1 <= len(fresh.idle) <= triton_compile.process_count()


def test_processes_start_ahead_where_no_kernel_is_kept(empty_cache, fresh, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    fresh.warm(90)
    assert len(fresh.idle) == 2
    fresh.warm(90)
    assert len(fresh.idle) == 2
    started = list(fresh.idle)
    assert fresh.submit(JOB).result().name == "kernel"
    assert fresh.idle[-1] in started and {*fresh.idle} == {*started}


def test_no_process_starts_ahead_of_kept_kernels_or_without_processors(empty_cache, fresh, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    fresh.warm(90)
    assert not fresh.idle
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    fresh.submit(JOB).result()
    again = Compiler()
    again.warm(90)
    assert not again.idle


def test_a_machine_without_a_gpu_says_so_when_the_kernel_is_called(seen):
    kernel = kernel_for(seen, lambda x: x * 2, (64,))
    with pytest.raises(RuntimeError, match="this machine has no GPU"):
        gpu.KernelCaller(kernel, []).ready()[0](torch.empty(64), torch.empty(64))


def test_triton_is_not_imported_with_fxjit():
    """Nor does fxjit import it later, but in the processes that compile: torch's own AOTAutograd does."""
    text = "import sys, torch, fxjit\nprint('triton' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "False", done.stderr


def test_without_triton_aten_is_called_and_it_is_said(monkeypatch):
    from fxjit.backends.native import entry, target
    from fxjit.backends.native.lower import lower_graph

    monkeypatch.setattr(target, "gpu_problem", lambda index: "Triton is not installed")
    monkeypatch.setattr(entry, "gpu_problem", lambda index: "Triton is not installed")
    monkeypatch.setattr(entry, "_warned", set())
    with pytest.warns(RuntimeWarning, match="calls ATen for every operator on cuda:0: Triton is not installed"):
        entry.warn_without_triton({torch.device("cuda:0")})
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    from fxjit.backends.native.ir import Extern

    with FakeTensorMode():
        gm = make_fx(lambda x: F.gelu(x) * 2)(torch.empty(3, device="cuda"))
    assert all(isinstance(each, Extern) for each in lower_graph(gm).statements)


def test_a_graph_with_a_kernel_that_triton_refuses_runs_by_aten(empty_cache, monkeypatch):
    """With a warning that says why; `cpp.require` makes it an error."""
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    from fxjit import config
    from fxjit.backends.native import compiled, pipeline

    def refused(self, job):
        raise TritonCompileError("Triton refused a kernel: no such operation")

    monkeypatch.setattr(triton_compile.Compiler, "answer", refused)
    monkeypatch.setattr(compiled, "_warned", set())
    with FakeTensorMode(allow_non_fake_inputs=True):
        inputs = [torch.empty(8, 8, device="cuda")]
        gm = make_fx(lambda x: x.exp() * 2 + 1)(*inputs)
    with config.patch(**{"cpp.require": True}), pytest.raises(TritonCompileError, match="no such operation"):
        pipeline.compile_graph(gm, inputs, "inference", lone_kernels=True).finish()
    x = torch.randn(8, 8)
    with config.patch(**{"cpp.require": False}):
        graph = pipeline.compile_graph(gm, inputs, "inference", lone_kernels=True)
        with pytest.warns(RuntimeWarning, match="no such operation\\nfxjit calls ATen for every operator"):
            assert torch.equal(graph([x]), x.exp() * 2 + 1)


def test_kernels_of_two_devices_do_not_share_a_kernel(seen, texts):
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    from fxjit.backends.native import pipeline

    with FakeTensorMode(allow_non_fake_inputs=True):
        inputs = [torch.empty(8, 8, device="cuda:0"), torch.empty(8, 8)]
        gm = make_fx(lambda x, y: (x.exp() * 2, y.exp() * 2))(*inputs)
    before = counters["native"]["kernels"]
    pipeline.compile_graph(gm, inputs, "test", lone_kernels=True)
    assert counters["native"]["kernels"] - before == 2 and len(seen.kernels) == 1
    assert "k0(" in texts[0] and "g0(" in texts[0] and "device='cuda:0'" in texts[0]


def test_kept_json_is_plain(machine):
    put_facts("a" * 40, {"chosen": 1})
    assert open_cache().get("a" * 40, FACTS) == b'{"chosen": 1}' and get_facts("a" * 40) == {"chosen": 1}
    assert open_cache().names() == ["a" * 40 + FACTS]
    open_cache().trim(0)
    assert open_cache().names() == []
