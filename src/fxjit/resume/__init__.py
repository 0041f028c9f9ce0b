"""New bytecode of a traced frame, and resume functions for the code after a graph break."""

from fxjit.resume.cache import origin_of
from fxjit.resume.deoptimization import SpeculativeGraph
from fxjit.resume.entry import assemble, plan
from fxjit.resume.rebuild import Plan
from fxjit.resume.rescue import raising_code

__all__ = ["Plan", "SpeculativeGraph", "assemble", "origin_of", "plan", "raising_code"]
