"""nn.Module in traced code: attributes, containers, hooks, mutation, and the calls that go through them."""

from __future__ import annotations

import pytest
import torch
from tests.differential import assert_same_as_eager
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import fxjit
from fxjit.testing import CompileCounter, EagerAndRecordGraphs


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("offset", torch.ones(4))
        self.register_parameter("nothing", None)
        self.scale = 2.0

    def forward(self, x):
        if self.nothing is not None:
            x = x + self.nothing
        return torch.relu(self.linear(x)) * self.scale + self.offset


class Containers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(3))
        self.by_name = nn.ModuleDict({"a": Block(), "b": nn.Identity()})
        self.chain = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Sequential(nn.Linear(4, 4), nn.GELU()))
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(4)) for _ in range(2)])
        self.named = nn.ParameterDict({"w": nn.Parameter(torch.randn(4))})

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        for layer in self.layers[:2]:
            x = x + layer(x)
        for name, module in self.by_name.items():
            x = module(x) if name in ("a", "b") else x
        x = self.chain(x) + self.chain[0](x)
        return x + self.weights[0] * self.weights[1] + self.named["w"] + len(self.layers)


MODULES = {
    "block": lambda: Block(),
    "containers": lambda: Containers(),
    "batch_norm": lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU()),
    "batch_norm_eval": lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval(),
    "dropout": lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)),
    "layer_norm": lambda: nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4), nn.Softmax(-1)),
}


@pytest.mark.parametrize("name", MODULES)
def test_modules(name, assert_same_as_eager):
    assert_same_as_eager(MODULES[name](), torch.randn(3, 4))


def test_convolutions(assert_same_as_eager):
    module = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                           nn.Linear(16, 2))
    assert_same_as_eager(module, torch.randn(2, 1, 4, 4))


def test_attention(assert_same_as_eager):
    class Attend(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
            self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

        def forward(self, x):
            return self.encoder(x) + self.attention(x, x, x, need_weights=False)[0]
    assert_same_as_eager(Attend(), torch.randn(2, 3, 8))


def test_embedding(assert_same_as_eager):
    module = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 4))
    assert_same_as_eager(module, torch.randint(0, 10, (2, 3)))


def test_training_flag_is_guarded():
    module = nn.Dropout(0.5)
    compiled = fxjit.compile(module, backend="eager", fullgraph=True)
    x = torch.ones(100)
    assert (compiled(x) == 0).any()
    module.eval()
    assert (compiled(x) == 1).all()


def test_attributes_are_guarded():
    block = Block()
    compiled = fxjit.compile(block, backend="eager", fullgraph=True)
    x = torch.randn(3, 4)
    torch.testing.assert_close(compiled(x), block(x))
    block.scale = 5.0
    torch.testing.assert_close(compiled(x), block(x))
    block.linear = nn.Linear(4, 4, bias=False)
    torch.testing.assert_close(compiled(x), block(x))
    block.offset = torch.zeros(4)
    torch.testing.assert_close(compiled(x), block(x))


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("last", None)
        self.seen = []

    def forward(self, x):
        self.calls += 1
        self.steps += 1
        self.last = x.detach() * 2
        self.seen.append(self.calls)
        return x * self.calls


def test_writes_are_seen_afterwards():
    ours, theirs = Counting(), Counting()
    fxjit.reset()
    compiled = fxjit.compile(ours, backend="eager")
    for _ in range(3):
        x = torch.randn(3)
        torch.testing.assert_close(compiled(x), theirs(x))
    assert (ours.calls, ours.steps, ours.seen) == (theirs.calls, theirs.steps, theirs.seen)
    torch.testing.assert_close(ours.last, theirs.last)
    assert list(ours.state_dict()) == list(theirs.state_dict())


@pytest.mark.parametrize("register", ["register_forward_hook", "register_forward_pre_hook"])
def test_hooks_run(register):
    block = Block()
    compiled = fxjit.compile(block, backend="eager", fullgraph=True)
    x = torch.randn(3, 4)
    torch.testing.assert_close(compiled(x), block(x))
    if register == "register_forward_hook":
        handle = block.linear.register_forward_hook(lambda module, args, output: output * 2)
    else:
        handle = block.linear.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    torch.testing.assert_close(compiled(x), block(x))
    handle.remove()
    torch.testing.assert_close(compiled(x), block(x))


def test_hooks_of_all_modules_registered_while_running():
    block = Block()

    def fn(x):
        handle = nn.modules.module.register_module_forward_hook(lambda module, args, output: output + 1)
        result = block(x)
        handle.remove()
        return result, block(x)
    fxjit.reset()
    x = torch.ones(2, 4)
    torch.testing.assert_close(fxjit.compile(fn, backend="eager")(x), fn(x))


def test_parameters_can_be_iterated():
    module = Containers()

    def fn():
        return (sum(p.sum() for p in module.parameters()), [name for name, _ in module.named_parameters()],
                len(list(module.children())), [name for name, _ in module.named_modules()])
    fxjit.reset()
    compiled = fxjit.compile(fn, backend="eager", fullgraph=True)
    ours, theirs = compiled(), fn()
    torch.testing.assert_close(ours[0], theirs[0])
    assert ours[1:] == theirs[1:]


def test_modules_made_while_tracing():
    def fn(x):
        return nn.Sequential(nn.ReLU(), nn.Tanh())(x)
    x = torch.randn(3)
    fxjit.reset()
    torch.testing.assert_close(fxjit.compile(fn, backend="eager")(x), fn(x))


@pytest.mark.parametrize("layer", [nn.ReLU(), nn.Dropout()])
def test_lazy_modules(layer):
    """A draw before the second layer's parameters are made: the first call runs as it stands."""
    made = [nn.Sequential(nn.LazyLinear(4), layer, nn.LazyLinear(2)) for _ in range(2)]
    x = torch.ones(3, 5)

    def twice(module):
        torch.manual_seed(0)
        return [module(x), module(x)]
    theirs = twice(made[0])
    fxjit.reset()
    backend = EagerAndRecordGraphs()
    ours = twice(fxjit.compile(made[1], backend=backend))
    torch.testing.assert_close(ours, theirs)
    assert len(backend.graphs) == 1
    assert type(made[1][0]) is nn.Linear


def test_a_lazy_module_that_its_input_does_not_fit():
    module = nn.Sequential(nn.LazyConv2d(2, 3))
    fxjit.reset()
    compiled = fxjit.compile(module, backend="eager")
    with pytest.raises(RuntimeError, match="Expected 3D .* or 4D .* input to LazyConv2d"):
        compiled(torch.ones(3))
    x = torch.ones(1, 3, 5, 5)
    torch.testing.assert_close(compiled(x), module(x))


def test_super_and_properties(assert_same_as_eager):
    class Base(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3))

        @property
        def doubled(self):
            return self.weight * 2

        def forward(self, x):
            return x + self.doubled

    class Derived(Base):
        def forward(self, x):
            return super().forward(x) * 3
    assert_same_as_eager(Derived(), torch.randn(3))


def test_missing_attributes_raise():
    block = Block()

    def fn(x):
        return hasattr(block, "linear"), hasattr(block, "nowhere"), getattr(block, "nowhere", 1), block(x)
    fxjit.reset()
    ours = fxjit.compile(fn, backend="eager", fullgraph=True)(torch.ones(1, 4))
    assert ours[:3] == (True, False, 1)


def test_state_dict_inside():
    block = Block()

    def fn(x):
        state = block.state_dict()
        return x @ state["linear.weight"].T + state["offset"], list(state), state._metadata["linear"]["version"], state
    fxjit.reset()
    ours, theirs = fxjit.compile(fn, backend="eager", fullgraph=True)(torch.ones(1, 4)), fn(torch.ones(1, 4))
    torch.testing.assert_close(ours[0], theirs[0])
    assert ours[1:3] == theirs[1:3]
    assert list(ours[3]) == list(theirs[3]) and ours[3]._metadata == theirs[3]._metadata


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_load_state_dict_inside(backend):
    block, other = Block(), Block()

    def fn(x):
        keys = block.load_state_dict({name: 2 * tensor for name, tensor in other.state_dict().items()})
        return block(x), tuple(keys)
    fxjit.reset()
    weight = block.linear.weight
    ours, theirs = fxjit.compile(fn, backend=backend, fullgraph=True)(torch.ones(1, 4)), fn(torch.ones(1, 4))
    assert block.linear.weight is weight
    torch.testing.assert_close(ours, theirs)


def test_a_state_dict_that_does_not_fit():
    block = Block()
    state = {"linear.weight": torch.ones(4, 4), "more": torch.ones(1)}

    def fn(x):
        return block.load_state_dict(state), block(x)
    fxjit.reset()
    texts = []
    for each in (fn, fxjit.compile(fn, backend="eager")):
        with pytest.raises(RuntimeError) as error:
            each(torch.ones(1, 4))
        texts.append(str(error.value))
    assert texts[0] == texts[1]


@pytest.mark.parametrize("tie_weights", [True, False])
def test_functional_call(tie_weights):
    block = Block()

    def fn(x):
        changed = {name: parameter.detach() * 2 for name, parameter in block.named_parameters()}
        return torch.func.functional_call(block, changed, (x,), tie_weights=tie_weights) + block(x)
    before = {name: id(parameter) for name, parameter in block.named_parameters()}
    fxjit.reset()
    x = torch.randn(2, 4)
    torch.testing.assert_close(fxjit.compile(fn, backend="eager", fullgraph=True)(x), fn(x))
    assert before == {name: id(parameter) for name, parameter in block.named_parameters()}


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU])
def test_a_packed_sequence_goes_through_the_layer_as_it_is(layer):
    torch.manual_seed(0)
    rnn, head = layer(4, 3, batch_first=True), nn.Linear(3, 2)

    def fn(x, lengths):
        packed = pack_padded_sequence(x * 2, lengths, batch_first=True, enforce_sorted=False)
        out, _ = rnn(packed)
        padded, sizes = pad_packed_sequence(out, batch_first=True)
        return head(padded).relu(), sizes, packed.batch_sizes

    counter = CompileCounter()
    x, lengths = torch.randn(3, 5, 4), torch.tensor([2, 5, 3])
    torch.testing.assert_close(fxjit.compile(fn, backend=counter)(x, lengths), fn(x, lengths))
    assert counter.frame_count == 2, "before it is packed, and after it is padded again"


class Adapter(nn.Module):
    """A module of the program's own that has one of torch's inside."""

    def __init__(self, width):
        super().__init__()
        self.inner = nn.LSTM(width, 3, batch_first=True)
        self.scale = 2.0

    def forward(self, x):
        return self.inner(x)[0] * self.scale


@pytest.mark.parametrize("make", [lambda: nn.Linear(4, 3), lambda: nn.LayerNorm(4), lambda: Adapter(4)],
                         ids=["Linear", "LayerNorm", "inside another"])
def test_making_a_module_of_torch_is_one_break(make):
    def fn(x):
        y = x * 2
        layer = make().eval()
        return layer(y), [name for name, _ in layer.named_parameters()]

    x = torch.randn(2, 5, 4)
    torch.manual_seed(0)
    expected = fn(x)
    fxjit.reset()
    counter = CompileCounter()
    compiled = fxjit.compile(fn, backend=counter)
    torch.manual_seed(0)
    result = compiled(x)
    torch.testing.assert_close(result[0], expected[0])
    assert result[0].requires_grad
    assert result[1] == expected[1]
    assert counter.frame_count == 2, "before it is made, and after"
    assert sum(fxjit.counters["graph_break"].values()) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="on GPUs it runs threads")
def test_data_parallel_without_a_gpu_is_its_module():
    network = nn.DataParallel(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    assert_same_as_eager(lambda x: network(x) * 2, torch.randn(2, 4, requires_grad=True), graphs=1)
