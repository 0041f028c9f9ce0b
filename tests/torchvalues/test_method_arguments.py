"""Methods of tensors that the trace answers itself refuse the arguments that torch refuses, in its words."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.differential import assert_same_as_eager

import fxjit

X = torch.arange(6.0).view(2, 3)
PROGRAMS = {
    "size of a bool": lambda x: x.size(True),
    "size of a bool by name": lambda x: x.size(dim=True),
    "size of a float": lambda x: x.size(1.0),
    "size of a text": lambda x: x.size("a"),
    "size of two": lambda x: x.size(0, 1),
    "size of another name": lambda x: x.size(dims=0),
    "size of NumPy's": lambda x: x.size(np.int64(1)),
    "size": lambda x: (x.size(), x.size(-1), x.size(dim=0), x.size(None)),
    "size out of range": lambda x: x.size(5),
    "stride of a bool": lambda x: x.stride(True),
    "stride": lambda x: (x.stride(), x.stride(-1), x.stride(dim=0)),
    "dim": lambda x: x.dim(1),
    "numel": lambda x: x.numel(3),
    "nelement": lambda x: x.nelement(other=3),
    "item": lambda x: x.sum().item(1),
    "tolist": lambda x: x.tolist(1),
    "__len__": lambda x: x.__len__(1),
    "__bool__": lambda x: x.sum().__bool__(1),
    "__iter__": lambda x: x.__iter__(1),
    "__hash__": lambda x: x.__hash__(1),
    "__int__": lambda x: x.sum().__int__(1),
    "__getitem__": lambda x: x.__getitem__(),
    "__getitem__ of two": lambda x: x.__getitem__(0, 1),
    "__contains__": lambda x: x.__contains__(),
    "__setitem__": lambda x: x.__setitem__(1),
    "as they should be": lambda x: (x.__len__(), x.__getitem__(0), x.dim(), x.numel(), x.nelement(), x.ndimension()),
}


#: Their text names the class: `Tensor.dim()` where the frame goes on with the bound method; eager has `TensorBase.dim()`.
COUNTED = ("dim", "numel", "nelement", "item", "tolist", "__bool__", "__int__")


@pytest.mark.parametrize("name", COUNTED)
def test_arguments_too_many_are_a_type_error(name):
    with pytest.raises(TypeError, match="takes no"):
        fxjit.compile(PROGRAMS[name])(X)


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in COUNTED])
def test_arguments_are_refused_as_torch_does(name):
    assert_same_as_eager(PROGRAMS[name], X, fullgraph=False)
