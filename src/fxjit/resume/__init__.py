"""What a traced frame becomes: new bytecode, and continuations for what comes after a graph break."""

from fxjit.resume.cache import origin_of
from fxjit.resume.entry import assemble, plan
from fxjit.resume.expected import ExpectingGraph
from fxjit.resume.rebuild import Plan

__all__ = ["ExpectingGraph", "Plan", "assemble", "origin_of", "plan"]
