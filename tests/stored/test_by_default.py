"""Stored entries as every program has them: what a user is to see in each process is seen in the second, too, and a disk that
takes nothing, other processes and odd ways to run code do no harm."""

from __future__ import annotations

import gc
import json
import linecache
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from tests.differential import assert_same

import fxjit
from fxjit import config, options
from fxjit.backends.store.artifacts import FACTS, KernelCache
from fxjit.backends.store.folder import Folder
from fxjit.counters import counters
from fxjit.errors import AccuracyError, BackendCompilerFailed, RecompileError, RecompileLimitExceeded, Unsupported
from fxjit.stored import entries, key

NewProcess = Callable[[str], ModuleType]
HEAD = "import torch, fxjit\nfrom torch import nn\n"
FUNCTION = HEAD + "def fn(x):\n    return (x * 2).relu().sum(-1)\n"
BREAK = HEAD + "def fn(x):\n    y = x * 2\n    print(end='')\n    return y.relu()\n"
X = torch.linspace(-1, 1, 12).view(3, 4)


# What is to be seen in each process


def test_a_backend_of_the_programs_own_is_called_in_each_process(new_process: NewProcess) -> None:
    """As a callable, by a name, by the name that another had in the process before, and as a subclass of ours' results."""
    seen: list[int] = []

    def mine(gm: torch.fx.GraphModule, example_inputs: list[torch.Tensor]) -> Callable[..., object]:
        seen.append(len(gm.graph.nodes))
        return gm.forward

    fxjit.register_backend(mine, name="fxjit_test_by_default")
    for backend in (mine, "fxjit_test_by_default"):
        for _ in range(2):
            seen.clear()
            fn = new_process(FUNCTION).fn
            assert_same(fxjit.compile(fn, backend=backend)(X), fn(X))
            assert seen


def test_a_custom_backend_after_native(new_process: NewProcess) -> None:
    for backend, calls in (("native", 0), ("eager", 0), (lambda gm, inputs: calls_of.append(gm) or gm.forward, 1)):
        calls_of: list[object] = []
        fxjit.compile(new_process(FUNCTION).fn, backend=backend)(X)
        assert len(calls_of) == calls


def test_explain_shows_all_of_it(new_process: NewProcess) -> None:
    """In a process that started compiled, and in one that explains before it calls."""
    texts = []
    for called in (True, True, False):
        fn = fxjit.compile(new_process(BREAK).fn)
        if called:
            fn(X)
        found = fxjit.explain(fn)(X)
        assert (found.graph_count, found.graph_break_count) == (2, 1)
        texts.append([len(each) for each in found.ops_per_graph])
    assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize("text", [
    FUNCTION, BREAK, HEAD + "def fn(x):\n    for n in range(2):\n        x = x * 2\n        print(end='')\n    return x\n",
], ids=["a graph", "a break", "a skip"])  # fmt: skip
def test_frames_and_graphs_are_counted_as_in_the_first_process(new_process: NewProcess, text: str) -> None:
    told = []
    for _ in range(2):
        counters.clear()
        fxjit.compile(new_process(text).fn)(X)
        told.append({name: dict(counters[name]) for name in ("frames", "stats", "graph_break", "skip")})
    assert counters["cache"]["entry hit"] + counters["cache"]["skip hit"] == told[0]["frames"]["total"]
    assert told[0] == told[1]


def test_whoever_listens_is_told(new_process: NewProcess) -> None:
    for _ in range(2):
        fn = fxjit.compile(new_process(BREAK).fn)
        with fxjit.CompileProfiler() as profiler:
            fn(X)
        assert "Graph break" in profiler.report() or "break" in profiler.report()


@pytest.mark.parametrize("setting", [{"verify_correctness": True}, {"repro_after": "dynamo"}, {"repro_after": "aot"}])
def test_settings_that_check_a_backend_call_it(
    new_process: NewProcess, traces: list[str], monkeypatch: pytest.MonkeyPatch, setting: dict[str, object], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    fxjit.compile(new_process(FUNCTION).fn)(X)
    for _ in range(2):
        traces.clear()
        fn = new_process(FUNCTION).fn
        with config.patch(**setting):
            assert_same(fxjit.compile(fn)(X), fn(X), rtol=1e-5)
        assert traces == ["fn"]
    traces.clear()
    fxjit.compile(new_process(FUNCTION).fn)(X)
    assert not traces


@pytest.mark.parametrize("setting", [{"debug": True}, {"report": "page"}])
def test_pages_and_folders_are_written(
    new_process: NewProcess, traces: list[str], monkeypatch: pytest.MonkeyPatch, setting: dict[str, object], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        traces.clear()
        with config.patch(**setting):
            fxjit.compile(new_process(FUNCTION).fn)(X)
        assert traces == ["fn"]


def test_fullgraph_raises_in_each_process(new_process: NewProcess) -> None:
    """Whatever entry, or skip, one without fullgraph left."""
    for _ in range(2):
        fn = new_process(BREAK).fn
        fxjit.compile(fn)(X)
        with pytest.raises(Unsupported):
            fxjit.compile(fn, fullgraph=True)(X)
        with pytest.raises(Unsupported), fxjit.error_on_graph_break(True):
            fxjit.compile(new_process(BREAK).fn)(X)


def test_a_recompile_that_is_an_error_is_one(new_process: NewProcess) -> None:
    """Though the entry that it would make is on the disk."""
    text = HEAD + "def fn(x, n):\n    return x * n\n"
    for _ in range(2):
        fn = fxjit.compile(new_process(text).fn, dynamic=False)
        fn(X, 2)
        with config.patch(error_on_recompile=True), pytest.raises(RecompileError):
            fn(X, 3)
        fn(X, 3)
    fn = fxjit.compile(new_process(text).fn, dynamic=False)
    fn(X, 2)
    with fxjit.set_stance("fail_on_recompile"), pytest.raises(RecompileError):
        fn(X, 3)


@pytest.mark.parametrize("stance", ["force_eager", "eager_on_recompile", "eager_then_compile"])
def test_under_a_stance_what_is_not_compiled_runs_eagerly(new_process: NewProcess, traces: list[str], stance: str) -> None:
    """Though its entry is on the disk; the second call under eager_then_compile starts compiled."""
    fxjit.compile(new_process(FUNCTION).fn)(X)
    traces.clear()
    for calls in (1, 2):
        fn = new_process(FUNCTION).fn
        counters.clear()
        with fxjit.set_stance(stance):
            for _ in range(calls):
                assert_same(fxjit.compile(fn)(X), fn(X), rtol=1e-5)
        assert counters["cache"]["entry hit"] == (stance == "eager_then_compile" and calls == 2)
    assert not traces


def test_the_limit_holds(new_process: NewProcess) -> None:
    text = HEAD + "def fn(x, n):\n    return x * n\n"
    for _ in range(2):
        with config.patch(recompile_limit=2):
            fn = fxjit.compile(new_process(text).fn, dynamic=False)
            for n in range(2, 7):
                assert_same(fn(X, n), X * n)
            fn = fxjit.compile(new_process(text).fn, dynamic=False)
            with config.patch(fail_on_recompile_limit_hit=True), pytest.raises(RecompileLimitExceeded):
                for n in range(2, 7):
                    fn(X, n)


def test_a_reset_forgets_entries_and_finds_them_again(new_process: NewProcess, traces: list[str]) -> None:
    fn = new_process(FUNCTION).fn
    for _ in range(3):
        assert_same(fxjit.compile(fn)(X), fn(X), rtol=1e-5)
        fxjit.reset()
    assert traces == ["fn"]


def test_texts_of_generated_code_go_with_entries_from_the_disk(new_process: NewProcess, traces: list[str]) -> None:
    """torch.fx keeps the text of each graph that it makes: one that runs as captured is made for each entry."""
    fn = new_process(HEAD + "layer = nn.Linear(4, 4)\ndef fn(x):\n    return layer(x)\n").fn
    texts = []
    with config.patch(small_graphs_as_captured=True):
        for _ in range(3):
            compiled = fxjit.compile(fn)
            compiled(X)
            texts.append(sum("eval_with_key" in name for name in linecache.cache))
            del compiled
            fxjit.reset()
            gc.collect()
    assert traces == ["fn"] and 0 < texts[1] == texts[2]


def test_a_result_that_is_wrong_is_told_though_it_is_stored(new_process: NewProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """verify_correctness looks at graphs that another process compiled, too."""
    fxjit.compile(new_process(FUNCTION).fn)(X)
    monkeypatch.setattr(options, "lookup_backend", lambda name: lambda gm, inputs, **rest: lambda *args: (args[0] * 0,))
    with config.patch(verify_correctness=True), pytest.raises((AccuracyError, BackendCompilerFailed)):
        fxjit.compile(new_process(FUNCTION).fn)(X)


# The disk


def test_an_entry_that_did_not_fit_is_not_kept_twice(new_process: NewProcess, traces: list[str], store: Path) -> None:
    """Its graph was removed."""
    for turn in range(3):
        traces.clear()
        fxjit.compile(new_process(FUNCTION).fn)(X)
        assert traces == ["fn"]
        (file,) = [file for file in store.glob("*.json") if '"sources"' in file.read_text()]
        for other in set(store.glob("*.json")) - {file}:
            other.unlink()
        facts = json.loads(KernelCache(store).get(file.stem, FACTS) or b"")
        assert len(facts["entries"]) == 1, turn


IN_A_PROCESS = HEAD + """
import sys
def fn(x):
    y = x * 2
    print(end="")
    return y.relu()
x = torch.linspace(-1, 1, 12)
assert torch.equal(fxjit.compile(fn)(x), fn(x)) and torch.equal(fxjit.compile(fn, backend="eager")(x), fn(x))
print(fxjit.counters["cache"]["entry hit"])
"""


def start(arguments: list[str], folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-W", "error::RuntimeWarning", *arguments], text=True,
                            env=config.child_environment(FXJIT_CACHE_DIR=str(folder), FXJIT_STORE_ENTRIES="1"),
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def hits(process: subprocess.Popen[str], given: str | None = None) -> int:
    said, errors = process.communicate(given, timeout=300)
    assert process.returncode == 0, errors
    return int(said.split()[-1])


def test_code_without_a_file_starts_compiled(tmp_path: Path) -> None:
    """`python -c` and standard input; of another text nothing is found."""
    for _ in range(2):
        found = hits(start(["-c", IN_A_PROCESS], tmp_path)), hits(start(["-"], tmp_path), IN_A_PROCESS)
    assert found == (4, 4)
    assert hits(start(["-c", IN_A_PROCESS.replace("x * 2", "x * 3")], tmp_path)) <= 2, "what follows the break is the same"


def test_many_processes_at_once(tmp_path: Path) -> None:
    """On one folder, of one program and of another text of the same file."""
    texts = [IN_A_PROCESS, IN_A_PROCESS.replace("x * 2", "x * 3")]
    for _ in range(2):
        running = [start(["-c", texts[number % 2]], tmp_path) for number in range(4)]
        found = [hits(each) for each in running]
    assert found == [4] * 4


def test_a_folder_that_takes_nothing(tmp_path: Path) -> None:
    """Entries that are in it are found; without a place for them a program says so once, and runs."""
    folder = tmp_path / "cache"
    assert hits(start(["-c", IN_A_PROCESS], folder)) == 0
    blocked = tmp_path / "file"
    blocked.write_text("")
    process = subprocess.run([sys.executable, "-c", IN_A_PROCESS], text=True, capture_output=True, timeout=300, check=False,
                             env=config.child_environment(FXJIT_CACHE_DIR=str(blocked / "inside"), FXJIT_STORE_ENTRIES="1"))
    assert process.returncode == 0 and process.stdout.split() == ["0"], process.stderr
    assert process.stderr.count("RuntimeWarning") == 1, process.stderr


def test_a_full_disk(new_process: NewProcess, monkeypatch: pytest.MonkeyPatch, traces: list[str]) -> None:
    """Nothing is written; what was compiled runs, and the next process traces."""
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Folder, "write", full)
    for _ in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            fn = new_process(FUNCTION).fn
            for backend in ("native", "eager"):
                assert_same(fxjit.compile(fn, backend=backend)(X), fn(X))
    assert traces.count("fn") >= 2


def test_a_forked_child_keeps_and_finds(new_process: NewProcess, traces: list[str]) -> None:
    fn = new_process(FUNCTION).fn
    child = os.fork()
    if child == 0:
        fxjit.compile(fn, backend="eager")(X)
        os._exit(7 if len(traces) == 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert_same(fxjit.compile(fn, backend="eager")(X), fn(X))
    assert not traces and counters["cache"]["entry hit"]


def test_another_version_of_torch_or_of_fxjit_has_entries_of_its_own(
    new_process: NewProcess, traces: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fxjit.compile(new_process(FUNCTION).fn)(X)
    others = ((torch, "__version__", "2.99.0"), (sys, "version", "3.99"), (key, "own_code", lambda: "another"))
    for module, name, value in others:
        with monkeypatch.context() as patch:
            patch.setattr(module, name, value)
            key._versions.cache_clear()
            traces.clear()
            fxjit.compile(new_process(FUNCTION).fn)(X)
            assert traces == ["fn"], name
        key._versions.cache_clear()
    traces.clear()
    fxjit.compile(new_process(FUNCTION).fn)(X)
    assert not traces


def test_functions_of_one_text_are_one_only_where_they_are_alike(new_process: NewProcess) -> None:
    """Made by a loop, with another cell and another default each; and of one name."""
    text = HEAD + """
made = []
for k in range(3):
    def fn(x, by=k):
        return x * by + k
    made.append(fn)
def make(k):
    return lambda x: x * k
made += [make(3), make(4)]
"""
    for _ in range(2):
        for fn in new_process(text).made:
            assert_same(fxjit.compile(fn)(X), fn(X))


def test_functions_that_share_code_are_all_kept(new_process: NewProcess, traces: list[str]) -> None:
    """More than the limit of recompiles of one: what a decorator made, and layers that are compiled each by itself."""
    text = HEAD + """
def by(k):
    def fn(x):
        return x * k
    return fn
class Layer(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k = k
    def forward(self, x):
        return x + self.k
def make():
    return [by(k) for k in range(12)] + [Layer(k) for k in range(12)]
"""
    for turn in range(2):
        traces.clear()
        made = new_process(text).make()
        compiled = [fxjit.compile(fn, backend="eager", dynamic=False) for fn in made]
        for ours, eager in zip(compiled, made, strict=True):
            assert_same(ours(X), eager(X))
        assert len(traces) == (24 if turn == 0 else 0)


def test_nothing_is_looked_for_where_no_entry_can_be(new_process: NewProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend of the program's own costs no look at the disk."""
    looked: list[str] = []
    cached = entries.cached_facts
    monkeypatch.setattr(entries, "cached_facts", lambda key: looked.append(key) or cached(key))
    fxjit.compile(new_process(FUNCTION).fn, backend=lambda gm, inputs: gm.forward)(X)
    assert not looked
