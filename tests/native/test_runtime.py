"""The compiler and the cache: what is found again, and what happens when something is missing, broken or in the way."""

from __future__ import annotations

import stat
import subprocess
import sys
import textwrap
import warnings

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import fxjit
from fxjit import config
from fxjit.backends.native import pipeline
from fxjit.backends.native.runtime import cc
from fxjit.counters import counters

SOURCE = 'extern "C" int k0(void *const *P, const long *S) {{ return {}; }}\n'


@pytest.fixture
def folder(tmp_path):
    with config.patch(cache_dir=str(tmp_path / "cache")):
        yield tmp_path / "cache" / "kernels"


def traced(function, *inputs):
    return make_fx(function, tracing_mode="fake")(*inputs)


def compile_one(number: int) -> cc.Compilation:
    done = cc.start(SOURCE.format(number))
    done.library()
    return done


def test_a_library_is_found_again(folder):
    before = dict(counters["cache"])
    first = compile_one(1)
    assert first.command
    second = compile_one(1)
    assert not second.command and second.key == first.key
    assert counters["cache"]["miss"] - before.get("miss", 0) == 1 and counters["cache"]["hit"] - before.get("hit", 0) == 1
    assert compile_one(2).key != first.key


def test_the_folder_is_for_its_owner_alone(folder):
    compile_one(3)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {path.suffix for path in folder.iterdir() if path.name != "trimmed"} == {".so", ".cpp"}


def test_settings_that_change_code_change_the_key(folder):
    key = compile_one(4).key
    with config.patch({"cpp.fast_math": True}):
        assert compile_one(4).key != key
        assert "-fassociative-math" in cc.flags()
    assert "-fassociative-math" not in cc.flags()


def test_fast_math_is_for_the_kernels_alone(folder):
    """Code linked with `-ffast-math` takes denormal numbers for zero in all of the process that loads it."""
    with config.patch({"cpp.fast_math": True}):
        x = torch.rand(100) + 1
        torch.testing.assert_close(fxjit.compile(lambda x: (x / 3 + x * 2) / 3)(x), (x / 3 + x * 2) / 3)
    assert torch.tensor(1e-310, dtype=torch.float64) * 0.5 != 0
    assert 1e-310 * 0.5 != 0


def test_a_folder_that_cannot_be_used_warns_once_and_is_replaced(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with config.patch(cache_dir=str(blocked)):
        with pytest.warns(RuntimeWarning, match="cannot keep compiled kernels"):
            compile_one(7)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert not compile_one(7).command


def test_without_the_disk_cache_nothing_is_kept(folder):
    with config.patch(disk_cache=False):
        compile_one(8)
    assert not folder.exists() or not list(folder.iterdir())


def test_two_processes_at_once(folder, tmp_path):
    script = tmp_path / "one.py"
    script.write_text(
        textwrap.dedent("""
        import sys
        from fxjit import config
        config.cache_dir = sys.argv[1]
        from fxjit.backends.native.runtime import cc
        source = 'extern "C" int k0(void *const *P, const long *S) { return 9; }'
        assert cc.start(source).library().k0(None, None) == 9
    """)
    )
    command = [sys.executable, str(script), str(folder.parent)]
    running = [subprocess.Popen(command) for _ in range(2)]
    assert [process.wait(120) for process in running] == [0, 0]


@pytest.mark.parametrize(
    "settings", [{"cpp.simd": False}, {"cpp.openmp": False}, {"num_threads": 1}, {"cpp.fast_math": True}], ids=str
)
def test_settings_of_the_target(settings):
    x = torch.randn(300, 40)
    with config.patch(settings):
        compiled = pipeline.compile_graph(traced(lambda x: torch.softmax(x.exp() * 0.1 + 1, 1).sum(0), x), [x])
        torch.testing.assert_close(compiled([x]), torch.softmax(x.exp() * 0.1 + 1, 1).sum(0), rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(cc.find_compiler("clang++", "") is None, reason="no clang++ here")
def test_clang():
    x = torch.randn(300, 40)
    with config.patch({"cpp.compiler": "clang++"}):
        compiled = pipeline.compile_graph(traced(lambda x: torch.softmax(x.exp() + 1, 1), x), [x])
        torch.testing.assert_close(compiled([x]), torch.softmax(x.exp() + 1, 1))


def test_results_do_not_depend_on_threads():
    x = torch.randn(200_000)
    compiled = pipeline.compile_graph(traced(lambda x: (x * 2).sum() + (x.exp() * x).mean(), x), [x])
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            results.append(compiled([x]).item())
    finally:
        torch.set_num_threads(before)
    assert len(set(results)) == 1
