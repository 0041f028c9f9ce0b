"""A process that compiles kernels: a line of JSON in, a line of JSON out, until its input ends.

It is started as a script and imports Triton alone, so that it is ready sooner than a process with torch would be. Triton's
own cache is in a folder that goes with this process: what is kept is kept by cache.py.
"""

from __future__ import annotations

import base64
import contextlib
import json
import linecache
import sys
from typing import Any


def compile_one(job: dict[str, Any], number: int) -> dict[str, Any]:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler import compile as compile_source

    # Triton reads a function's text from its file.
    name = f"<kernel {number}>"
    source: str = job["source"]
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    scope: dict[str, Any] = {"__name__": "kernel"}
    exec(compile(source, name, "exec"), scope)
    made = compile_source(
        ASTSource(
            fn=scope[job["name"]],
            signature=job["signature"],
            constexprs=job["constants"],
            attrs={(position,): [["tt.divisibility", 16]] for position in job["divisible"]},
        ),
        target=GPUTarget("cuda", job["arch"], 32),
        options={"num_warps": job["warps"], "num_stages": job["stages"], **job["options"]},
    )
    metadata = made.metadata
    if metadata.global_scratch_size or metadata.profile_scratch_size:
        raise ValueError("the kernel wants scratch memory")
    entry = made.asm["ptx"].split(".visible .entry", 1)[1]
    parameters = entry[: entry.index(")")].count(".param")
    return {
        "cubin": base64.b64encode(made.asm["cubin"]).decode(),
        "name": metadata.name,
        "shared": metadata.shared,
        "warps": metadata.num_warps,
        "parameters": parameters,
        **({stage: made.asm[stage] for stage in job["wanted"]} if job.get("wanted") else {}),
    }


#: A kernel that asks for what Triton loads at the first one.
FIRST = """import triton
import triton.language as tl

@triton.jit
def first(p0):
    x = tl.arange(0, 128)
    tl.store(p0 + x, tl.load(p0 + x) + 1)
"""


def warm_up(arch: int) -> None:
    job = {"source": FIRST, "name": "first", "signature": {"p0": "*fp32"}, "constants": {}, "divisible": [0], "arch": arch,
           "warps": 4, "stages": 1, "options": {}}  # fmt: skip
    compile_one(job, -1)


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr
    if len(sys.argv) > 1:
        with contextlib.suppress(Exception):  # whatever is wrong, the first kernel that is asked for says it
            warm_up(int(sys.argv[1]))
    for number, line in enumerate(sys.stdin):
        try:
            answer = compile_one(json.loads(line), number)
        except Exception as problem:  # whatever Triton says is the answer: the parent raises it
            answer = {"error": f"{type(problem).__name__}: {problem}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
