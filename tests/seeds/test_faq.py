"""What the FAQ promises of explain, the profiler, frozen running and nopython."""

from __future__ import annotations

import pytest
import torch

import fxjit
import fxjit.testing


def toy_example(a, b):
    x = a / (torch.abs(a) + 1)
    print("woo")
    if b.sum() < 0:
        b = b * -1
    return x * b


def test_explain_finds_three_graphs_two_breaks_and_six_operators(capsys):
    fxjit.reset()
    explanation = fxjit.explain(toy_example)(torch.randn(10), -torch.ones(10))
    assert capsys.readouterr().out == "woo\n"
    assert (explanation.graph_count, explanation.graph_break_count) == (3, 2)
    assert explanation.op_count == 3 + 2 + 2
    functions = {reason.user_stack[-1].name for reason in explanation.break_reasons}
    assert functions == {"toy_example"}
    text = str(explanation)
    assert "toy_example" in text and "print" in text


def test_explain_prints_each_break_with_its_reason_and_the_users_line(capsys):
    """The reasons and places of the FAQ, in its order; never a name of a resume function."""
    fxjit.reset()
    text = str(fxjit.explain(toy_example)(torch.randn(10), torch.ones(10)))
    assert "3 graphs" in text and "2 graph break" in text and "6 ops" in text
    reasons = text.partition("Break reasons:")[2]
    first = toy_example.__code__.co_firstlineno
    lines = [f'File "{__file__}", line {first + at}, in toy_example' for at in (2, 3)]
    at = [reasons.index(part) for part in ("`print`", lines[0], 'print("woo")', "Data-dependent branching", lines[1],
                                           "if b.sum() < 0:")]
    assert at == sorted(at)
    assert "resume" not in text


def test_explain_gives_its_page_as_text_without_a_path(tmp_path, capsys):
    fxjit.reset()
    explanation = fxjit.explain(toy_example)(torch.randn(10), torch.ones(10))
    page = explanation.to_html()
    assert page.startswith("<!doctype html>") and "resume" not in page
    assert explanation.to_html(tmp_path / "page.html").read_text(encoding="utf-8") == page


def test_the_branch_not_taken_is_compiled_when_it_is_taken():
    fxjit.reset()
    compiled = fxjit.compile(toy_example, backend="eager")
    a = torch.randn(10)
    for b in (torch.ones(10), -torch.ones(10), torch.ones(10)):
        torch.testing.assert_close(compiled(a, b), toy_example(a, b))


def test_nopython_raises_on_the_first_break():
    fxjit.reset()
    with pytest.raises(fxjit.errors.Unsupported) as caught:
        fxjit.compile(toy_example, nopython=True, backend="eager")(torch.randn(10), torch.randn(10))
    error = caught.value
    assert "print" in str(error)
    assert error.hints and error.explanation
    assert error.user_stack[-1].name == "toy_example"


def test_run_uses_what_was_compiled_and_compiles_nothing_new():
    def fn(x):
        return x * 2 + 1

    fxjit.reset()
    counter = fxjit.testing.CompileCounter()
    compiled = fxjit.compile(fn, backend=counter, dynamic=False)
    compiled(torch.ones(3))
    frozen = fxjit.run(compiled)
    torch.testing.assert_close(frozen(torch.ones(3)), torch.full((3,), 3.0))
    torch.testing.assert_close(frozen(torch.ones(5)), torch.full((5,), 3.0))
    assert counter.frame_count == 1


def test_the_profiler_tells_of_recompiles_and_the_guard_that_failed():
    def fn(x, flag):
        return x + 1 if flag else x - 1

    fxjit.reset()
    with fxjit.CompileProfiler() as profiler:
        compiled = fxjit.compile(fn, backend=profiler)
        compiled(torch.ones(3), True)
        compiled(torch.ones(3), False)
        report = profiler.report()
    assert "fn" in report and "flag" in report


def test_the_profiler_of_the_faq_lists_breaks_and_recompiles_by_the_users_place(capsys):
    fxjit.reset()
    with fxjit.CompileProfiler() as profiler:
        compiled = fxjit.compile(toy_example, backend=profiler)
        compiled(torch.randn(10), torch.ones(10))
        compiled(torch.randn(11), torch.ones(11))
    report = profiler.report()
    breaks, _, rest = report.partition("Recompiles\n")
    recompiles, _, skips = rest.partition("Skipped frames")
    first = toy_example.__code__.co_firstlineno
    for at, line, reason in ((2, 'print("woo")', "`print`"), (3, "if b.sum() < 0:", "Data-dependent branching")):
        place = f'File "{__file__}", line {first + at}, in toy_example\n     {line}'
        assert breaks.count(place) == 1, "one place, one entry"
        assert reason in breaks[:breaks.index(place)]
    assert breaks.count("(2 times)") == 2 and breaks.count("Hint:") >= 2
    assert f"toy_example ({__file__}:{first}), compile 2, because" in recompiles and "size(0) 10, found 11" in recompiles
    assert "No frames were skipped." in skips
    assert "resume" not in report, "never a name of ours"


def test_the_profiler_gives_skipped_frames_their_full_reason():
    def in_a_loop(x):
        for _ in range(2):
            x = x + 1
            fxjit.graph_break("in the loop")
        return x

    fxjit.reset()
    with fxjit.CompileProfiler() as profiler:
        fxjit.compile(in_a_loop, backend=profiler)(torch.ones(2))
    skipped = profiler.report().partition("Skipped frames")[2]
    first = in_a_loop.__code__.co_firstlineno
    for part in (f"{in_a_loop.__qualname__} ({__file__}:{first})", "Graph break in a loop", "Message: in the loop",
                 f"line {first + 3}", "Hint: Move the body of the loop"):
        assert part in skipped, skipped


def test_explain_unpacks_as_the_faq_unpacks_it():
    fxjit.reset()
    explanation, out_guards, graphs, ops_per_graph = fxjit.explain(toy_example, torch.randn(10), torch.ones(10))
    assert len(graphs) == len(ops_per_graph) == explanation.graph_count == 3
    assert explanation.op_count == 6, "as the FAQ counts them"
    assert out_guards


def test_a_break_at_the_beginning_of_a_function_prevents_inlining_it():
    def not_inlined(x):
        fxjit.graph_break()
        return x + 1

    def fn(x):
        return not_inlined(x * 2) * 3

    fxjit.reset()
    backend = fxjit.testing.EagerAndRecordGraphs()
    torch.testing.assert_close(fxjit.compile(fn, backend=backend)(torch.ones(2)), torch.full((2,), 9.0))
    names = [[node.name for node in graph.graph.nodes if node.op == "call_function"] for graph in backend.graphs]
    assert names == [["mul"], ["add"], ["mul"]]


def test_disable_of_one_function_with_tracing_going_on_in_those_it_calls():
    def aa_fn(x):
        return x + 1

    def ab_fn(x):
        return x + 2

    @fxjit.disable(recursive=False)
    def a_fn(x):
        return ab_fn(aa_fn(x) * 5)

    def b_fn(x):
        return x - 1

    def fn(x):
        return b_fn(a_fn(x))

    fxjit.reset()
    backend = fxjit.testing.EagerAndRecordGraphs()
    torch.testing.assert_close(fxjit.compile(fn, backend=backend)(torch.ones(2)), torch.full((2,), 11.0))
    names = [[node.name for node in graph.graph.nodes if node.op == "call_function"] for graph in backend.graphs]
    assert names == [["add"], ["add"], ["sub"]], "aa_fn, ab_fn, b_fn"


def _pair(x):
    first, second = x
    return first + second


SEEN: list[int] = []


def _with_effect(x, y):
    SEEN.append(1)
    return x + y


def _reads_strides(x):
    x.stride()
    return x


@pytest.mark.parametrize(("fn", "shapes"), [
    (lambda x: torch.vmap(torch.sin)(x), 1),
    (lambda x: torch.func.grad(lambda y: y.sin().sum())(x), 1),
    (lambda x: torch.vmap(lambda y: y.sum(1))(x), 1),
    (lambda x, y: torch.func.vmap(_pair)((x, y)), 2),
    (lambda x, y: torch.func.grad(lambda a, b: (a + b).sum())(x, b=y), 2),
    (lambda x, y: torch.func.vmap(_with_effect)(x, y), 2),
    (lambda x: torch.func.vmap(_reads_strides)(x), 1),
], ids=["vmap", "grad", "vmap of a sum", "tuples", "keywords", "side effect", "stride"])  # fmt: skip
def test_function_transforms_of_the_faq_give_what_eager_gives(fn, shapes):
    inputs = [torch.randn(3, 3, 3) for _ in range(shapes)]
    fxjit.reset()
    SEEN.clear()
    expected, effects = fn(*inputs), len(SEEN)
    compiled = fxjit.compile(fn, backend="eager")
    for _ in range(2):
        SEEN.clear()
        torch.testing.assert_close(compiled(*inputs), expected)
        assert len(SEEN) == effects


def test_transforms_over_a_compiled_function_run_it_eagerly():
    @fxjit.compile(backend="eager")
    def f(x):
        return torch.sin(x).sum()

    x = torch.randn(2, 3)
    fxjit.reset()
    torch.testing.assert_close(torch.func.grad(f)(x), x.cos())
    torch.testing.assert_close(torch.vmap(f)(x), x.sin().sum(1))


def test_a_transform_inside_a_compiled_function_is_the_workaround():
    def g(x):
        return torch.vmap(torch.sin)(x)

    x = torch.randn(2, 3)
    fxjit.reset()
    torch.testing.assert_close(fxjit.compile(g, backend="eager")(x), x.sin())


def test_allow_in_graph_over_the_state_of_a_module():
    """The pitfall of the FAQ, and its way out: the module's state is given to `functional_call`."""
    model = torch.nn.Linear(3, 2)

    @fxjit.allow_in_graph
    def call(state, x):
        return torch.func.functional_call(model, state, (x,))

    def fn(state, x):
        return call(state, x) * 2

    state = {name: value.detach() for name, value in model.named_parameters()}
    x = torch.randn(4, 3)
    fxjit.reset()
    backend = fxjit.testing.EagerAndRecordGraphs()
    torch.testing.assert_close(fxjit.compile(fn, backend=backend, fullgraph=True)(state, x), model(x).detach() * 2)
    assert len(backend.graphs) == 1


def test_run_is_known_by_torchs_name_too():
    import torch._dynamo

    def fn(x):
        return x * 2 + 1

    fxjit.reset()
    counter = fxjit.testing.CompileCounter()
    compiled = fxjit.compile(fn, backend=counter, dynamic=False)
    compiled(torch.ones(3))
    frozen = torch._dynamo.run(compiled)
    torch.testing.assert_close(frozen(torch.ones(3)), torch.full((3,), 3.0))
    assert counter.frame_count == 1


def test_numpy_code_of_the_faq():
    np = pytest.importorskip("numpy")

    def numpy_fn(a, b):
        return np.sum(a[:, :, None] * b[:, None, :], axis=(-2, -1))

    a, b = np.random.randn(16, 4), np.random.randn(16, 4)
    fxjit.reset()
    result = fxjit.compile(numpy_fn, backend="eager")(a, b)
    assert isinstance(result, np.ndarray)
    np.testing.assert_allclose(result, numpy_fn(a, b))

    def through_tensors(x, y):
        return torch.from_numpy(numpy_fn(x.numpy(), y.numpy()))

    x, y = torch.randn(16, 4), torch.randn(16, 4)
    torch.testing.assert_close(fxjit.compile(through_tensors, backend="eager")(x, y), through_tensors(x, y))


def test_wrap_numpy_takes_and_gives_tensors():
    np = pytest.importorskip("numpy")

    @fxjit.wrap_numpy
    def numpy_fn(a, b):
        return np.sum(a[:, :, None] * b[:, None, :], axis=(-2, -1))

    x, y = torch.randn(8, 4), torch.randn(8, 4)
    fxjit.reset()
    result = fxjit.compile(numpy_fn, backend="eager", fullgraph=True)(x, y)
    assert isinstance(result, torch.Tensor)
    torch.testing.assert_close(result, (x[:, :, None] * y[:, None, :]).sum((-2, -1)))
