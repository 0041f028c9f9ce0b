"""Rules by module: which files are user code, and what becomes of a call into a module. Data; `verdict` reads it.

The longest prefix that fits wins. Modules that no row names are user code, which is traced.
"""

from __future__ import annotations

from collections.abc import Mapping

# What calling a Python function of the module means: (verdict, reason id). Builtin modules have none, and need no row.
FUNCTION_RULES: Mapping[str, tuple[str, str]] = {
    # torch: operators and functions over tensors go in the graph, compositions are traced, the rest is not touched
    "torch": ("SKIP", "call-skipped-module"),
    "torch.functional": ("GRAPH", ""),
    "torch.nn.functional": ("GRAPH", ""),
    "torch._tensor": ("GRAPH", ""),
    "torch._ops": ("GRAPH", ""),
    "torch._jit_internal": ("CONSTANT", ""),
    "torch._linalg_utils": ("GRAPH", ""),
    "torch._lobpcg": ("GRAPH", ""),
    "torch._lowrank": ("GRAPH", ""),
    "torch.signal": ("TRACE", ""),
    "torch.sparse": ("TRACE", ""),
    "torch.sparse._triton_ops": ("SKIP", "call-skipped-module"),
    "torch.sparse.semi_structured": ("SKIP", "call-skipped-module"),
    "torch.masked._ops": ("GRAPH", ""),
    "torch.nn": ("TRACE", ""),
    "torch.nn.parallel": ("SKIP", "call-skipped-module"),
    "torch.nested": ("TRACE", ""),
    "torch.optim": ("TRACE", ""),
    "torch.distributions": ("TRACE", ""),
    "torch.amp": ("TRACE", ""),
    "torch.autograd": ("SKIP", "call-autograd-engine"),
    "torch.autograd.grad_mode": ("TRACE", ""),
    "torch.autograd.function": ("TRACE", ""),
    "torch.autograd.profiler": ("TRACE", ""),
    "torch.ao": ("TRACE", ""),
    "torch._numpy": ("TRACE", ""),
    "torch._refs": ("TRACE", ""),
    "torch._prims_common": ("TRACE", ""),
    "torch._vmap_internals": ("CALL", ""),
    "torch._functorch": ("CALL", ""),
    "torch._functorch.deprecated": ("TRACE", ""),
    "torch._functorch.functional_call": ("TRACE", ""),
    "torch._functorch.apis": ("TRACE", ""),
    "torch._functorch.eager_transforms": ("TRACE", ""),
    "torch._functorch.make_functional": ("TRACE", ""),
    "torch._functorch.utils": ("TRACE", ""),
    "torch._functorch.vmap": ("TRACE", ""),
    "torch.func._random": ("CALL", ""),
    "torch._higher_order_ops": ("CALL", ""),
    "torch._higher_order_ops._invoke_quant": ("TRACE", ""),
    "torch._higher_order_ops.invoke_subgraph": ("TRACE", ""),
    "torch.overrides": ("TRACE", ""),
    "torch._utils": ("TRACE", ""),
    "torch.__future__": ("TRACE", ""),
    "torch._compile": ("SKIP", "call-compile-api"),
    "torch._dynamo": ("SKIP", "call-compile-api"),
    "torch._dynamo.external_utils": ("TRACE", ""),  # how its managers decorate functions
    "torch._dynamo.comptime": ("TRACE", ""),  # callbacks are for torch's compiler; traced is what they do in eager
    "torch._inductor": ("SKIP", "call-compile-api"),
    "torch.compiler": ("SKIP", "call-compile-api"),
    "torch.export": ("SKIP", "call-compile-api"),
    "torch.export._tree_utils": ("TRACE", ""),
    "torch.export.unflatten": ("TRACE", ""),
    "torch.export._unlift": ("TRACE", ""),  # what an exported program's module does around its graph
    "torch._export.utils": ("TRACE", ""),
    "torch._export.non_strict_utils": ("TRACE", ""),
    "torch.fx": ("SKIP", "call-compile-api"),
    "torch.fx._pytree": ("TRACE", ""),
    "torch.jit": ("CONSTANT", ""),
    "torch.onnx": ("CONSTANT", ""),
    "torch.torch_version": ("TRACE", ""),
    "torch._vendor.packaging": ("TRACE", ""),
    "torch.storage": ("TRACE", ""),
    "torch.random": ("SKIP", "call-rng-state"),
    "torch.cuda.random": ("SKIP", "call-rng-state"),
    "torch.backends": ("CONSTANT", ""),
    "torch.utils._pytree": ("TRACE", ""),
    "torch.utils._cxx_pytree": ("TRACE", ""),
    "torch.utils._contextlib": ("TRACE", ""),
    "torch.utils._foreach_utils": ("TRACE", ""),
    "torch.utils._python_dispatch": ("TRACE", ""),
    "torch.utils.checkpoint": ("TRACE", ""),
    "torch.utils.hooks": ("TRACE", ""),
    "torch.utils._device": ("TRACE", ""),
    "torch.distributed.algorithms._checkpoint": ("TRACE", ""),
    "torch.distributed._functional_collectives": ("TRACE", ""),
    "torch.distributed.tensor._api": ("TRACE", ""),
    "torch.distributed.tensor.experimental": ("TRACE", ""),
    "torch.distributed.tensor.parallel": ("TRACE", ""),
    "torch.testing": ("TRACE", ""),
    "torch._library": ("GRAPH", ""),
    # the standard library: pure Python is traced, what talks to the world is not
    "logging": ("SKIP", "call-print"),
    "warnings": ("SKIP", "call-print"),
    "os": ("SKIP", "call-subprocess"),
    "posixpath": ("TRACE", ""),
    "subprocess": ("SKIP", "call-subprocess"),
    "socket": ("SKIP", "call-subprocess"),
    "tempfile": ("SKIP", "call-subprocess"),
    "shutil": ("SKIP", "call-subprocess"),
    "pathlib": ("SKIP", "call-subprocess"),
    "threading": ("SKIP", "call-subprocess"),
    "multiprocessing": ("SKIP", "call-subprocess"),
    "concurrent": ("SKIP", "call-subprocess"),
    "asyncio": ("SKIP", "call-subprocess"),
    "queue": ("SKIP", "call-subprocess"),
    "signal": ("SKIP", "call-subprocess"),
    "pickle": ("SKIP", "call-skipped-module"),
    "json": ("SKIP", "call-skipped-module"),
    "importlib": ("SKIP", "call-skipped-module"),
    "traceback": ("SKIP", "call-skipped-module"),
    "linecache": ("SKIP", "call-skipped-module"),
    "pdb": ("SKIP", "call-print"),
    "bdb": ("SKIP", "call-print"),
    "unittest": ("SKIP", "call-skipped-module"),
    "weakref": ("TRACE", ""),
    "inspect": ("CONSTANT", ""),
    "re": ("CONSTANT", ""),
    "string": ("TRACE", ""),
    "textwrap": ("CONSTANT", ""),
    "fractions": ("CONSTANT", ""),
    "hashlib": ("CONSTANT", ""),
    # others
    "numpy": ("SKIP", "numpy-function"),
    "numpy.lib": ("TRACE", ""),
    "numpy.lib._npyio_impl": ("SKIP", "numpy-function"),
    "numpy._core": ("TRACE", ""),
    "numpy._core.arrayprint": ("SKIP", "numpy-function"),
    "numpy._core._ufunc_config": ("SKIP", "numpy-function"),
    "numpy.linalg": ("TRACE", ""),
    "numpy.polynomial": ("TRACE", ""),
    "numpy.fft": ("TRACE", ""),
    "scipy": ("SKIP", "call-skipped-module"),
    "pandas": ("SKIP", "call-skipped-module"),
    "sympy": ("SKIP", "call-skipped-module"),
    "triton": ("SKIP", "call-skipped-module"),
    "sklearn": ("SKIP", "call-skipped-module"),
    "matplotlib": ("SKIP", "call-print"),
    "tqdm": ("SKIP", "call-print"),
    "PIL": ("SKIP", "call-skipped-module"),
    "fxjit": ("SKIP", "call-compile-api"),
    "fxjit.collectives": ("TRACE", ""),
    "fxjit.demo": ("TRACE", ""),  # its models stand for a user's
    "fxjit.frontend.polyfills": ("TRACE", ""),
    "fxjit.module": ("TRACE", ""),
    "fxjit.interop.numpy_": ("TRACE", ""),
}

# Packages of site-packages whose frames pass by untouched; what they call is still looked at. All others are user code.
PASSED_BY = frozenset(
    {
        "IPython",
        "PIL",
        "_pytest",
        "bytecode",
        "coverage",
        "cv2",
        "debugpy",
        "huggingface_hub",
        "hypothesis",
        "ipykernel",
        "jinja2",
        "joblib",
        "matplotlib",
        "mpmath",
        "networkx",
        "numpy",
        "packaging",
        "pandas",
        "pluggy",
        "pydantic",
        "pytest",
        "safetensors",
        "scipy",
        "sklearn",
        "sympy",
        "tokenizers",
        "tqdm",
        "triton",
        "typing_extensions",
        "yaml",
        "zmq",
    }
)

# Parts of torch inside which nothing is looked at, callees included: another compiler is at work there, or a lazy module gets
# its parameters, once.
TORCH_RECURSIVE = (
    "_dynamo/",
    "_inductor/",
    "_functorch/_aot_autograd/",
    "_functorch/aot_autograd.py",
    "_export/",
    "export/",
    "nn/modules/lazy.py",
)

# Files of torch whose modules a program compiles as its own: what stands behind a break in them is compiled, too.
TORCH_OF_PROGRAMS = ("export/unflatten.py",)

# Methods in torch.nn and torch.optim whose frames are compiled all the same where what calls them runs as it stands, as a loop
# with a graph break does: each runs several layers, or some operators for every parameter. A single layer's operators would
# not pay for the call of a graph.
TORCH_ENTERED = frozenset(
    f"{name}.{method}"
    for method, names in (
        ("forward", "Sequential Transformer TransformerEncoder TransformerDecoder"),
        ("forward", "TransformerEncoderLayer TransformerDecoderLayer"),
        ("step", "ASGD Adadelta Adafactor Adagrad Adam Adamax Muon NAdam RAdam RMSprop Rprop SGD"),
    )
    for name in names.split()
)


def longest_prefix(module: str, table: Mapping[str, tuple[str, str]]) -> tuple[str, tuple[str, str]] | None:
    """The row whose dotted name is `module` or the nearest package around it."""
    while module:
        row = table.get(module)
        if row is not None:
            return module, row
        module = module.rpartition(".")[0]
    return None
