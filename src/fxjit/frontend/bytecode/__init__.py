"""Reading and writing bytecode, the same on every supported Python. Independent of torch and of symbolic values."""

from .decode import decode
from .instruction import CallSpec, Code, Handler, Instruction, argument_slots
from .versions import VERSION

__all__ = ["VERSION", "CallSpec", "Code", "Handler", "Instruction", "argument_slots", "decode"]
