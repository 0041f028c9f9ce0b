"""A process that compiles kernels: a line of JSON in, a line of JSON out, until its input ends.

It is started as a script and imports Triton alone, so that it is ready sooner than a process with torch would be. Triton's
own cache is in a folder that goes with this process: what is kept is kept by cache.py.
"""

from __future__ import annotations

import base64
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


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr
    for number, line in enumerate(sys.stdin):
        try:
            answer = compile_one(json.loads(line), number)
        except Exception as problem:  # whatever Triton says is the answer: the parent raises it
            answer = {"error": f"{type(problem).__name__}: {problem}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
