"""More programs of `--packages`: registries, injection, pipelines, decorators, caches, containers, arrays and trees."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from benchmarks.library_programs import of_function, sequences_of
from benchmarks.package_programs import around, layers, package
from benchmarks.programs import Program

# -- registries, injection, pipelines ----------------------------------------------------------------------------------


@package("catalogue", "confection")
def registry_catalogue() -> Program:
    import catalogue
    from confection import Config

    acts = catalogue.create("fxjit_sweep", "acts")
    acts.register("leaky", func=lambda x: torch.where(x > 0, x, 0.1 * x))
    acts.register("soft", func=nn.functional.softplus)
    config = Config().from_str("[model]\nacts = [\"leaky\", \"soft\"]\nscale = 0.5\n")

    def forward(self: Any, x: torch.Tensor) -> Any:
        for name, layer in zip(config["model"]["acts"], self.layers, strict=True):
            x = acts.get(name)(layer(x)) * config["model"]["scale"]
        return x, "leaky" in acts

    return around(forward, layers=layers(8, 16, 4))


@package("zope.interface")
def adapters_zope() -> Program:
    from zope.interface import Interface, implementer, providedBy
    from zope.interface.adapter import AdapterRegistry

    class Activation(Interface):  # type: ignore[misc, valid-type]
        def apply(x: Any) -> Any:
            """Apply it."""

    class Source(Interface):  # type: ignore[misc, valid-type]
        pass

    @implementer(Source)
    class Named:
        def __init__(self, name: str) -> None:
            self.name = name

    @implementer(Activation)
    class Apply:
        def __init__(self, named: Named) -> None:
            self.named = named

        def apply(self, x: torch.Tensor) -> torch.Tensor:
            return getattr(torch, self.named.name)(x)

    registry = AdapterRegistry()
    registry.register([Source], Activation, "", Apply)

    def forward(self: Any, x: torch.Tensor) -> Any:
        for name, layer in zip(("relu", "tanh"), self.layers, strict=True):
            named = Named(name)
            adapter = registry.lookup1(providedBy(named), Activation)(named)
            x = adapter.apply(layer(x)) if Activation.providedBy(adapter) else x
        return x

    return around(forward, layers=layers(8, 16, 4))


@package("punq")
def injected_punq() -> Program:
    import punq

    class Scale:
        def __init__(self) -> None:
            self.value = 0.5

    class Head:
        def __init__(self, scale: Scale) -> None:
            self.scale = scale

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x.tanh() * self.scale.value

    Head.__init__.__annotations__["scale"] = Scale
    container = punq.Container()
    container.register(Scale, scope=punq.Scope.singleton)
    container.register(Head)
    container.resolve(Head)

    def forward(self: Any, x: torch.Tensor) -> Any:
        return container.resolve(Head)(self.linear(x))

    return around(forward, linear=nn.Linear(8, 4))


@package("dask")
def delayed_dask() -> Program:
    import dask

    def forward(self: Any, x: torch.Tensor) -> Any:
        halves = [dask.delayed(self.linear)(half) for half in x.chunk(2)]
        total = dask.delayed(torch.cat)(halves)
        return dask.compute(total, scheduler="sync")[0].relu()

    return around(forward, linear=nn.Linear(8, 4))


@package("pipe")
def chained_pipe() -> Program:
    import pipe

    def forward(self: Any, x: torch.Tensor) -> Any:
        rows = list(x.split(1) | pipe.select(self.linear) | pipe.enumerate | pipe.where(lambda pair: pair[0] % 2 == 0))
        order = [index for index, _ in rows] | pipe.sort(reverse=True) | pipe.Pipe(list)
        return torch.cat([row.relu() for _, row in rows]), order

    return around(forward, linear=nn.Linear(8, 4))


@package("expression")
def results_expression() -> Program:
    from expression import Error, Ok, Option, Some, pipe
    from expression.collections import seq

    def checked(x: torch.Tensor) -> Any:
        return Ok(x) if x.dim() == 2 else Error("rows")

    def forward(self: Any, x: torch.Tensor) -> Any:
        result = checked(x).map(self.linear).bind(lambda h: Ok(h.relu()))
        gain: Option[float] = Some(2.0).map(lambda value: value * 0.5)
        total = pipe(range(3), seq.map(lambda n: n + 1), seq.filter(lambda n: n != 2), seq.fold(lambda a, b: a + b, 0))
        return result.default_value(x) * gain.default_value(1.0) * total

    return around(forward, linear=nn.Linear(8, 4))


@package("pymonad")
def maybe_pymonad() -> Program:
    from pymonad.maybe import Just, Nothing
    from pymonad.tools import curry

    @curry(2)
    def scaled(factor: float, x: torch.Tensor) -> torch.Tensor:
        return x * factor

    def forward(self: Any, x: torch.Tensor) -> Any:
        found = Just(x).map(self.linear).map(scaled(0.5)).then(lambda h: Just(h.tanh()) if h.dim() == 2 else Nothing)
        return found.value, found.is_just()

    return around(forward, linear=nn.Linear(8, 4))


@package("pampy")
def matched_pampy() -> Program:
    from pampy import _, match

    def forward(self: Any, x: torch.Tensor) -> Any:
        for layer in ({"act": "relu", "scale": 2.0}, ["tanh", 3], "sigmoid"):
            x = self.linear(x)
            x = match(
                layer,
                {"act": str, "scale": _}, lambda act, scale: getattr(torch, act)(x) * scale,
                [str, int], lambda act, times: getattr(torch, act)(x) * times,
                _, lambda name: getattr(torch, name)(x),
            )
        return x

    return around(forward, linear=nn.Linear(8, 8))


# -- decorators, caches, containers ------------------------------------------------------------------------------------


@package("decorator", "makefun")
def decorated() -> Program:
    from decorator import contextmanager, decorator
    from makefun import create_function, wraps

    calls: list[str] = []

    @decorator
    def counted(fn: Any, tag: str = "c", *args: Any, **kwargs: Any) -> Any:
        calls.append(tag)
        return fn(*args, **kwargs)

    @contextmanager
    def scope(name: str) -> Any:
        calls.append("in " + name)
        yield name
        calls.append("out " + name)

    @counted(tag="t")
    def act(x: torch.Tensor, gain: float = 2.0) -> torch.Tensor:
        return x.tanh() * gain

    def doubled(fn: Any) -> Any:
        @wraps(fn)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return fn(*args, **kwargs) * 2

        return wrapper

    built = create_function("scaled(x, by=0.5)", lambda x, by: x * by)

    def forward(self: Any, x: torch.Tensor) -> Any:
        with scope("block"):
            x = act(self.linear(x), gain=3.0)
        return doubled(act)(x), built(x), list(calls)

    return around(forward, linear=nn.Linear(8, 4))


@package("deprecated", "deprecation")
def deprecations() -> Program:
    import warnings

    from deprecated import deprecated

    warnings.simplefilter("ignore")

    @deprecated(version="1.0", reason="use tanh")
    def old(x: torch.Tensor) -> torch.Tensor:
        return x.tanh()

    def forward(self: Any, x: torch.Tensor) -> Any:
        return old(self.linear(x)) + 1

    return around(forward, linear=nn.Linear(8, 4))


@package("backoff", "retrying")
def retried() -> Program:
    import backoff
    from retrying import retry

    @backoff.on_exception(backoff.constant, ValueError, max_tries=2, interval=0)
    def head(linear: Any, x: torch.Tensor) -> torch.Tensor:
        return linear(x).relu()

    @retry(stop_max_attempt_number=2)
    def act(x: torch.Tensor) -> torch.Tensor:
        return x.tanh()

    def forward(self: Any, x: torch.Tensor) -> Any:
        return act(head(self.linear, x))

    return around(forward, linear=nn.Linear(8, 4))


@package("methodtools")
def cached_methodtools() -> Program:
    from methodtools import lru_cache

    class Masks:
        @lru_cache(maxsize=4)
        def causal(self, size: int) -> torch.Tensor:
            return torch.ones(size, size).tril()

    masks = Masks()

    def forward(self: Any, x: torch.Tensor) -> Any:
        scores = x @ x.transpose(-1, -2)
        mask = masks.causal(x.shape[1])
        return scores.masked_fill(mask == 0, -1e9).softmax(-1) @ self.linear(x)

    return around(forward, sequences_of(8, 6), linear=nn.Linear(8, 4))


@package("cachelib")
def cached_cachelib() -> Program:
    from cachelib import SimpleCache

    cache = SimpleCache(threshold=10, default_timeout=0)

    def forward(self: Any, x: torch.Tensor) -> Any:
        key = f"rope-{x.shape[1]}"
        length = cache.get(key)
        if length is None:
            cache.set(key, x.shape[1] ** -0.5)
            length = x.shape[1] ** -0.5
        return self.linear(x) * length, cache.has(key)

    return around(forward, sequences_of(8, 6), linear=nn.Linear(8, 4))


@package("heapdict", "pqdict")
def queues() -> Program:
    from heapdict import heapdict
    from pqdict import pqdict

    def forward(self: Any, x: torch.Tensor) -> Any:
        heap = heapdict()
        queue = pqdict({"a": 3, "b": 1, "c": 2})
        for index, row in enumerate((5, 2, 7)):
            heap[index] = row
        total = torch.zeros(x.shape[0], 4)
        while heap:
            index, cost = heap.popitem()
            total = total + self.layers[index](x) / cost
        return total, list(queue.popkeys()), len(queue)

    return around(forward, layers=nn.ModuleList(nn.Linear(8, 4) for _ in range(3)))


@package("treelib")
def tree_treelib() -> Program:
    from treelib import Tree

    tree = Tree()
    tree.create_node("root", "root", data=1.0)
    tree.create_node("left", "left", parent="root", data=0.5)
    tree.create_node("right", "right", parent="root", data=2.0)
    tree.create_node("leaf", "leaf", parent="left", data=-1.0)

    def forward(self: Any, x: torch.Tensor) -> Any:
        total = torch.zeros(x.shape[0], 4)
        for name in tree.expand_tree(mode=Tree.WIDTH):
            node = tree[name]
            total = total + self.linear(x) * node.data * (tree.level(name) + 1)
        return total, [node.tag for node in tree.leaves()]

    return around(forward, linear=nn.Linear(8, 4))


@package("sortedcollections", "multidict")
def containers() -> Program:
    from multidict import CIMultiDict
    from sortedcollections import IndexableDict, ItemSortedDict, OrderedSet

    headers = CIMultiDict([("Scale", 2.0), ("scale", 0.5), ("Act", "tanh")])

    def forward(self: Any, x: torch.Tensor) -> Any:
        order = ItemSortedDict(lambda key, value: -value, {"a": 1, "b": 3, "c": 2})
        names = IndexableDict(order)
        x = self.linear(x)
        for scale in headers.getall("SCALE"):
            x = x * scale
        return getattr(torch, headers["act"])(x), list(order), names.keys()[0], list(OrderedSet("abca"))

    return around(forward, linear=nn.Linear(8, 4))


@package("aenum")
def enums_aenum() -> Program:
    from aenum import Enum, MultiValueEnum, NamedTuple

    class Act(MultiValueEnum):  # type: ignore[misc]
        RELU = "relu", 1
        TANH = "tanh", 2

    class Mode(Enum):  # type: ignore[misc]
        _init_ = "value scale"
        SMALL = 1, 0.5
        LARGE = 2, 2.0

    pair = NamedTuple("Pair", "one other")

    def forward(self: Any, x: torch.Tensor) -> Any:
        hidden = self.linear(x) * Mode.LARGE.scale
        both = pair(torch.relu(hidden) if Act(1) is Act.RELU else hidden, getattr(torch, Act("tanh").value)(hidden))
        return both.one, both.other, [mode.name for mode in Mode]

    return around(forward, linear=nn.Linear(8, 4))


# -- arrays and trees --------------------------------------------------------------------------------------------------


@package("optree")
def trees_optree() -> Program:
    import optree

    def forward(self: Any, x: torch.Tensor) -> Any:
        tree = {"a": [x, self.linear(x)], "b": (x.mean(), None)}
        doubled = optree.tree_map(lambda leaf: leaf * 2, tree)
        leaves, spec = optree.tree_flatten(doubled)
        total = optree.tree_reduce(lambda one, other: one + other.sum(), doubled, torch.zeros(()))
        return optree.tree_unflatten(spec, [leaf.tanh() for leaf in leaves]), total, len(leaves)

    return around(forward, linear=nn.Linear(8, 4))


@package("array-api-compat")
def arrays_compat() -> Program:
    from array_api_compat import array_namespace, is_torch_array, size

    def forward(self: Any, x: torch.Tensor) -> Any:
        xp = array_namespace(x)
        centred = x - xp.mean(x, axis=-1, keepdims=True)
        spread = xp.std(centred, axis=-1, keepdims=True, correction=0)
        return self.linear(xp.where(spread > 0.1, centred / spread, centred)), xp.sum(x, axis=0), size(x), is_torch_array(x)

    return around(forward, linear=nn.Linear(8, 4))


@package("eagerpy")
def arrays_eagerpy() -> Program:
    import eagerpy as ep

    def forward(self: Any, x: torch.Tensor) -> Any:
        wrapped = ep.astensor(self.linear(x))
        normed = wrapped / ep.maximum(wrapped.norms.l2(axis=-1, keepdims=True), 1e-6)
        return normed.raw, ep.concatenate([wrapped.square(), normed.abs()], axis=-1).raw, wrapped.argmax(axis=-1).raw

    return around(forward, linear=nn.Linear(8, 4))


@package("array-api-strict")
def arrays_strict() -> Program:
    import array_api_strict as xp
    import numpy as np

    def whiten(x: np.ndarray) -> Any:
        a = xp.asarray(x)
        centred = a - xp.mean(a, axis=0)
        covariance = xp.matmul(xp.matrix_transpose(centred), centred) / a.shape[0]
        return np.asarray(covariance._array), float(xp.sum(covariance))

    return of_function(whiten, lambda batch: {"x": np.random.randn(batch, 4)})


@package("autograd (HIPS)")
def numpy_autograd() -> Program:
    import autograd.numpy as anp
    import numpy as np
    from autograd import grad

    def loss(w: Any, x: Any) -> Any:
        return anp.sum(anp.tanh(anp.dot(x, w)) ** 2)

    slope = grad(loss)
    weight = np.linspace(-1, 1, 4)
    return of_function(lambda x: slope(weight, x), lambda batch: {"x": np.random.randn(batch, 4)})

