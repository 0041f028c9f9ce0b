"""A fixed share of torch's operator database through the native backend; `python tests/native/opdb.py` runs the whole.

Every operator is in some share: the tests of a type take each N-th operator, from another place for each type.
"""

from __future__ import annotations

import importlib.util
import pathlib
import sys

import pytest


@pytest.fixture(scope="module")
def opdb():
    """The runner, loaded when it is asked for: the database takes seconds to import."""
    spec = importlib.util.spec_from_file_location("native_opdb", pathlib.Path(__file__).with_name("opdb.py"))
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# (type, symbolic sizes, route, first operator, every how many, samples an operator)
SHARES = [
    ("float32", False, "kernels", 3, 61, 4),
    ("float32", True, "kernels", 11, 97, 3),
    ("float32", False, "compile", 17, 97, 3),
    ("float32", True, "compile", 29, 97, 2),
    ("float64", False, "kernels", 5, 97, 3),
    ("bfloat16", False, "kernels", 7, 97, 3),
    ("float16", False, "kernels", 23, 97, 3),
    ("int64", False, "kernels", 13, 61, 3),
    ("int32", False, "kernels", 31, 97, 3),
    ("uint8", False, "kernels", 19, 97, 3),
    ("bool", False, "kernels", 37, 97, 3),
    ("complex64", False, "kernels", 41, 97, 2),
]
# What operators of every family do is looked at each time.
ALWAYS = [
    "add", "sum", "softmax", "nn.functional.layer_norm", "nn.functional.batch_norm", "nn.functional.embedding", "scatter_add",
    "index_put", "cat", "nn.functional.max_pool2d", "nn.functional.interpolate", "sort", "cumsum", "nn.functional.dropout",
]  # fmt: skip


@pytest.mark.sweep(2)
@pytest.mark.parametrize("dtype,dynamic,route,first,every,limit", SHARES, ids=lambda value: str(value))
def test_a_share_of_the_operators(opdb, dtype, dynamic, route, first, every, limit):
    failures = []
    for op in opdb.operators()[first::every]:
        report = opdb.check(op, opdb.DTYPES[dtype], dynamic=dynamic, route=route, limit=limit)
        failures += [f"{op.full_name} {failure}" for failure in report.failures]
    assert not failures, "\n".join(failures)


def test_one_operator_of_each_family(opdb):
    failures = []
    seen = 0
    for op in opdb.operators(ALWAYS):
        report = opdb.check(op, opdb.DTYPES["float32"], limit=2)
        seen += report.samples
        failures += [f"{op.full_name} {failure}" for failure in report.failures]
    assert not failures, "\n".join(failures)
    assert seen >= len(ALWAYS)
