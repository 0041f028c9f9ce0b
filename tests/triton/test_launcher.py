"""The launcher in C, against a driver that writes down what it is asked: arguments, grid, stream, context, and its errors."""

from __future__ import annotations

import pytest
import torch

from fxjit import _C
from fxjit.backends.native.runtime.launch_configuration import NARROW


def make(driver, otherwise=None, **changes):
    function, context, registers, local = _C.cuda_load(b"cubin", "kernel", changes.get("shared", 0), changes.pop("device", 0))
    assert (registers, local) == (40, 0)
    driver.said()
    facts = dict(
        tensors=2, integers=1, passed=1, hidden=2, warps=4, shared=0, grid=(1, 0, 128, 0, 3, 1), wide=False, span=-1,
        aligned=True, divisible=0, otherwise=otherwise or (lambda *args: pytest.fail("the usual kernel was right")),
    )  # fmt: skip
    return _C.CudaKernel(function, context, context - 0x100, **{**facts, **changes})


def test_arguments_and_grid(driver):
    kernel = make(driver)
    driver.expects(8, 8, 4, 8, 8)
    a, b = torch.empty(64), torch.empty(64)
    driver.library.fake_context(0x100)
    kernel(a, b, 300)
    (line,) = driver.said()
    # 300 in blocks of 128, times 3; what Triton adds to the arguments is null.
    assert line == (f"launch 0x77 grid 9 threads 128 shared 0 stream 5000 context 0x100: {a.data_ptr()} {b.data_ptr()} 300 0 0")


def test_nothing_is_launched_for_an_empty_tensor(driver):
    kernel = make(driver)
    kernel(torch.empty(0), torch.empty(0), 0)
    assert driver.said() == []


def test_the_kernels_own_device_is_made_current_and_left_again(driver):
    kernel = make(driver, device=1)
    driver.expects()
    kernel(torch.empty(4), torch.empty(4), 5)
    push, line, pop = driver.said()
    assert (push, pop) == ("push", "pop")
    assert "stream 5001 context 0x101" in line


def test_a_pointer_off_its_boundary_goes_to_another_kernel(driver):
    calls = []
    kernel = make(driver, otherwise=lambda *args: calls.append(args))
    a, b = torch.empty(64), torch.empty(64)
    kernel(a[1:], b, 16)
    assert [len(args) for args in calls] == [3] and calls[0][0].data_ptr() == a[1:].data_ptr() and driver.said() == []
    kernel(a[4:], b, 16)
    assert len(calls) == 1 and len(driver.said()) == 3


def test_a_size_that_16_does_not_divide_goes_to_another_kernel(driver):
    calls = []
    kernel = make(driver, divisible=1, otherwise=lambda *args: calls.append(args[2]))
    a, b = torch.empty(64), torch.empty(64)
    for size in (32, 33, 48):
        kernel(a, b, size)
    assert calls == [33]


def test_indices_of_64_bits_go_to_another_kernel(driver):
    calls = []
    kernel = make(driver, integers=2, passed=1, grid=(1, 0, 1024), span=1, otherwise=lambda *args: calls.append(args[2:]))
    a, b = torch.empty(64), torch.empty(64)
    kernel(a, b, 100, NARROW - 1)
    kernel(a, b, 100, NARROW)
    assert calls == [(100, NARROW)]
    driver.said()
    wide = make(driver, integers=2, grid=(1, 0, 1024), span=1, wide=True)
    driver.expects(8, 8, 8)
    wide(a, b, 2**33, 2**33)
    assert driver.said()[1].endswith(f" {2**33}")


def test_much_shared_memory_is_asked_for(driver):
    driver.said()
    _C.cuda_load(b"cubin", "kernel", 65536, 0)
    assert "shared 65536" in driver.said()


def test_the_drivers_errors_are_raised(driver):
    kernel = make(driver)
    driver.library.fake_fail(700)
    with pytest.raises(RuntimeError, match="CUDA error: a made-up error .cuLaunchKernel, 700"):
        kernel(torch.empty(4), torch.empty(4), 5)
    with pytest.raises(RuntimeError, match="cuModuleLoadData"):
        _C.cuda_load(b"cubin", "kernel", 0, 0)


def test_wrong_calls_are_refused(driver):
    kernel = make(driver)
    with pytest.raises(TypeError, match="2 tensors and 1 integers"):
        kernel(torch.empty(4), torch.empty(4))
    with pytest.raises(ValueError, match="too large for one kernel launch"):
        make(driver, grid=(1, 0, 1))(torch.empty(4), torch.empty(4), 2**40)
    with pytest.raises(ValueError, match="a block of nothing"):
        make(driver, grid=(0, 4, 0))


def test_a_missing_driver_is_named():
    with pytest.raises(OSError, match="the CUDA driver cannot be loaded: .*libnothing"):
        _C.cuda_open("libnothing.so.1", lambda device: 0)


# Whole graphs: the program in C launches by itself


@pytest.fixture
def graph_for_driver(monkeypatch, driver, tmp_path):
    """Compiles a function over CPU tensors as if they were a GPU's, for the driver that only writes down."""
    from torch.fx.experimental.proxy_tensor import make_fx

    from fxjit import config
    from fxjit.backends.native import pipeline
    from fxjit.backends.native.runtime import gpu

    for name, value in (("is_here", True), ("open_driver", None), ("capability", 90), ("gpu_name", "a GPU")):
        monkeypatch.setattr(gpu, name, lambda *args, value=value: value)
    monkeypatch.setattr(gpu.torch.cuda, "init", lambda: None)
    monkeypatch.setattr(gpu.torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(gpu, "_loaded", {})
    monkeypatch.setattr(gpu.TritonLaunchers, "interpret", property(lambda self: False, lambda self, value: None), raising=False)

    def compiled(function, *inputs, mode="fake"):
        gm = make_fx(function, tracing_mode=mode)(*inputs)
        with config.patch(**{"triton.interpret": True}):
            return pipeline.compile_graph(gm, inputs, "test", lone_kernels=True).finish()

    return compiled


def launches(driver):
    return [line.split(": ")[1].split() for line in driver.said() if line.startswith("launch")]


def test_a_program_launches_kernels_on_what_it_allocates(graph_for_driver, driver):
    graph = graph_for_driver(lambda x: (x.softmax(-1) @ x).exp(), torch.empty(32, 32))
    assert isinstance(graph.program, _C.Program)
    driver.expects(8, 8)
    x = torch.empty(32, 32)
    out = graph.unboxed()(x)
    first, second = launches(driver)
    assert int(first[0]) == x.data_ptr() and int(second[1]) == out.data_ptr()
    assert out.shape == (32, 32) and out.dtype is torch.float32


def test_a_program_passes_the_sizes_of_the_call(graph_for_driver, driver):
    graph = graph_for_driver(lambda x: x.exp() + x.shape[0], torch.empty(48, 4), mode="symbolic")
    driver.expects(8, 8, 4, 4)
    for rows in (64, 16):
        graph([torch.empty(rows, 4)])
        (line,) = launches(driver)
        assert str(rows) in line[2:]


def test_a_program_calls_another_binary_where_the_first_does_not_fit(graph_for_driver, driver):
    graph = graph_for_driver(lambda x: x.exp() * 2, torch.empty(64))
    driver.expects(8, 8)
    memory = torch.empty(80)
    for given in (memory[:64], memory[1:65], memory[:64]):
        graph([given])
    lines = launches(driver)
    assert [int(line[0]) - memory.data_ptr() for line in lines] == [0, 4, 0]


def test_an_empty_tensor_launches_nothing(graph_for_driver, driver):
    graph = graph_for_driver(lambda x: x.exp() * 2, torch.empty(8, 4), mode="symbolic")
    assert graph([torch.empty(0, 4)]).shape == (0, 4)
    assert launches(driver) == []


def test_a_driver_that_fails_ends_the_program(graph_for_driver, driver):
    graph = graph_for_driver(lambda x: x.exp() * 2, torch.empty(64))
    driver.expects(8, 8)
    graph([torch.empty(64)])
    driver.library.fake_fail(700)
    with pytest.raises(RuntimeError, match="CUDA error: a made-up error .cuLaunchKernel, 700"):
        graph([torch.empty(64)])


@pytest.mark.compiles
def test_a_choice_takes_the_place_of_what_measures(graph_for_driver, driver, monkeypatch):
    """The first call measures in Python; the ones after it launch from the program."""
    from fxjit.backends.native.runtime import gpu

    times = iter([3.0, 1.0, 2.0])
    monkeypatch.setattr(gpu, "measure", lambda call, args: next(times))
    monkeypatch.setattr(gpu.torch.cuda, "device", lambda device: torch.no_grad())
    monkeypatch.setattr(gpu.KernelCaller, "otherwise", counted := Counted(gpu.KernelCaller.otherwise))
    graph = graph_for_driver(lambda x: x.exp() * 2, torch.empty(4096, 4096))
    driver.expects(8, 8)
    for _ in range(3):
        graph([torch.empty(4096, 4096)])
    assert len(launches(driver)) == 3 and counted.calls == 1


class Counted:
    """A method that counts its calls."""

    def __init__(self, function):
        self.function, self.calls = function, 0

    def __get__(self, instance, owner=None):
        def call(*args):
            self.calls += 1
            return self.function(instance, *args)

        return call
