"""Plain Python that is traced in place of functions that C implements (or that Python implements in a way not worth
tracing). `@polyfill(fn)` of values/calls.py signs one up; a body must do what `fn` does, exceptions included.
"""
