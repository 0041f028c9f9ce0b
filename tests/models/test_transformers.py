"""Models of other people, small and with random weights: one graph, eager's outputs, eager's gradients."""

from __future__ import annotations

import copy

import pytest
import torch

import fxjit
from fxjit.testing import EagerAndRecordGraphs

transformers = pytest.importorskip("transformers")


def gpt2():
    config = transformers.GPT2Config(vocab_size=1000, n_embd=64, n_layer=2, n_head=4, n_positions=64)
    return transformers.GPT2LMHeadModel(config), ids()


def bert():
    config = transformers.BertConfig(vocab_size=1000, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                                     intermediate_size=128)
    inputs = ids()
    inputs.pop("labels")
    return transformers.BertForSequenceClassification(config), inputs | {"labels": torch.tensor([0, 1])}


def llama():
    config = transformers.LlamaConfig(vocab_size=1000, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                                      num_key_value_heads=2, intermediate_size=128, max_position_embeddings=64)
    return transformers.LlamaForCausalLM(config), ids()


def resnet():
    config = transformers.ResNetConfig(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], num_labels=4,
                                       layer_type="basic")
    return transformers.ResNetForImageClassification(config), {
        "pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.tensor([0, 3])}


def ids():
    torch.manual_seed(1)
    tokens = torch.randint(0, 1000, (2, 32))
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens}


MODELS = {"gpt2": gpt2, "bert": bert, "llama": llama, "resnet": resnet}


@pytest.mark.parametrize("name", MODELS)
def test_captured_as_one_graph_with_eagers_outputs(name):
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    model.eval()
    fxjit.reset()
    backend = EagerAndRecordGraphs()
    compiled = fxjit.compile(model, backend=backend)
    with torch.no_grad():
        expected = model(**inputs)
        for _ in range(2):
            result = compiled(**inputs)
    assert type(result) is type(expected)
    assert list(result.keys()) == list(expected.keys())
    torch.testing.assert_close(result.loss, expected.loss, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(result.logits, expected.logits, rtol=1e-3, atol=1e-4)
    assert len(backend.graphs) <= (2 if name == "gpt2" else 1), "GPT-2 may break where it logs"


@pytest.mark.parametrize("name", MODELS)
def test_a_training_step_under_native_has_eagers_gradients(name):
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    twin = copy.deepcopy(model)
    fxjit.reset()
    compiled = fxjit.compile(twin)
    loss = compiled(**inputs).loss
    loss.backward()
    expected = model(**inputs).loss
    expected.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-5)
    for (key, ours), (_, theirs) in zip(twin.named_parameters(), model.named_parameters(), strict=True):
        if theirs.grad is None:
            assert ours.grad is None, key
        else:
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-4, msg=lambda text, key=key: f"{key}: {text}")
