"""Recording and replaying, with a recorder that stands in for the GPU: a replay runs the graph again over the same memory."""

from __future__ import annotations

import ctypes
import threading
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import fxjit
from fxjit.backends import cudagraphs
from fxjit.backends.cudagraphs import CudaRecorder, Recorded, recording_of, varying_inputs, why_not
from fxjit.backends.graph.facts import placeholders_written
from fxjit.counters import counters


def by_address(tensor):
    """The same memory, without keeping it: what a recording on a GPU has of its inputs."""
    if not isinstance(tensor, torch.Tensor) or tensor.numel() == 0:
        return tensor
    flat = (ctypes.c_char * (tensor.numel() * tensor.itemsize)).from_address(tensor.data_ptr())
    return torch.frombuffer(flat, dtype=tensor.dtype).view(tensor.shape)


class FakeRecorder:
    """`protected` are tensors that recording, which runs nothing on a GPU, must leave as they are."""

    def __init__(self, *protected):
        self.protected, self.recordings, self.replays, self.others, self.current = protected, 0, 0, False, 0

    def record(self, run, places):
        self.recordings += 1
        before = [each.clone() for each in self.protected]
        outputs = list(run(list(places)))
        for each, value in zip(self.protected, before):
            each.copy_(value)
        memory = [by_address(each) for each in places]
        passed = [
            any(each is place or (isinstance(each, torch.Tensor) and cudagraphs._shares(each, place)) for place in places)
            for each in outputs
        ]
        written = [None if same else by_address(each) for each, same in zip(outputs, passed)]

        def replay():
            self.replays += 1
            for place, value in zip(written, run(list(memory))):
                if isinstance(place, torch.Tensor):
                    place.copy_(value)

        return replay, outputs

    def busy(self):
        return self.others

    def stream(self):
        return self.current


def boxed(function):
    def run(args):
        values = list(args)
        args.clear()
        return list(function(*values))

    return run


def test_the_third_call_and_later_ones_are_replays():
    recorder = FakeRecorder()
    weight = torch.randn(4, 4)
    call = Recorded(boxed(lambda x, w: [x @ w, x + 1]), "inference", frozenset(), recorder)
    for turn in range(6):
        x = torch.randn(3, 4)
        product, more = call([x, weight])
        torch.testing.assert_close(product, x @ weight)
        torch.testing.assert_close(more, x + 1)
        del product, more
        assert recorder.replays == max(0, turn - 1)
    assert recorder.recordings == 1


def test_the_list_of_inputs_is_emptied():
    call = Recorded(boxed(lambda x: [x + 1]), "inference", frozenset(), FakeRecorder())
    for _ in range(5):
        args = [torch.randn(3)]
        call(args)
        assert args == []


def test_what_was_given_out_is_never_overwritten():
    """All results are kept: the caller's stay as they were, and replays go on with clones."""
    recorder = FakeRecorder()
    call = Recorded(boxed(lambda x: [x * 2]), "inference", frozenset(), recorder)
    inputs = [torch.randn(5) for _ in range(12)]
    kept = [call([x])[0] for x in inputs]
    for x, result in zip(inputs, kept):
        torch.testing.assert_close(result, x * 2)
    assert recorder.replays >= 6


def test_a_view_that_the_caller_keeps_counts():
    recorder = FakeRecorder()
    call = Recorded(boxed(lambda x: [x * 2]), "inference", frozenset(), recorder)
    views, inputs = [], [torch.randn(6) for _ in range(8)]
    for x in inputs:
        views.append(call([x])[0].view(2, 3)[1])
    for x, view in zip(inputs, views):
        torch.testing.assert_close(view, (x * 2)[3:])


def test_a_loop_that_rebinds_its_result_is_replayed_after_one_plain_call():
    recorder = FakeRecorder()
    call = Recorded(boxed(lambda x: [x * 2]), "inference", frozenset(), recorder)
    for _ in range(20):
        result = call([torch.randn(5)])[0]
    assert recorder.replays >= 14


@pytest.mark.parametrize("moves", [False, True])
def test_outputs_that_are_views_of_inputs(moves):
    """What a forward saves of its parameters, say: they are views of what the call was given, wherever that lies."""
    recorder, memory = FakeRecorder(), torch.randn(40)

    def function(x, w):
        w = torch.as_strided(w, (3, 4), (1, 3), w.storage_offset() + 2)
        return [x @ w, w, x[1:]]

    call = Recorded(boxed(function), "forward", frozenset(), recorder)
    for turn in range(7):
        w = (memory.clone() if moves else memory)[5:25]
        x = torch.randn(2, 3)
        product, view, rows = call([x, w])
        expected = torch.as_strided(w, (3, 4), (1, 3), 7)
        torch.testing.assert_close(product, x @ expected)
        assert view.data_ptr() == expected.data_ptr() and view.stride() == (1, 3) and torch.equal(view, expected)
        assert rows.data_ptr() == x[1:].data_ptr() and torch.equal(rows, x[1:])
        del product, view, rows
    assert recorder.replays == 5


def test_a_view_of_an_input_as_another_type_is_not_recorded():
    recorder = FakeRecorder()
    call = Recorded(boxed(lambda x: [x * 2, x.view(torch.int32)]), "forward", frozenset(), recorder)
    x = torch.randn(4)
    for _ in range(5):
        assert torch.equal(call([x])[1], x.view(torch.int32))
    assert recorder.replays == 0


def test_mutation_of_an_input_that_moves_and_of_one_that_stays():
    state = torch.zeros(4)
    recorder = FakeRecorder(state)

    def step(x, state, scratch):
        state += x
        scratch *= 2
        return [state * 1]

    call = Recorded(boxed(step), "inference", frozenset({1, 2}), recorder)
    expected = torch.zeros(4)
    keep = []
    for _ in range(8):
        x, scratch = torch.randn(4), torch.ones(4)
        keep.append(scratch)
        result = call([x, state, scratch])[0]
        expected += x
        torch.testing.assert_close(state, expected)
        torch.testing.assert_close(result, expected)
        torch.testing.assert_close(scratch, torch.full((4,), 2.0))
    assert recorder.replays > 3


def test_a_parameter_that_is_exchanged_is_noticed():
    recorder = FakeRecorder()
    call = Recorded(boxed(lambda x, w: [x * w]), "inference", frozenset(), recorder)
    weights = [torch.randn(3) for _ in range(3)]
    for weight in weights:
        for _ in range(5):
            x = torch.randn(3)
            torch.testing.assert_close(call([x, weight])[0], x * weight)
    assert recorder.replays >= 8


def test_an_input_that_moves_forever_is_copied():
    recorder = FakeRecorder()
    call = Recorded(boxed(lambda x, w: [x * w]), "inference", frozenset(), recorder)
    stays = torch.randn(3)
    alternating = [torch.randn(3), torch.randn(3)]
    for turn in range(30):
        weight = stays if turn < 5 else alternating[turn % 2]
        x = torch.randn(3)
        torch.testing.assert_close(call([x, weight])[0], x * weight)
    assert recorder.replays > 15 and recorder.recordings <= 4


def test_each_size_has_a_recording_of_its_own():
    recorder = FakeRecorder()
    call = Recorded(boxed(lambda n, x: [x[:n] + n]), "inference", frozenset(), recorder)
    for _ in range(5):
        for size in (2, 3, 4):
            x = torch.randn(size)
            torch.testing.assert_close(call([size, x])[0], x + size)
    assert recorder.recordings == 3 and recorder.replays == 9


def test_there_is_a_limit_to_recordings(monkeypatch):
    monkeypatch.setattr(cudagraphs, "MAX_RECORDINGS", 2)
    recorder = FakeRecorder()
    call = Recorded(boxed(lambda n, x: [x + n]), "inference", frozenset(), recorder)
    before = counters["cudagraphs"]["not replayed: there are 2 recordings of other sizes"]
    for _ in range(4):
        for size in (2, 3, 4):
            torch.testing.assert_close(call([size, torch.ones(size)])[0], torch.ones(size) + size)
    assert recorder.recordings == 2
    assert counters["cudagraphs"]["not replayed: there are 2 recordings of other sizes"] - before == 4


def test_backward_twice_over_what_a_forward_saved():
    """A training step as the compiled graphs are called: saved values stay put, and are not overwritten while needed."""
    recorder = FakeRecorder()
    weight = torch.randn(4)
    forward = Recorded(boxed(lambda x, w: [x * w, x.exp()]), "forward", frozenset(), recorder)
    backward = Recorded(boxed(lambda saved, grad, w: [saved * grad * w]), "backward", frozenset(), recorder)
    for turn in range(8):
        x, grad = torch.randn(4), torch.randn(4)
        out, saved = forward([x, weight])
        for _ in range(2 if turn % 2 else 1):
            (gradient,) = backward([saved, grad, weight])
            torch.testing.assert_close(gradient, x.exp() * grad * weight)
            del gradient
        del out, saved
    assert recorder.replays > 8


def test_two_forwards_before_their_backwards():
    recorder = FakeRecorder()
    forward = Recorded(boxed(lambda x: [x * 2, x.exp()]), "forward", frozenset(), recorder)
    for _ in range(6):
        a, b = torch.randn(4), torch.randn(4)
        first, second = forward([a]), forward([b])
        torch.testing.assert_close(first[1], a.exp())
        torch.testing.assert_close(second[1], b.exp())


def test_an_output_that_is_an_input_is_the_callers_own():
    call = Recorded(boxed(lambda x, n: [x, x + 1, n, None]), "inference", frozenset(), FakeRecorder())
    for _ in range(5):
        x = torch.randn(3)
        same, more, number, nothing = call([x, 7])
        assert same is x and number == 7 and nothing is None
        torch.testing.assert_close(more, x + 1)


def test_a_graph_that_cannot_be_recorded_says_so_and_runs():
    class Refusing(FakeRecorder):
        def record(self, run, places):
            raise RuntimeError("operation not permitted when stream is capturing\nmore")

    call = Recorded(boxed(lambda x: [x + 1]), "inference", frozenset(), Refusing())
    reason = "not replayed: it cannot be recorded: operation not permitted when stream is capturing"
    before = counters["cudagraphs"][reason]
    for _ in range(5):
        x = torch.randn(3)
        torch.testing.assert_close(call([x])[0], x + 1)
    assert counters["cudagraphs"][reason] - before == 1


def test_nothing_is_recorded_or_replayed_inside_another_recording():
    recorder = FakeRecorder()
    call = Recorded(boxed(lambda x: [x + 1]), "inference", frozenset(), recorder)
    recorder.others = True
    for _ in range(5):
        call([torch.randn(3)])
    assert recorder.recordings == 0
    recorder.others = False
    for _ in range(4):
        call([torch.randn(3)])
    assert recorder.recordings == 1


def test_sizes_that_only_a_tensor_has_are_told_apart():
    """No number among the inputs says how long they are."""
    recorder = FakeRecorder()
    call = Recorded(boxed(lambda x: [x * 2]), "inference", frozenset(), recorder, varying=(0,))
    for _ in range(5):
        for size in (2, 3, 1):
            x = torch.randn(size)
            torch.testing.assert_close(call([x])[0], x * 2)
    assert recorder.recordings == 3


def test_what_is_recorded_for_a_stream_is_replayed_on_that_one_alone():
    recorder = FakeRecorder()
    call = Recorded(boxed(lambda x: [x * 2]), "inference", frozenset(), recorder)
    for turn in range(10):
        recorder.current = turn % 2
        x = torch.randn(3)
        torch.testing.assert_close(call([x])[0], x * 2)
    assert recorder.recordings == 2 and recorder.replays == 6


def test_two_threads_in_one_graph_do_not_share_its_memory():
    """A thread that comes while another is between copying its inputs and handing out results runs kernel by kernel."""
    recorder = FakeRecorder()
    inside, go_on = threading.Event(), threading.Event()
    slow = threading.local()

    def double(x):
        if getattr(slow, "here", False):
            inside.set()
            assert go_on.wait(30)
        return [x * 2]

    call = Recorded(boxed(double), "inference", frozenset(), recorder)
    for _ in range(4):
        call([torch.ones(3)])
    results = []

    def other():
        slow.here = True
        results.append(call([torch.full((3,), 5.0)])[0].clone())

    thread = threading.Thread(target=other)
    thread.start()
    assert inside.wait(30)
    before = counters["cudagraphs"]["not replayed: another thread is in the same graph"]
    torch.testing.assert_close(call([torch.full((3,), 7.0)])[0], torch.full((3,), 14.0))
    go_on.set()
    thread.join()
    torch.testing.assert_close(results[0], torch.full((3,), 10.0))
    assert counters["cudagraphs"]["not replayed: another thread is in the same graph"] - before == 1


# torch's own recorder, with what it calls written down


@pytest.fixture
def diary(monkeypatch):
    """torch.cuda, as far as a recording goes, on a machine without a GPU."""
    said = []

    class Context:
        def __init__(self, *what, **how):
            self.what, self.how = what, how

        def __enter__(self):
            said.append(("enter", *self.what, tuple(sorted(self.how))))

        def __exit__(self, *problem):
            said.append(("exit", *self.what))

    class Capture(Context):
        fails = False

        def __exit__(self, *problem):
            super().__exit__(*problem)
            if self.fails:
                raise RuntimeError("CUDA error: operation failed due to a previous error during capture")

    stream = SimpleNamespace(cuda_stream=0)
    for name, fake in {
        "CUDAGraph": lambda: SimpleNamespace(replay=lambda: None), "device": lambda device: Context("device", device.index),
        "synchronize": lambda: None, "current_stream": lambda device=None: stream, "stream": lambda given: Context("stream"),
        "graph": lambda graph, **how: Capture("capture", how["stream"], how["pool"], how["capture_error_mode"]),
        "graph_pool_handle": lambda: object(), "Stream": lambda device: f"side of {device}",
        "is_current_stream_capturing": lambda: False,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, fake)
    cudagraphs._pools.clear()
    yield said, Capture, stream
    cudagraphs._pools.clear()


def captures(said):
    return [each for each in said if each[:2] == ("enter", "capture")]


def test_each_device_is_recorded_on_a_stream_of_its_own(diary):
    """torch's default stream for recording belongs to whichever device was first."""
    said, _, stream = diary
    recordings = [CudaRecorder(torch.device("cuda", index)).record(lambda args: args, []) for index in (0, 1, 0)]
    first, second, third = captures(said)
    assert [each[2] for each in (first, second, third)] == ["side of cuda:0", "side of cuda:1", "side of cuda:0"]
    assert [each[1] for each in said if each[0] == "enter" and each[1] == "device"] == ["device"] * 3
    assert first[4] == "thread_local", "another thread's work would spoil a recording"
    # Recordings share memory where they are replayed one after the other, and nowhere else.
    assert first[3] is third[3] and first[3] is not second[3]
    stream.cuda_stream = 77
    CudaRecorder(torch.device("cuda", 0)).record(lambda args: args, [])
    assert captures(said)[-1][3] is not first[3] and len(recordings) == 3


def test_memory_goes_with_the_last_recording_in_it(diary):
    """torch takes the handle of such memory no more: a later recording has other memory."""
    said, _, _ = diary
    recorder = CudaRecorder(torch.device("cuda", 0))
    one = recorder.record(lambda args: args, [])
    two = recorder.record(lambda args: args, [])
    del one
    three = recorder.record(lambda args: args, [])
    del two, three
    recorder.record(lambda args: args, [])
    handles = [each[3] for each in captures(said)]
    assert handles[0] is handles[1] is handles[2] and handles[3] is not handles[0]


def test_a_recording_that_fails_leaves_the_stream_as_it_was(diary):
    """torch's own context does not, where ending the recording raises."""
    said, capture, _ = diary
    capture.fails = True
    call = Recorded(boxed(lambda x: [x + 1]), "inference", frozenset(), CudaRecorder(torch.device("cuda", 0)))
    for _ in range(5):
        torch.testing.assert_close(call([torch.ones(2)])[0], torch.full((2,), 2.0))
    assert said[-2:] == [("exit", "stream"), ("exit", "device", 0)] and len(captures(said)) == 1


# What can be recorded


def cuda_graph(function, *shapes):
    with FakeTensorMode(allow_non_fake_inputs=True):
        return make_fx(function)(*[torch.empty(shape, device="cuda") for shape in shapes])


def test_reasons_why_not():
    assert why_not(cuda_graph(lambda x: x + 1, (3,))) is None
    assert "its tensors are on cpu" in why_not(make_fx(lambda x: x + 1, tracing_mode="fake")(torch.ones(2)))
    mixed = cuda_graph(lambda x: torch.ops.aten._to_copy.default(x, device=torch.device("cpu")) + 1, (3,))
    assert "cpu, cuda:0" in why_not(mixed)


def test_inputs_that_are_written_to_are_found_through_views():
    def function(x, y, z):
        torch.ops.aten.copy_.default(torch.ops.aten.view.default(y, [4]), z)
        return torch.ops.aten.add.Tensor(x, 1)

    assert placeholders_written(cuda_graph(function, (4,), (2, 2), (4,))) == {1}


def test_inputs_whose_sizes_vary_are_found():
    gm = make_fx(lambda n, x, y: x + y.sum() + n, tracing_mode="symbolic")(7, torch.ones(5, 3), torch.ones(()))
    assert varying_inputs(gm) == (1,)


def test_the_backend_of_that_name():
    recorder = FakeRecorder()
    gm = make_fx(lambda x: {"twice": x * 2, "shape": (x.sum(0),)})(torch.ones(2, 3))
    call = recording_of(gm, recorder)
    for _ in range(4):
        for shape in ((2, 3), (4, 3)):
            x = torch.randn(shape)
            result = call(x)
            torch.testing.assert_close(result["twice"], x * 2)
            torch.testing.assert_close(result["shape"][0], x.sum(0))
    assert recorder.recordings == 2 and recorder.replays > 0
    x = torch.randn(2, 3, requires_grad=True)
    assert call(x)["twice"].requires_grad


@pytest.mark.compiles
def test_reduce_overhead_without_a_gpu_says_why_and_runs():
    before = counters["cudagraphs"]["not recorded: its tensors are on cpu"]
    compiled = fxjit.compile(lambda x: x.exp() * 2 + 1, mode="reduce-overhead")
    x = torch.randn(5)
    torch.testing.assert_close(compiled(x), x.exp() * 2 + 1)
    assert counters["cudagraphs"]["not recorded: its tensors are on cpu"] - before == 1
