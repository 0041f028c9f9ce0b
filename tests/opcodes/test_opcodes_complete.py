"""Every opcode of the running Python is handled or ends in a graph break that names it."""

from __future__ import annotations

import pytest

from fxjit.frontend import interp  # noqa: F401 - handlers sign up at import
from fxjit.frontend.bytecode.normalize import CANONICAL, native_opcodes
from fxjit.frontend.interp.dispatch import HANDLERS, UNSUPPORTED, op


def test_every_opcode_of_this_python_has_a_handler():
    missing = {native: name for native, name in native_opcodes().items() if name not in HANDLERS}
    assert not missing


def test_every_canonical_opcode_has_a_handler():
    assert not CANONICAL - set(HANDLERS)


def test_what_is_unsupported_says_why():
    assert all(UNSUPPORTED.values())


def test_an_unknown_or_taken_name_is_refused():
    with pytest.raises(AssertionError, match="not a canonical opcode"):
        op("LOAD_NONSENSE")(lambda m, i: None)
    with pytest.raises(AssertionError, match="two handlers"):
        op("LOAD_FAST")(lambda m, i: None)
