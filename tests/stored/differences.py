"""What may differ between two processes that run the same program, and what may differ in the program:
`python -m tests.stored.differences FOLDER [NAME...]`.

Each difference has processes of its own, forked from one that imported the compiler: `first` compiles, keeps entries and finds
them again, in `second` something is another, and `fresh` is as that, without a store. Prints what became of each, as JSON.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from tests.differential import assert_same
from tests.stored.gradients import GRADIENTS
from tests.stored.rows import Difference, X, of

import fxjit
from fxjit import config, pipeline
from fxjit.counters import counters
from fxjit.stored import entries as stored_entries

#: Of torch, Python and NumPy, replaced by the second process before it calls.
PATCHES: dict[str, Difference] = {
    "torch.nn.functional.linear": of(
        "layer = nn.Linear(4, 4)\n|return layer(x)", after="nn.functional.linear = lambda x, *w: x * 5"
    ),
    "a helper of a layer": of(
        "torch.manual_seed(0)\nlayer = nn.MultiheadAttention(4, 2).eval()\n|return layer(x, x, x)[0]",
        after="nn.functional._in_projection_packed = lambda q, k, v, *w: [q * 5, k, v]",
    ),
    "the module that a layer's module has": of(
        "torch.manual_seed(0)\nlayer = nn.Linear(4, 4)\n|return layer(x)",
        after="import types; nn.modules.linear.F = types.SimpleNamespace(linear=lambda x, *w: x * 5)",
    ),
    "math.sqrt": of("import math\n|return x * math.sqrt(4.0)", after="import math; math.sqrt = lambda x: 7.0"),
    "math.pi": of("import math\n|return x * math.pi", after="import math; math.pi = 3.0"),
    "torch.pi": of("return x * torch.pi", after="torch.pi = 3.0"),
    "operator.add": of("import operator\n|return operator.add(x, 1)", after="import operator; operator.add = operator.sub"),
    "torch.relu": of("return torch.relu(x)", after="torch.relu = lambda x: x * 5"),
    "Tensor.relu": of("return x.relu()", after="torch.Tensor.relu = lambda x: x * 5"),
    "Tensor.__rsub__": of("return 1 - x", after="torch.Tensor.__rsub__ = lambda x, y: x * 5"),
    "Tensor.__add__": of("return x + 1", after="torch.Tensor.__add__ = lambda x, y: x * 5"),
    "Tensor.norm": of("return x.norm()", after="torch.Tensor.norm = lambda x: x * 5"),
    "torch.norm": of("return x.norm()", after="torch.norm = lambda *x, **y: x[0] * 5"),
    "copy.copy": of(
        "import copy\nVALUES = [1, 2]\n|return x * copy.copy(VALUES)[0]", after="import copy; copy.copy = lambda x: [9]"
    ),
    "copy.deepcopy": of(
        "import copy\nVALUES = [1, 2]\n|return x * copy.deepcopy(VALUES)[0]", after="import copy; copy.deepcopy = lambda x: [9]"
    ),
    "a helper of copy": of(
        "import copy\nVALUES = [1, 2]\n|return x * copy.deepcopy(VALUES)[0]",
        after="import copy; copy._deepcopy_dispatch[list] = lambda x, memo, **y: [9]",
    ),
    "functools.reduce": of(
        "import functools\n|return x * functools.reduce(lambda a, b: a + b, [1, 2])",
        after="import functools; functools.reduce = lambda *a: 9",
    ),
    "functools.partial": of(
        "import functools\n|return functools.partial(torch.add, x)(1)",
        after="import functools; functools.partial = lambda f, x: lambda y: x * 7",
    ),
    "itertools.chain": of(
        "import itertools\n|return x * sum(itertools.chain([1], [2]))",
        after="import itertools; itertools.chain = lambda *a: [9]",
    ),
    "OrderedDict's method": of(
        "import collections\n|d = collections.Counter([1, 1, 2])\nreturn x * d.most_common(1)[0][1]",
        after="import collections; collections.Counter.most_common = lambda *a: [(9, 9)]",
    ),
    "dataclasses.replace": of(
        "import dataclasses\n@dataclasses.dataclass\nclass A:\n    v: int = 2\n|return x * dataclasses.replace(A(), v=3).v",
        after="import dataclasses; dataclasses.replace = lambda a, v: A(9)\nfrom program import A",
    ),
    "statistics.mean": of(
        "import statistics\n|return x * statistics.mean([1, 3])", after="import statistics; statistics.mean = lambda v: 9"
    ),
    "a helper of statistics": of(
        "import statistics\n|return x * statistics.median([1, 3])",
        after="import statistics; statistics.sorted = lambda v: [7, 7]",
    ),
    "string.ascii_lowercase": of(
        "import string\n|return x * len(string.ascii_lowercase)", after="import string; string.ascii_lowercase = 'a'"
    ),
    "Module.__call__": of("layer = nn.ReLU()\n|return layer(x)", after="nn.Module.__call__ = lambda self, x: x * 5"),
    "Module._call_impl": of(
        "layer = nn.ReLU()\n|return layer(x)", after="nn.Module._call_impl = nn.Module.__call__ = lambda self, x: x * 5"
    ),
    "Module.__getattr__": of(
        "torch.manual_seed(0)\nlayer = nn.Linear(4, 4)\n|return x * layer.weight[0]",
        after="nn.Module.__getattr__ = lambda self, name: torch.ones(1, 4) * 3",
    ),
    "Module.parameters": of(
        "torch.manual_seed(0)\nlayer = nn.Linear(4, 4)\n|return sum(p.sum() for p in layer.parameters()) + x",
        after="nn.Module.parameters = lambda self: [torch.ones(4)]",
    ),
    "Module.named_parameters": of(
        "torch.manual_seed(0)\nlayer = nn.Linear(4, 4)\n|return sum(p.sum() for p in layer.parameters()) + x",
        after="nn.Module.named_parameters = lambda self, **k: [('a', torch.ones(4))]",
    ),
    "a distribution's method": of(
        "|return torch.distributions.Normal(0.0, 1.0).log_prob(x)",
        after="torch.distributions.Normal.log_prob = lambda self, x: x * 5",
    ),
    "a helper of a distribution": of(
        "|return torch.distributions.Normal(x, 1.0).log_prob(x + 1)",
        after="import torch.distributions.normal as n; n.math = __import__('types').SimpleNamespace("
        "log=lambda v: 3.0, sqrt=lambda v: 2.0, pi=1.0)",
    ),
    "checkpoint": of(
        "import torch.utils.checkpoint as c\n|return c.checkpoint(torch.sin, x, use_reentrant=False)",
        after="import torch.utils.checkpoint as c; c.checkpoint = lambda f, x, **k: x * 5",
    ),
    "builtins.len": of("return x * len([1, 2])", after="import builtins; builtins.len = lambda v: 9"),
    "builtins.sum": of("return x * sum([1, 2])", after="import builtins; builtins.sum = lambda v: 9"),
    "builtins.len, later put back": of(
        "return x * len([1, 2])", before="import builtins; old = builtins.len; builtins.len = old"
    ),
    "numpy.mean": of(
        "import numpy as np\n|return torch.from_numpy(np.mean(x.numpy(), axis=0))",
        after="import numpy as np; np.mean = lambda v, axis: v * 5",
    ),
    "numpy's method of a module": of(
        "import numpy as np\n|return torch.from_numpy(np.linalg.norm(x.numpy(), axis=0))",
        after="import numpy as np; np.linalg.norm = lambda v, axis: v * 5",
    ),
    "a registered operator": of("return torch.ops.aten.sin(x)", after="torch.ops.aten.sin = torch.ops.aten.cos"),
    "torch.nn.init": of(
        "def make():\n    p = nn.Parameter(torch.ones(4))\n    nn.init.constant_(p, 2.0)\n    return p\n|return x * make()",
        after="nn.init.constant_ = lambda p, v: p",
    ),
    "an activation's forward": of(
        "layer = nn.Sequential(nn.GELU(), nn.SiLU())\n|return layer(x)", after="nn.SiLU.forward = lambda self, x: x * 5"
    ),
    "an activation's forward, by a subclass": of(
        "class Mine(nn.SiLU):\n    pass\nlayer = Mine()\n|return layer(x)", after="nn.SiLU.forward = lambda self, x: x * 5"
    ),
    "a constant of a module of torch's": of(
        "layer = nn.ReLU(inplace=False)\n|return layer(x)",
        after="torch.nn.modules.activation.F = __import__('types').SimpleNamespace(relu=lambda x, inplace: x * 5)",
    ),
    "torch.finfo": of(
        "return x.clamp(min=torch.finfo(x.dtype).min)",
        after="torch.finfo = lambda d: __import__('types').SimpleNamespace(min=0.5)",
    ),
    "torch.is_tensor": of("return x + 1 if torch.is_tensor(x) else x", after="torch.is_tensor = lambda x: False"),
    "torch.is_grad_enabled": of(
        "return x + 1 if torch.is_grad_enabled() else x", after="torch.is_grad_enabled = lambda: False"
    ),
    "os.path.join": of("import os\n|return x * len(os.path.join('a', 'b'))", after="import os; os.path.join = lambda *a: ''"),
    "a property of Tensor": of("return x * x.ndim if True else x", after="torch.Tensor.ndim = property(lambda self: 7)"),
    "Tensor.shape": of("return x * x.shape[0]", after="torch.Tensor.shape = property(lambda self: (9, 9))"),
    "pytree's registry": of(
        "import torch.utils._pytree as p\nclass A:\n    def __init__(self, v):\n        self.v = v\n"
        "|return sum(each.sum() for each in p.tree_leaves([A(x), x]) if isinstance(each, torch.Tensor)) + x",
        after="import torch.utils._pytree as p\nfrom program import A\np.register_pytree_node(A, lambda a: ([a.v], None), "
        "lambda v, c: A(*v))",
    ),
    "global hooks of modules": of(
        "layer = nn.ReLU()\n|return layer(x)",
        after="torch.nn.modules.module.register_module_forward_hook(lambda m, a, o: o * 5)",
    ),
    "copyreg": of(
        "import copy\nclass A:\n    v = 1\nVALUE = A()\nVALUE.v = 2\n|return x * copy.copy(VALUE).v",
        after="import copyreg\nfrom program import A\ndef r(a):\n    return A, ()\ncopyreg.pickle(A, r)",
    ),
    "an overridden isinstance": of(
        "import collections.abc as c\nclass A:\n    pass\nVALUE = A()\n|return x * (2 if isinstance(VALUE, c.Sized) else 3)",
        after="import collections.abc as c\nfrom program import A\nc.Sized.register(A)",
    ),
    "singledispatch": of(
        "import functools\n@functools.singledispatch\ndef f(v):\n    return 1\n|return x * f(3)",
        after="from program import f\nf.register(int, lambda v: 5)",
    ),
}

_CLASS = (
    "class A:\n    k = 2\n    def __init__(self):\n        self.v = [1, {'a': 3}]\n"
    "    def m(self):\n        return self.k\nOBJ = A()\n"
)
_LIBRARY = (
    "FACTOR = 2\nTABLE = {'a': 1}\ndef helper(x):\n    return inner(x) * FACTOR\n"
    "def inner(x, by=3):\n    return x * by\nclass L:\n"
    "    scale = 2\n    def run(self, x):\n        return helper(x) * self.scale\n    @property\n"
    "    def p(self):\n        return 2\n"
    "    @staticmethod\n    def s(x):\n        return x + 1\n    @classmethod\n    def c(cls, x):\n"
    "        return x * cls.scale\n"
)
_USE = "import library\nOBJ = library.L()\n|return OBJ.run(x) * OBJ.p + OBJ.s(x) + OBJ.c(x)"

#: The program's own objects, and the text of its files.
OBJECTS: dict[str, Difference] = {
    "a global number": of("G = 2\n|return x * G", edit=("G = 2", "G = 3")),
    "a global number of another type": of("G = 2\n|return x.long() * G", edit=("G = 2", "G = 2.0")),
    "a global bool for a number": of("G = 1\n|return x * 2 if G is True else x", edit=("G = 1", "G = True")),
    "a global zero's sign": of("G = 0.0\n|return x / G", edit=("G = 0.0", "G = -0.0")),
    "a global text": of("G = 'a'\n|return x * 2 if G == 'a' else x", edit=("'a'\n", "'b'\n")),
    "a list": of("G = [1, 2]\n|return x * G[1] + len(G)", edit=("[1, 2]", "[1, 2, 3]")),
    "a nested table": of("G = {'a': {'b': [1]}}\n|return x * G['a']['b'][0]", edit=("[1]", "[2]")),
    "an attribute": of(_CLASS + "|return x * OBJ.v[1]['a']", after="from program import OBJ; OBJ.v[1]['a'] = 4"),
    "a class attribute": of(_CLASS + "|return x * OBJ.m()", after="from program import A; A.k = 4"),
    "an instance attribute before the class's": of(_CLASS + "|return x * OBJ.m()", after="from program import OBJ; OBJ.k = 4"),
    "a method of an instance": of(_CLASS + "|return x * OBJ.m()", after="from program import OBJ; OBJ.m = lambda: 9"),
    "a method": of(_CLASS + "|return x * OBJ.m()", after="from program import A; A.m = lambda self: 9"),
    "a __getattribute__": of(_CLASS + "|return x * OBJ.k", after="from program import A; A.__getattribute__ = lambda s, n: 9"),
    "a __getattr__": of(
        _CLASS + "|return x * getattr(OBJ, 'none', 3)", after="from program import A; A.__getattr__ = lambda s, n: 9"
    ),
    "a __class__": of(
        _CLASS + "class B(A):\n    k = 5\n|return x * OBJ.m()", after="from program import B, OBJ; OBJ.__class__ = B"
    ),
    "the bases of a class": of(
        _CLASS + "class B(A):\n    pass\nclass C:\n    k = 8\n    m = A.m\nOTHER = B()\n|return x * OTHER.m()",
        after="from program import B, C; B.__bases__ = (C,)",
    ),
    "a default": of("def f(x, by=2):\n    return x * by\n|return f(x)", after="from program import f; f.__defaults__ = (5,)"),
    "a keyword's default": of(
        "def f(x, *, by=2):\n    return x * by\n|return f(x)", after="from program import f; f.__kwdefaults__ = {'by': 5}"
    ),
    "the own default": Difference(
        "def fn(x, by=2):\n    return x * by\n" + X, after="from program import fn; fn.__defaults__ = (5,)"
    ),
    "a function's attribute": of(
        "def f(x):\n    return x * f.k\nf.k = 2\n|return f(x)", after="from program import f; f.k = 5"
    ),
    "a function's code": of(
        "def f(x):\n    return x * 2\n|return f(x)", after="from program import f; f.__code__ = (lambda x: x * 5).__code__"
    ),
    "a closure": of("def make(k):\n    return lambda x: x * k\nf = make(2)\n|return f(x)", edit=("make(2)", "make(3)")),
    "a closure of the function": Difference(
        "def make(k):\n    def fn(x):\n        return x * k\n    return fn\nfn = make(2)\n" + X, edit=("make(2)", "make(3)")
    ),
    "a decorator": of(
        "def d(f):\n    return lambda x: f(x) * 2\n@d\ndef f(x):\n    return x\n|return f(x)", edit=("f(x) * 2", "f(x) * 3")
    ),
    "a line that moves": of("G = 2\n|return x * G", edit=("G = 2", "\n\nG = 2")),
    "a member of an enumeration": of(
        "import enum\nclass E(enum.Enum):\n    A = 1\n    B = 2\nG = E.A\n|return x * G.value", edit=("A = 1", "A = 3")
    ),
    "which member": of(
        "import enum\nclass E(enum.Enum):\n    A = 1\n    B = 2\nG = E.A\n|return x * 2 if G is E.A else x",
        edit=("G = E.A", "G = E.B"),
    ),
    "a named tuple's fields": of(
        "import collections\nT = collections.namedtuple('T', 'a b')\n|return x * T(1, 2).a", edit=("'a b'", "'b a'")
    ),
    "a dataclass's default": of(
        "import dataclasses\n@dataclasses.dataclass\nclass D:\n    v: int = 2\n|return x * D().v", edit=("int = 2", "int = 3")
    ),
    "a frozen dataclass": of(
        "import dataclasses\n@dataclasses.dataclass(frozen=True)\nclass D:\n    v: int = 2\nG = D()\n|return x * G.v",
        edit=("int = 2", "int = 3"),
    ),
    "a metaclass's method": of(
        "class M(type):\n    def k(cls):\n        return 2\nclass A(metaclass=M):\n    pass\n|return x * A.k()",
        edit=("return 2", "return 3"),
    ),
    "an operator of a class": of(
        "class N:\n    def __mul__(self, x):\n        return x * 2\nG = N()\n|return G * x",
        edit=("return x * 2", "return x * 3"),
    ),
    "slots": of("class S:\n    __slots__ = ('v',)\nG = S()\nG.v = 2\n|return x * G.v", edit=("G.v = 2", "G.v = 3")),
    "a lazy attribute": of(
        "class P:\n    @property\n    def v(self):\n        return 2\nG = P()\n|return x * G.v", edit=("return 2", "return 3")
    ),
    "a cached property": of(
        "import functools\nclass P:\n    @functools.cached_property\n    def v(self):\n        return 2\nG = P()\n"
        "|return x * G.v",
        edit=("return 2", "return 3"),
    ),
    "a descriptor": of(
        "class D:\n    def __get__(self, o, t):\n        return 2\nclass P:\n    v = D()\nG = P()\n|return x * G.v",
        edit=("return 2", "return 3"),
    ),
    "a cached function": of(
        "import functools\n@functools.lru_cache\ndef f(n):\n    return n * 2\n|return x * f(2)", edit=("n * 2", "n * 3")
    ),
    "a partial": of(
        "import functools\ndef f(a, x):\n    return a * x\ng = functools.partial(f, 2)\n|return g(x)", edit=("f, 2", "f, 3")
    ),
    "a tensor's shape": of("G = torch.ones(4)\n|return x * G * G.shape[0]", edit=("torch.ones(4)", "torch.ones(1)")),
    "a tensor's value": of("G = torch.ones(4)\n|return x * G", edit=("torch.ones(4)", "torch.zeros(4)")),
    "a tensor's dtype": of("G = torch.ones(4)\n|return x * G", edit=("torch.ones(4)", "torch.ones(4).double()")),
    "a tensor's strides": of(
        "G = torch.ones(3, 4)\n|return (x * G).view(-1)", edit=("torch.ones(3, 4)", "torch.ones(4, 3).t()")
    ),
    "a parameter for a tensor": of(
        "G = torch.ones(4)\n|return (x * G).sum()", edit=("torch.ones(4)", "nn.Parameter(torch.ones(4))")
    ),
    "tensors that are one": of(
        "A = torch.ones(4)\nB = torch.ones(4)\n|y = x * B\nA.mul_(1)\nreturn y", edit=("B = torch.ones(4)", "B = A")
    ),
    "a number's tensor": of("G = torch.tensor(2)\n|return x * G.item()", edit=("tensor(2)", "tensor(3)")),
    "a device": of("G = torch.device('cpu')\n|return torch.ones(4, device=G)", edit=("'cpu'", "'meta'")),
    "a dtype": of("G = torch.float32\n|return x.to(G)", edit=("torch.float32", "torch.float64")),
    "a module in training": of("layer = nn.Dropout(1.0).eval()\n|return layer(x)", edit=(".eval()", "")),
    "a module's number": of("layer = nn.LeakyReLU(0.1)\n|return layer(x)", edit=("0.1", "0.5")),
    "a module's parts": of(
        "layer = nn.Sequential(nn.ReLU(), nn.Tanh())\n|return layer(x)", edit=("nn.Tanh()", "nn.Tanh(), nn.Tanh()")
    ),
    "a module's part of another class": of(
        "layer = nn.Sequential(nn.ReLU(), nn.Tanh())\n|return layer(x)", edit=("nn.Tanh()", "nn.Sigmoid()")
    ),
    "a module's hook": of(
        "layer = nn.ReLU()\n|return layer(x)",
        after="from program import layer\nlayer.register_forward_hook(lambda m, a, o: o * 5)",
    ),
    "a module's buffer": of(
        "layer = nn.BatchNorm1d(4).eval()\n|return layer(x)",
        after="from program import layer; layer.running_mean = None; layer.running_var = None",
    ),
    "a frozen parameter": of(
        "torch.manual_seed(0)\nlayer = nn.Linear(4, 4)\n|return layer(x)",
        after="from program import layer; layer.requires_grad_(False)",
    ),
    "a parametrization": of(
        "torch.manual_seed(0)\nlayer = nn.Linear(4, 4)\n|return layer(x)",
        after="from program import layer\nimport torch.nn.utils.parametrizations as p\np.weight_norm(layer)",
    ),
    "a class of the same name": of(
        _CLASS + "|return x * OBJ.m()", after="import program\nclass A:\n    def m(self):\n        return 9\nprogram.OBJ = A()"
    ),
    "a class defined anew": of(
        _CLASS + "|return x * (2 if isinstance(OBJ, A) else 3)",
        after="import program\nclass A:\n    pass\nA.__module__ = 'program'\nprogram.A = A",
    ),
    "a global that is gone": of("G = 2\n|try:\n    return x * G\nexcept NameError:\n    return x", edit=("G = 2", "pass")),
    "a builtin that a global hides": of("|return x * max(1, 2)", after="import program; program.max = lambda *v: 9"),
    "an exception class": of(
        "class E(Exception):\n    pass\ndef f():\n    raise E\n|try:\n    f()\nexcept E:\n    return x * 2\n"
        "except Exception:\n    return x * 3",
        edit=("    raise E\n", "    raise ValueError\n"),
    ),
    "what a with statement does": of(
        "class C:\n    def __enter__(self):\n        return 2\n    def __exit__(self, *a):\n"
        "        return None\n|with C() as k:\n"
        "    return x * k",
        edit=("return 2", "return 3"),
    ),
    "what an iterator gives": of(
        "class C:\n    def __iter__(self):\n        yield 2\n|for k in C():\n    x = x * k\nreturn x",
        edit=("yield 2", "yield 3"),
    ),
    "a constant folded": of("|return x * (2 + 3)", edit=("2 + 3", "2 + 4")),
    "a constant of the same hash": of("|return x * 1", edit=("x * 1", "x * True")),
    "a constant with a sign": of("|return x / 0.0", edit=("0.0", "-0.0")),
    "a name": of("|y = x.sin()\nreturn y", edit=("sin", "cos")),
    "a library's number": of(_USE, library=_LIBRARY, library_edit=("FACTOR = 2", "FACTOR = 3")),
    "a library's function": of(_USE, library=_LIBRARY, library_edit=("x * by", "x + by")),
    "a library's default": of(_USE, library=_LIBRARY, library_edit=("by=3", "by=4")),
    "a library's class": of(_USE, library=_LIBRARY, library_edit=("scale = 2", "scale = 3")),
    "a library's property": of(_USE, library=_LIBRARY, library_edit=("return 2", "return 3")),
    "a library's static method": of(_USE, library=_LIBRARY, library_edit=("return x + 1", "return x + 2")),
    "a library's class method": of(_USE, library=_LIBRARY, library_edit=("x * cls.scale", "x + cls.scale")),
    "a library's function, patched": of(_USE, library=_LIBRARY, after="import library; library.inner = lambda x: x * 7"),
    "a library's method, patched": of(_USE, library=_LIBRARY, after="import library; library.L.run = lambda self, x: x * 7"),
    "a library's number, patched": of(_USE, library=_LIBRARY, after="import library; library.FACTOR = 9"),
    "a library's class, patched": of(
        _USE, library=_LIBRARY, after="import library; library.L.c = classmethod(lambda c, x: x * 7)"
    ),
    "a library's static method, patched": of(_USE, library=_LIBRARY, after="import library; library.L.s = staticmethod(abs)"),
    "a library that is another module": of(
        _USE,
        library=_LIBRARY,
        after="import program, types, library\nm = types.ModuleType('library')\nvars(m).update(vars(library))\n"
        "program.library = m\nm.FACTOR = 5\nexec('def helper(x):\\n    return x * 8', vars(m))\n"
        "program.OBJ = library.L()",
    ),
}

#: Of the process: what a program may ask for, and what torch is set to.
STATES: dict[str, Difference] = {
    "an environment variable": of(
        "import os\n|return x * 2 if os.environ.get('FXJIT_TEST_A') else x", environment={"FXJIT_TEST_A": "1"}
    ),
    "an environment variable, by getenv": of(
        "import os\n|return x * int(os.getenv('FXJIT_TEST_A', '3'))", environment={"FXJIT_TEST_A": "1"}
    ),
    "an environment variable, by a member": of(
        "import os\n|return x * ('FXJIT_TEST_A' in os.environ)", environment={"FXJIT_TEST_A": "1"}
    ),
    "all of the environment": of("import os\n|return x * len(os.environ)", environment={"FXJIT_TEST_A": "1"}),
    "sys.argv": of("import sys\n|return x * len(sys.argv)", after="import sys; sys.argv.append('a')"),
    "sys.path": of("import sys\n|return x * len(sys.path)", after="import sys; sys.path.append('a')"),
    "sys.modules": of(
        "import sys\n|return x * 2 if 'turtle_x' in sys.modules else x",
        after="import sys, types; sys.modules['turtle_x'] = types.ModuleType('turtle_x')",
    ),
    "the recursion limit": of(
        "import sys\n|return x * sys.getrecursionlimit()", after="import sys; sys.setrecursionlimit(1234)"
    ),
    "the folder": of("import os\n|return x * len(os.getcwd())", after="import os; os.chdir('/')"),
    "a file": of(
        "import os\n|return x * 2 if os.path.exists(os.environ['FXJIT_TEST_FILE']) else x",
        after="import os; open(os.environ['FXJIT_TEST_FILE'], 'w').close()",
    ),
    "the number of the process": of("import os\n|return x * os.getpid()"),
    "the time": of("import time\n|return x * 0 + (time.time() > 1e9)"),
    "the garbage collector": of("import gc\n|return x * 2 if gc.isenabled() else x", after="import gc; gc.disable()"),
    "a thread's name": of(
        "import threading\n|return x * len(threading.current_thread().name)",
        after="import threading; threading.current_thread().name = 'a'",
    ),
    "a context variable": of(
        "import contextvars\nV = contextvars.ContextVar('V', default=2)\n|return x * V.get()",
        after="from program import V; V.set(3)",
    ),
    "a thread's own value": of(
        "import threading\nL = threading.local()\nL.v = 2\n|return x * L.v", after="from program import L; L.v = 3"
    ),
    "random": of(
        "import random\n|return x * random.Random(3).random()",
        after="import random; random.Random = type('Fixed', (random.Random,), {'random': lambda self: 0.25})",
    ),
    "an object's address": of("class A:\n    pass\nO = A()\n|return x * (id(O) % 7)"),
    "a text's hash": of("|return x * (hash('text') % 7)"),
    "a type's text": of("|return x * len(str(type(x)))"),
    "a warning filter": of(
        "import warnings\n|return x * len(warnings.filters)",
        after="import warnings; warnings.simplefilter('error', UserWarning)",
    ),
    "a logger's level": of(
        "import logging\nLOG = logging.getLogger('fxjit_test')\n|return x * 2 if LOG.isEnabledFor(10) else x",
        after="import logging; logging.getLogger('fxjit_test').setLevel(5)",
    ),
    "the root logger's level": of(
        "import logging\nLOG = logging.getLogger('fxjit_test')\n|return x * 2 if LOG.isEnabledFor(10) else x",
        after="import logging; logging.getLogger().setLevel(5)",
    ),
    "threads": of("return x * torch.get_num_threads()", after="torch.set_num_threads(3)"),
    "the default dtype": of("return torch.ones(3) * 2", after="torch.set_default_dtype(torch.float64)"),
    "the default dtype, asked for": of(
        "return x * 2 if torch.get_default_dtype() is torch.float32 else x", after="torch.set_default_dtype(torch.float64)"
    ),
    "the default device": of("return torch.ones(3) * 2", after="torch.set_default_device('meta')"),
    "the default device, set to the same": of("return torch.ones(3) * 2", after="torch.set_default_device('cpu')"),
    "the default device, asked for": of(
        "return x * len(str(torch.get_default_device()))", after="torch.set_default_device('meta')"
    ),
    "gradients": of("return x * 2 if torch.is_grad_enabled() else x", after="torch.set_grad_enabled(False)"),
    "deterministic algorithms": of(
        "return x * 2 if torch.are_deterministic_algorithms_enabled() else x", after="torch.use_deterministic_algorithms(True)"
    ),
    "only warnings": of(
        "return x * 2 if torch.is_deterministic_algorithms_warn_only_enabled() else x",
        after="torch.use_deterministic_algorithms(True, warn_only=True)",
    ),
    "filling of new memory": of(
        "return torch.zeros(3) * 0 if torch.utils.deterministic.fill_uninitialized_memory else x",
        after="torch.utils.deterministic.fill_uninitialized_memory = False",
    ),
    "the precision of products": of(
        "return x * len(torch.get_float32_matmul_precision())", after="torch.set_float32_matmul_precision('high')"
    ),
    "mkldnn": of("return x * 2 if torch.backends.mkldnn.enabled else x", after="torch.backends.mkldnn.enabled = False"),
    "mkldnn's flags": of(
        "return x * 2 if torch.backends.mkldnn.enabled else x", after="torch.backends.mkldnn.set_flags(False)"
    ),
    "cudnn": of("return x * 2 if torch.backends.cudnn.benchmark else x", after="torch.backends.cudnn.benchmark = True"),
    "tf32": of(
        "return x * 2 if torch.backends.cuda.matmul.allow_tf32 else x", after="torch.backends.cuda.matmul.allow_tf32 = True"
    ),
    "which attention": of(
        "return x * 2 if torch.backends.cuda.flash_sdp_enabled() else x", after="torch.backends.cuda.enable_flash_sdp(False)"
    ),
    "the seed": of("return x * (torch.initial_seed() % 7)", after="torch.manual_seed(5)"),
    "the state of the generator": of("return x * torch.get_rng_state()[0]", after="torch.manual_seed(5)"),
    "what is random": of("return x + torch.rand(4)", after="torch.manual_seed(5)"),
    "autocast": of("return x @ x.t()", after="torch.set_autocast_enabled('cpu', True)"),
    "autocast, asked for": of(
        "return x * 2 if torch.is_autocast_enabled('cpu') else x", after="torch.set_autocast_enabled('cpu', True)"
    ),
    "autocast's dtype": of(
        "return x.to(torch.get_autocast_dtype('cpu'))", after="torch.set_autocast_dtype('cpu', torch.float16)"
    ),
    "print options": of("return x * len(str(torch.tensor(1.23456)))", after="torch.set_printoptions(precision=2)"),
    "warn always": of("return x * 2 if torch.is_warn_always_enabled() else x", after="torch.set_warn_always(True)"),
    "anomalies": of("return x * 2 if torch.is_anomaly_enabled() else x", after="torch.autograd.set_detect_anomaly(True)"),
    "saved tensors' hooks": of(
        "return x * 2", after="torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t).__enter__()"
    ),
    "flush denormal": of("return x * 1e-39", after="torch.set_flush_denormal(True)"),
    "swapping of modules": of(
        "return x * 2 if torch.__future__.get_swap_module_params_on_conversion() else x",
        after="torch.__future__.set_swap_module_params_on_conversion(True)",
    ),
    "torch's own settings of Dynamo": of(
        "return x * x.shape[0]", after="import torch._functorch.config as c; c.donated_buffer = False"
    ),
    "a C++ default of autograd": of(
        "return x * 2 if torch._C._get_cudnn_enabled() else x", after="torch.backends.cudnn.enabled = False"
    ),
}
STATES |= {
    f"{name}, native": Difference(**{**vars(STATES[name]), "backend": "native"})
    for name in (
        "threads",
        "the default dtype",
        "the default device",
        "gradients",
        "deterministic algorithms",
        "autocast",
        "what is random",
        "the precision of products",
        "mkldnn",
        "saved tensors' hooks",
        "flush denormal",
    )
}

_OTHER = "def f(x):\n    return x * 2\n"
#: Marks on functions, operators, registrations.
MARKS: dict[str, Difference] = {
    "disabled": of(_OTHER + "|return f(x)", edit=("def f", "@torch.compiler.disable\ndef f")),
    "in the graph": of(_OTHER + "|return f(x)", edit=("def f", "@torch.compiler.allow_in_graph\ndef f")),
    "what a function in the graph does": of(
        "@torch.compiler.allow_in_graph\n" + _OTHER + "|return f(x)", edit=("x * 2", "x * 3")
    ),
    "a constant result": of(
        "@torch.compiler.assume_constant_result\ndef f():\n    return 2\n|return x * f()", edit=("return 2", "return 3")
    ),
    "a substitute": of(
        "from fxjit import substitute_in_graph\n" + _OTHER + "def g(x):\n    return x * 4\n|return f(x)",
        after="import fxjit\nfrom program import f, g\nfxjit.substitute_in_graph(f)(g)",
    ),
    "what a substitute does": of(
        "from fxjit import substitute_in_graph\n"
        + _OTHER
        + "@substitute_in_graph(f)\ndef g(x):\n    return x * 4\n|return f(x)",
        edit=("x * 4", "x * 5"),
    ),
    "what a substitute reads": of(
        "from fxjit import substitute_in_graph\nK = 4\n"
        + _OTHER
        + "@substitute_in_graph(f)\ndef g(x):\n    return x * K\n|return f(x)",
        edit=("K = 4", "K = 5"),
    ),
    **{
        f"{where}.{name} of a function": of(
            # A program of its own: which constant is assumed depends on when it is traced.
            f"# {where}.{name}\nN = [2]\ndef f(x):\n    return x * N[0]\n"
            "def g():\n    return N[0]\n|N[0] = 4\nreturn f(x) * g()",
            after=f"import {where}; from program import f, g; {where}.{name}({which})",
        )
        for where in ("fxjit", "torch._dynamo", "torch.compiler")
        for name, which in (
            ("allow_in_graph", "f"),
            ("disallow_in_graph", "f"),
            ("forbid_in_graph", "f"),
            ("assume_constant_result", "g"),
        )
        if not (where == "torch.compiler" and name == "forbid_in_graph")
    },
    "a mark on a function of torch's": of(
        "|return torch.relu(x) * len(torch.typename(x))", after="import fxjit; fxjit.assume_constant_result(torch.typename)"
    ),
    "a function of torch's for which another is traced": of(
        "def g(x):\n    return 'a'\n|return x * len(torch.typename(x))",
        after="import fxjit\nfrom program import g\nfxjit.substitute_in_graph(torch.typename, skip_signature_check=True)(g)",
    ),
    "which substitute": of(
        "from fxjit import substitute_in_graph\n" + _OTHER + "def g(x):\n    return x * 4\n"
        "def h(x):\n    return x * 5\nsubstitute_in_graph(f)(g)\n|return f(x)",
        edit=("(f)(g)", "(f)(h)"),
    ),
}

DIFFERENCES = {**PATCHES, **OBJECTS, **STATES, **MARKS, **GRADIENTS}


def place_of(found: Difference) -> int:
    """Rows of one program share what its first process kept."""
    programs = [(each.program, each.library, each.backend) for each in DIFFERENCES.values()]
    return programs.index((found.program, found.library, found.backend))


def run(name: str, role: str, folder: Path) -> dict[str, Any]:
    """One role, in this process."""
    found, changed = DIFFERENCES[name], role != "first"
    home = folder / str(place_of(found))
    home.mkdir(exist_ok=True)
    os.environ["FXJIT_TEST_FILE"] = str(home / "file")
    program, library = "import torch\nfrom torch import nn\n" + found.program, found.library
    for text, edit in ((program, found.edit), (library, found.library_edit)):
        assert edit is None or edit[0] in text, f"{name}: no {edit[0]!r}"
    if changed:
        os.environ.update(found.environment)
        program = program.replace(*found.edit) if found.edit else program
        library = library.replace(*found.library_edit) if found.library_edit else library
        exec(found.before, {"torch": torch, "nn": torch.nn})
    modules = []
    for module_name, text in (("library", library), ("program", program)):
        file = home / f"{module_name}.py"
        file.write_text(text)
        module = sys.modules[module_name] = ModuleType(module_name)
        module.__file__ = str(file)
        exec(compile(text, str(file), "exec"), vars(module))
        modules.append(module)
    if changed:
        exec(found.after, {"torch": torch, "nn": torch.nn})
    with config.patch(store_entries=role != "fresh", cache_graphs=True, cache_dir=str(folder)):
        told = calls(modules[1], found.backend)
        if not changed:
            fxjit.reset()
            counters.clear()
            again = calls(modules[1], found.backend)
            told = {**again, "problem": told["problem"] or again["problem"]}
    return told


def calls(module: ModuleType, backend: str) -> dict[str, Any]:
    """Calls the program, compiled and as it is, twice each."""
    compiled, results = fxjit.compile(module.fn, backend=backend), []
    given = module.args()
    for each in (compiled, compiled, module.fn, module.fn):
        state = torch.get_rng_state()
        torch.manual_seed(torch.initial_seed())
        try:
            result = each(*given)
            if any(leaf.requires_grad for leaf in given):
                result = [result, torch.autograd.grad(result, given, allow_unused=True)]
            results.append(result)
        except Exception as error:
            results.append([type(error).__name__, str(error)])
        torch.set_rng_state(state)
    problem = ""
    try:
        assert_same(results[0], results[2], rtol=1e-5)
        assert_same(results[1], results[3], rtol=1e-5)
    except Exception as error:
        problem = str(error)
    return {
        "problem": problem,
        "hits": counters["cache"]["entry hit"] + counters["cache"]["skip hit"],
        "results": repr(results[:2]),
    }


def forked(name: str, role: str, folder: Path) -> dict[str, Any]:
    """One role, in a process of its own."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        with os.fdopen(writer, "w") as file:
            try:
                told = run(name, role, folder)
            except BaseException:
                told = {"problem": traceback.format_exc(), "results": "an error", "hits": 0}
            json.dump(told, file)
            file.flush()
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        told = file.read()
    os.waitpid(child, 0)
    return json.loads(told) if told else {"problem": "the process ended", "results": "none", "hits": 0}


def outcomes(folder: Path, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Of each row, by role. The first process of a program is that of all its rows; a process without a store is only wanted
    where one with it does not do what eager does, or marks promise what is not so."""
    firsts: dict[int, dict[str, Any]] = {}
    found = {}
    for name in names:
        place = place_of(DIFFERENCES[name])
        firsts[place] = firsts.get(place) or forked(name, "first", folder)
        found[name] = {"first": firsts[place], "second": forked(name, "second", folder)}
        if found[name]["second"]["problem"] or name in MARKS:
            found[name]["fresh"] = forked(name, "fresh", folder)
    return found


def main(folder: str, *names: str) -> None:
    assert pipeline
    with config.patch(cache_graphs=False, cache_dir=folder):
        fxjit.compile(lambda x: x * 2, backend="native")(torch.ones(3))
        assert stored_entries
    fxjit.reset()
    counters.clear()
    gc.collect()
    gc.freeze()  # what is here is looked at by no collector of the forked processes, which would copy it
    print(json.dumps(outcomes(Path(folder), names or DIFFERENCES)))


if __name__ == "__main__":
    main(*sys.argv[1:])
