"""A fixed share of torch's operator database in Triton's interpreter, against eager.

`FXJIT_TRITON_INTERPRET=1 FXJIT_FALLBACK_RANDOM=1 python tests/native/opdb.py` runs the whole.
"""

from __future__ import annotations

import importlib.util
import pathlib
import sys

import pytest

from fxjit import config

#: (type, symbolic sizes, first operator, every how many): each type begins elsewhere.
SHARES = [
    ("float32", False, 5, 89), ("float32", True, 21, 179), ("float64", False, 33, 179), ("bfloat16", False, 47, 179),
    ("float16", False, 61, 179), ("int64", False, 74, 179), ("int32", False, 88, 197), ("uint8", False, 99, 197),
    ("bool", False, 111, 197), ("complex64", False, 125, 197),
]  # fmt: skip


@pytest.fixture(scope="module")
def opdb():
    path = pathlib.Path(__file__).parents[1] / "native/opdb.py"
    spec = importlib.util.spec_from_file_location("native_opdb", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.sweep(2)
@pytest.mark.parametrize("dtype,dynamic,first,every", SHARES, ids=lambda value: str(value))
def test_a_share_of_the_operators(opdb, dtype, dynamic, first, every):
    failures = []
    with config.patch(**{"triton.interpret": True, "fallback_random": True}):
        for op in opdb.operators()[first::every]:
            report = opdb.check(op, opdb.DTYPES[dtype], dynamic=dynamic, route="kernels", limit=2)
            failures += [f"{op.full_name} {failure}" for failure in report.failures]
    assert not failures, "\n".join(failures)
