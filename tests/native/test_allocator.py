"""Freed memory is kept for the next step, by one setting of the C library's allocator."""

import platform
import subprocess
import sys
import textwrap

import pytest

from fxjit import config
from fxjit.backends.native.runtime import allocator

#: After one compiled call, rounds of forty tensors of 1 MB that die together, as a step's activations do: the page faults of
#: the last five rounds, which allocate and free in the same order, and so meet the same memory where it was kept.
ROUNDS = textwrap.dedent("""
    import resource
    import torch
    import fxjit
    from fxjit.backends.native.runtime import allocator

    x = torch.arange(8.0)
    assert fxjit.compile(lambda x: x * 2 + 1)(x).equal(x * 2 + 1)

    def round():
        kept = [torch.zeros(1 << 18) for _ in range(40)]

    for _ in range(3):
        round()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        round()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before, allocator.keep_freed_memory())
""")

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator is glibc's")


@glibc
def test_tensors_of_the_next_step_get_no_new_pages():
    environment = {name: value for name, value in config.child_environment(OMP_NUM_THREADS="1").items()
                   if not name.startswith("MALLOC_") and name != "GLIBC_TUNABLES"}
    done = subprocess.run([sys.executable, "-c", ROUNDS], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    faults, kept = done.stdout.split()
    assert kept == "True"
    # The five rounds write 51,200 pages of 4 KB. Without the setting nearly all of them are new.
    assert int(faults) < 5000


@pytest.mark.parametrize("name, value", [
    ("MALLOC_TRIM_THRESHOLD_", "1000000000"), ("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=1000000000"),
])
def test_the_users_own_choice_stays(name, value, monkeypatch):
    monkeypatch.setenv(name, value)
    assert not allocator.keep_freed_memory.__wrapped__()


def test_zero_leaves_the_allocator_alone():
    with config.patch(kept_memory_mb=0):
        assert not allocator.keep_freed_memory.__wrapped__()
