"""Extension points: what a lower module of values uses of a higher one is provided once, as the front end is imported."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import pytest

import fxjit.frontend.callables
import fxjit.frontend.polyfills
import fxjit.frontend.values
from fxjit.frontend.values.extension import ClassRegistry, ExtensionPoint


def points() -> Iterator[ExtensionPoint]:
    for package in (fxjit.frontend.values, fxjit.frontend.callables, fxjit.frontend.polyfills):
        for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
            found = vars(importlib.import_module(module.name)).values()
            yield from (each for each in found if isinstance(each, ExtensionPoint))


def test_each_point_is_provided():
    found = {each.name: each for each in points()}
    assert {"deferred_text", "printf", "make_builtin_method", "attribute_of_type", "function_namespace"} <= found.keys()
    for each in found.values():
        with pytest.raises(AssertionError, match=f"two modules provide {each.name}"):
            each.provide(lambda *args: None)


def test_a_point_that_nobody_provides_says_so():
    with pytest.raises(AssertionError, match="no module provides shown"):
        ExtensionPoint("shown")()


def test_a_registry_finds_the_first_base_that_was_registered():
    registry: ClassRegistry[str] = ClassRegistry()
    registry.register(int, "a number")
    assert registry.find(bool) == "a number" and registry.find(str) is None
    with pytest.raises(AssertionError, match="two modules register int"):
        registry.register(int, "another")
