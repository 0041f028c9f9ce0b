"""What C asks of classes derived from dict where dicts are copied and merged, methods of dict that are called by their names,
and `"%(name)s" % mapping`."""

from __future__ import annotations

import operator
from collections import OrderedDict, defaultdict

import pytest
import torch

import fxjit

LOG = []
NAMED = "%(p)s"
PERCENT = "100%%"


def logging(base, *names):
    """A class derived from `base` with these methods; what they give is not what is stored."""
    def keys(self):
        LOG.append("keys")
        return ["p"]

    def iter_(self):
        LOG.append("iter")
        return base.__iter__(self)

    def getitem(self, key):
        LOG.append(("get", key))
        return 7

    return type("Logging", (base,), {name: {"keys": keys, "__iter__": iter_, "__getitem__": getitem}[name] for name in names})


class Plain(dict):
    pass


CLASSES = {
    "iter": logging(dict, "__iter__"), "keys": logging(dict, "keys", "__getitem__"),
    "all": logging(dict, "keys", "__iter__", "__getitem__"), "ordered": logging(OrderedDict, "keys", "__iter__", "__getitem__"),
}

OPERATIONS = [
    lambda m: m.copy(), lambda m: dict.copy(m), lambda m: m | {"r": 3}, lambda m: {"r": 3} | m, lambda m: m | m,
    lambda m: dict.__or__(m, {"r": 3}), lambda m: dict.__ror__(m, {"r": 3}), lambda m: operator.ior({"r": 3}, m),
    lambda m: dict(m), lambda m: OrderedDict(m), lambda m: defaultdict(int, m), lambda m: {**m},
    lambda m: (lambda **kwargs: kwargs)(**m), lambda m: OrderedDict(r=3) | m, lambda m: Plain(r=3) | m, lambda m: m == {"p": 1},
    lambda m: type(m)().copy(), lambda m: "%(p)s" % m, lambda m: "%(p)s %(p)s" % m, lambda m: PERCENT % m,
]


def shown(made):
    return type(made).__name__, list(dict.items(made)) if isinstance(made, dict) else made


@pytest.mark.parametrize("cls", CLASSES.values(), ids=CLASSES)
def test_merging_asks_the_class_as_c_does(cls):
    def run(m, x):
        made = [shown(operation(m)) for operation in OPERATIONS]
        return made, x + 1

    results = []
    for each in (run, fxjit.compile(run, backend="eager")):
        LOG.clear()
        results.append((each(cls({"p": 1, "q": 2}), torch.ones(2))[0], list(LOG)))
    assert results[0] == results[1]


class Keys:
    def keys(self):
        fxjit.graph_break()
        return ["a", "b"]

    def __getitem__(self, key):
        return key


@pytest.mark.parametrize("method", [dict.update, dict.__init__, dict.__ior__], ids=lambda method: method.__name__)
@pytest.mark.parametrize("cls", [OrderedDict, type("Ordered", (OrderedDict,), {})], ids=["OrderedDict", "derived"])
def test_entries_that_an_ordered_dict_does_not_list(cls, method):
    def run(x):
        made = cls(z=1)
        method(made, Keys())
        return list(made), len(made), made["a"], "b" in made, x + 1

    assert fxjit.compile(run, backend="eager")(torch.ones(2))[:4] == run(torch.ones(2))[:4] == (["z"], 3, "a", True)


def test_a_graph_for_an_ordered_dict_is_not_used_for_one_with_more():
    def run(m, x):
        return x * len(m) + len(list(m))

    compiled, more = fxjit.compile(run, backend="eager"), OrderedDict(z=1)
    dict.update(more, {"a": 2})
    for each in (OrderedDict(z=1), more, OrderedDict(z=1)):
        assert compiled(each, torch.ones(2)).tolist() == run(each, torch.ones(2)).tolist()


def test_what_came_before_an_error_is_kept():
    def run(x):
        made = {}
        try:
            made.update([("a", 1), ("b",)])
        except ValueError as error:
            return made, str(error), x + 1

    assert fxjit.compile(run, backend="eager", fullgraph=True)(torch.ones(2))[:2] == run(torch.ones(2))[:2]


def test_lists_and_dicts_that_no_field_shows():
    def run(x):
        texts = [template % value for template in ("abc", "%s") for value in ([1], {"p": 1})]
        return *texts, NAMED % {"p": 1, "q": x}, x + 1

    assert fxjit.compile(run, backend="eager")(torch.ones(2))[:5] == run(torch.ones(2))[:5]
