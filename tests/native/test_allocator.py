"""Freed memory is kept for the next step, by one setting of the C library's allocator."""

import platform
import subprocess
import sys
import textwrap

import pytest

from fxjit import config
from fxjit.backends.native.runtime import allocator

#: Steps whose activations, 24 MB and more, die at the end of each: the page faults of the last five.
STEPS = textwrap.dedent("""
    import resource
    import torch
    import fxjit
    from fxjit.backends.native.runtime import allocator

    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU()) for _ in range(6)))
    compiled, x = fxjit.compile(model), torch.randn(2048, 256)
    expected = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))

    def step():
        return torch.autograd.grad(compiled(x).square().sum(), list(model.parameters()))

    for _ in range(4):
        found = step()
    for got, wanted in zip(found, expected):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-3)
    del found, expected
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        step()
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    assert allocator.keep_freed_memory()
    print(faults)
""")

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator is glibc's")


@glibc
def test_steps_get_no_new_pages():
    done = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True, check=True,
                          env=config.child_environment(OMP_NUM_THREADS="1"))
    assert int(done.stdout) < 500  # a step keeps 6000 pages and more for its backward


@pytest.mark.parametrize("name, value", [
    ("MALLOC_TRIM_THRESHOLD_", "1000000000"), ("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=1000000000"),
])
def test_the_users_own_choice_stays(name, value, monkeypatch):
    monkeypatch.setenv(name, value)
    assert not allocator.keep_freed_memory.__wrapped__()


def test_zero_leaves_the_allocator_alone():
    with config.patch(kept_memory_mb=0):
        assert not allocator.keep_freed_memory.__wrapped__()
