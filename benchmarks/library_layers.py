"""More programs of `--libraries`: layers, optimizers, tables, time series, reinforcement learning, speech, medicine, vision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.library_programs import (
    LIBRARIES,
    images_of,
    library,
    of_function,
    of_model,
    of_training,
    sequences_of,
    tokens_of,
)
from benchmarks.programs import Program

# -- attention, quantisers, diffusion, memory ----------------------------------------------------------------------


@library
def perceiver() -> Program:
    from perceiver_pytorch import PerceiverIO

    model = PerceiverIO(
        dim=16,
        queries_dim=8,
        logits_dim=4,
        depth=2,
        num_latents=8,
        latent_dim=16,
        latent_heads=2,
        cross_dim_head=8,
        latent_dim_head=8,
    )
    return of_model(model, lambda batch: {"data": torch.randn(batch, 12, 16), "queries": torch.randn(6, 8)})


@library
def performer() -> Program:
    from performer_pytorch import PerformerLM

    return of_model(
        PerformerLM(num_tokens=100, max_seq_len=32, dim=32, depth=1, heads=2, dim_head=16, causal=False), tokens_of(32)
    )


@library
def reformer() -> Program:
    from reformer_pytorch import LSHSelfAttention

    return of_model(LSHSelfAttention(dim=32, heads=2, bucket_size=4, n_hashes=2), sequences_of(32, 16))


@library
def mlp_mixer() -> Program:
    from mlp_mixer_pytorch import MLPMixer

    return of_model(
        MLPMixer(image_size=32, channels=3, patch_size=8, dim=32, depth=2, num_classes=5), images_of(name="input")
    )


@library
def routing_transformer() -> Program:
    from routing_transformer import RoutingTransformerLM

    return of_model(
        RoutingTransformerLM(num_tokens=100, dim=32, heads=2, depth=1, max_seq_len=32, window_size=8, causal=True),
        tokens_of(32),
    )


@library
def vector_quantize() -> Program:
    from vector_quantize_pytorch import VectorQuantize

    return of_training(VectorQuantize(dim=16, codebook_size=32, decay=0.8, commitment_weight=1.0), sequences_of(16, 12))


@library
def residual_vector_quantize() -> Program:
    from vector_quantize_pytorch import FSQ, LFQ, ResidualVQ

    class All(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.residual, self.finite = ResidualVQ(dim=8, num_quantizers=3, codebook_size=16), FSQ([4, 3, 3])
            self.free, self.narrow = LFQ(codebook_size=16, dim=8, entropy_loss_weight=0.1), nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> Any:
            return self.residual(x), self.finite(self.narrow(x)), self.free(x)

    return of_model(All(), sequences_of(8, 12))


@library
def denoising_diffusion() -> Program:
    from denoising_diffusion_pytorch import GaussianDiffusion, Unet

    unet = Unet(dim=16, dim_mults=(1, 2), flash_attn=False)
    return of_training(
        GaussianDiffusion(unet, image_size=16, timesteps=50), lambda batch: {"img": torch.rand(batch, 3, 16, 16)}
    )


@library
def denoising_diffusion_1d() -> Program:
    from denoising_diffusion_pytorch import GaussianDiffusion1D, Unet1D

    unet = Unet1D(dim=16, dim_mults=(1, 2), channels=4)
    diffusion = GaussianDiffusion1D(unet, seq_length=16, timesteps=20, sampling_timesteps=3)
    return Program(lambda batch_size: diffusion.sample(batch_size=batch_size), lambda batch: {"batch_size": batch})


@library
def rotary_embedding() -> Program:
    from rotary_embedding_torch import RotaryEmbedding

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.plain, self.scaled = RotaryEmbedding(dim=8), RotaryEmbedding(dim=8, use_xpos=True)

        def forward(self, x: torch.Tensor) -> Any:
            return self.plain.rotate_queries_or_keys(x), self.scaled.rotate_queries_and_keys(x, x)

    return of_model(Both(), lambda batch: {"x": torch.randn(batch, 2, 12, 16)})


@library
def local_attention() -> Program:
    from local_attention import LocalTransformer

    return of_model(
        LocalTransformer(
            num_tokens=100, dim=32, depth=2, max_seq_len=32, causal=True, local_attn_window_size=8, heads=2, dim_head=16
        ),
        tokens_of(30),
    )


@library
def linear_attention() -> Program:
    from linear_attention_transformer import LinearAttentionTransformerLM

    return of_model(
        LinearAttentionTransformerLM(
            num_tokens=100,
            dim=32,
            heads=2,
            depth=1,
            max_seq_len=32,
            causal=True,
            blindspot_size=4,
            n_local_attn_heads=1,
            local_attn_window_size=8,
        ),
        tokens_of(32),
    )


@library
def soft_moe() -> Program:
    from soft_moe_pytorch import SoftMoE

    return of_model(SoftMoE(dim=16, seq_len=12, num_experts=4), sequences_of(16, 12))


@library
def st_moe() -> Program:
    from st_moe_pytorch import MoE, SparseMoEBlock

    return of_model(
        SparseMoEBlock(MoE(dim=16, num_experts=4, gating_top_n=2, threshold_train=0.2, threshold_eval=0.2)),
        sequences_of(16, 12),
    )


@library
def mixture_of_experts() -> Program:
    from mixture_of_experts import MoE

    return of_training(MoE(dim=16, num_experts=4), lambda batch: {"inputs": torch.randn(batch, 12, 16)})


@library
def gateloop() -> Program:
    from gateloop_transformer import Transformer

    return of_model(Transformer(num_tokens=100, dim=32, depth=2), tokens_of(16))


@library
def titans_memory() -> Program:
    from titans_pytorch import NeuralMemory

    return of_model(NeuralMemory(dim=16, chunk_size=4), lambda batch: {"seq": torch.randn(batch, 16, 16)})


@library
def titans_mac() -> Program:
    from titans_pytorch import MemoryAsContextTransformer

    return of_model(
        MemoryAsContextTransformer(
            num_tokens=50, dim=16, depth=2, segment_len=8, num_persist_mem_tokens=2, num_longterm_mem_tokens=2
        ),
        tokens_of(24, 50),
    )


@library
def nystrom_attention() -> Program:
    from nystrom_attention import Nystromformer

    return of_model(Nystromformer(dim=16, dim_head=8, heads=2, depth=2, num_landmarks=4), sequences_of(16, 14))


@library
def slot_attention() -> Program:
    from slot_attention import SlotAttention

    return of_model(SlotAttention(num_slots=3, dim=16, iters=3), lambda batch: {"inputs": torch.randn(batch, 12, 16)})


@library
def linformer() -> Program:
    from linformer import Linformer

    return of_model(Linformer(dim=16, seq_len=16, depth=2, heads=2, k=4), sequences_of(16, 16))


@library
def sinkhorn_transformer() -> Program:
    from sinkhorn_transformer import SinkhornTransformerLM

    return of_model(
        SinkhornTransformerLM(num_tokens=100, dim=32, heads=2, depth=1, bucket_size=8, max_seq_len=32, causal=False),
        tokens_of(32),
    )


@library
def h_transformer() -> Program:
    from h_transformer_1d import HTransformer1D

    return of_training(
        HTransformer1D(
            num_tokens=100, dim=32, depth=2, causal=False, max_seq_len=32, heads=2, dim_head=16, block_size=4, reversible=True
        ),
        tokens_of(32),
    )


@library
def lambda_networks() -> Program:
    from lambda_networks import LambdaLayer

    return of_model(LambdaLayer(dim=16, dim_out=16, r=5, dim_k=8, heads=2, dim_u=1), images_of(8, 16))


@library
def halonet() -> Program:
    from halonet_pytorch import HaloAttention

    return of_model(HaloAttention(dim=16, block_size=4, halo_size=1, dim_head=8, heads=2), images_of(8, 16))


@library
def axial_attention() -> Program:
    from axial_attention import AxialAttention, AxialPositionalEmbedding

    return of_model(
        nn.Sequential(
            AxialPositionalEmbedding(dim=16, shape=(8, 8)), AxialAttention(dim=16, dim_index=1, heads=2, num_dimensions=2)
        ),
        images_of(8, 16, "input"),
    )


@library
def conformer() -> Program:
    from conformer import Conformer

    return of_model(Conformer(dim=16, depth=2, dim_head=8, heads=2, conv_kernel_size=5), sequences_of(16, 20))


@library
def megabyte() -> Program:
    from MEGABYTE_pytorch import MEGABYTE

    model = MEGABYTE(num_tokens=50, dim=(16, 8), depth=(1, 1), max_seq_len=(8, 4), flash_attn=False, dim_head=8, heads=2)
    return of_model(model, lambda batch: {"ids": torch.randint(0, 50, (batch, 30)), "return_loss": True})


@library
def recurrent_memory() -> Program:
    from recurrent_memory_transformer_pytorch import RecurrentMemoryTransformer

    model = RecurrentMemoryTransformer(
        dim=16, depth=1, num_memory_tokens=4, num_tokens=50, seq_len=16, causal=True, heads=2, dim_head=8
    )
    return of_model(model, tokens_of(16, 50))


@library
def block_recurrent() -> Program:
    from block_recurrent_transformer_pytorch import BlockRecurrentTransformer

    model = BlockRecurrentTransformer(
        num_tokens=50,
        dim=16,
        depth=2,
        dim_head=8,
        heads=2,
        max_seq_len=16,
        block_width=8,
        num_state_vectors=8,
        recurrent_layers=(2,),
    )
    return of_model(model, tokens_of(16, 50))


@library
def x_clip() -> Program:
    from x_clip import CLIP

    model = CLIP(
        dim_text=32,
        dim_image=32,
        dim_latent=16,
        num_text_tokens=100,
        text_enc_depth=1,
        text_seq_len=16,
        text_heads=2,
        visual_enc_depth=1,
        visual_image_size=32,
        visual_patch_size=8,
        visual_heads=2,
    )
    return of_training(
        model,
        lambda batch: {
            "text": torch.randint(1, 100, (batch, 16)),
            "image": torch.randn(batch, 3, 32, 32),
            "return_loss": True,
        },
    )


@library
def ema_update() -> Program:
    from ema_pytorch import EMA

    model = nn.Linear(4, 4)
    ema = EMA(model, beta=0.9, update_after_step=1, update_every=1)

    def step(x: torch.Tensor) -> torch.Tensor:
        ema.update()
        return ema(x)

    return of_function(step, lambda batch: {"x": torch.randn(batch, 4)})


@library
def assoc_scan() -> Program:
    from assoc_scan import AssocScan

    scan = AssocScan()
    return of_function(scan, lambda batch: {"gates": torch.rand(batch, 12, 4), "inputs": torch.randn(batch, 12, 4)})


# -- speech, medicine, sentences, detection ------------------------------------------------------------------------------


@library
def asteroid_filterbank() -> Program:
    from asteroid_filterbanks import STFTFB, Decoder, Encoder

    bank = STFTFB(32, 32, 16)
    return of_model(nn.Sequential(Encoder(bank), Decoder(bank)), lambda batch: {"input": torch.randn(batch, 1, 160)})


@library
def monai_unet() -> Program:
    from monai.networks.nets import UNet

    return of_model(
        UNet(3, 1, 2, channels=(4, 8, 16), strides=(2, 2), num_res_units=1),
        lambda batch: {"x": torch.randn(batch, 1, 16, 16, 16)},
    )


@library
def monai_swin_unetr() -> Program:
    from monai.networks.nets import SwinUNETR

    return of_model(
        SwinUNETR(in_channels=1, out_channels=2, feature_size=12, depths=(1, 1, 1, 1), num_heads=(1, 2, 2, 2)),
        lambda batch: {"x_in": torch.randn(batch, 1, 64, 64, 32)},
        (1, 2, 3),
    )


@library
def monai_losses() -> Program:
    from monai.losses import DiceCELoss, GeneralizedDiceLoss, TverskyLoss

    losses = (
        DiceCELoss(to_onehot_y=True, softmax=True),
        GeneralizedDiceLoss(softmax=True, to_onehot_y=True),
        TverskyLoss(sigmoid=True),
    )

    def all_of(x: torch.Tensor, y: torch.Tensor) -> Any:
        return losses[0](x, y), losses[1](x, y), losses[2](x[:, :1], (y > 0).float())

    return of_function(all_of, lambda batch: {"x": torch.randn(batch, 3, 8, 8), "y": torch.randint(0, 3, (batch, 1, 8, 8))})


@library
def monai_sliding_window() -> Program:
    from monai.inferers import sliding_window_inference

    net = nn.Conv2d(1, 2, 3, padding=1)
    return of_function(lambda x: sliding_window_inference(x, (8, 8), 2, net, overlap=0.25), images_of(20, 1))


@library
def sentence_pooling() -> Program:
    from sentence_transformers.models import Normalize, Pooling

    pooling, normalize = Pooling(16, pooling_mode="mean"), Normalize()

    def encode(token_embeddings: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        features = normalize(pooling({"token_embeddings": token_embeddings, "attention_mask": attention_mask}))
        return features["sentence_embedding"]

    return of_function(
        encode,
        lambda batch: {
            "token_embeddings": torch.randn(batch, 10, 16),
            "attention_mask": torch.ones(batch, 10, dtype=torch.long),
        },
    )


@library
def ultralytics_yolo() -> Program:
    from ultralytics.nn.tasks import DetectionModel

    return Program(DetectionModel("yolov8n.yaml", nc=4, verbose=False).eval(), images_of(64))


@library
def ultralytics_yolo_train() -> Program:
    from ultralytics.nn.tasks import DetectionModel

    return of_training(DetectionModel("yolov8n.yaml", nc=4, verbose=False), images_of(64))


@library
def torchmetrics_regression() -> Program:
    import torchmetrics as tm

    metrics = tm.MetricCollection(
        [tm.MeanSquaredError(), tm.R2Score(), tm.PearsonCorrCoef(), tm.SpearmanCorrCoef(), tm.MeanAbsoluteError()]
    )

    def evaluate(x: torch.Tensor, y: torch.Tensor) -> Any:
        metrics.reset()
        metrics.update(x, y)
        return metrics.compute()

    return of_function(evaluate, lambda batch: {"x": torch.randn(batch), "y": torch.randn(batch)}, (16, 24, 32))


# -- reinforcement learning, tabular data, time series -----------------------------------------------------------------


@library
def tensordict_module() -> Program:
    from tensordict import TensorDict
    from tensordict.nn import TensorDictModule, TensorDictSequential

    net = TensorDictSequential(
        TensorDictModule(nn.Linear(4, 8), in_keys=["obs"], out_keys=["hidden"]),
        TensorDictModule(nn.Linear(8, 2), in_keys=["hidden"], out_keys=["action"]),
    )

    def step(obs: torch.Tensor) -> Any:
        data = net(TensorDict({"obs": obs}, batch_size=[obs.shape[0]]))
        return data["action"], data["hidden"].sum()

    return of_function(step, lambda batch: {"obs": torch.randn(batch, 4)})


@library
def tensordict_nested() -> Program:
    from tensordict import TensorDict

    def step(data: Any) -> Any:
        doubled = data.apply(lambda x: x * 2)
        doubled["sum"] = doubled["a"] + doubled["n", "b"]
        return doubled.select("sum")["sum"], torch.stack([doubled, doubled], 0)["n", "b"], doubled[0]["a"]

    return of_function(
        step,
        lambda batch: {
            "data": TensorDict({"a": torch.randn(batch, 3), "n": {"b": torch.randn(batch, 3)}}, batch_size=[batch])
        },
    )


@library
def sb3_policy() -> Program:
    import gymnasium as gym
    from stable_baselines3.common.policies import ActorCriticPolicy

    policy = ActorCriticPolicy(gym.spaces.Box(-1.0, 1.0, (4,)), gym.spaces.Discrete(3), lambda _: 1e-3)

    class Evaluate(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.policy = policy

        def forward(self, obs: torch.Tensor, actions: torch.Tensor) -> Any:
            return self.policy.evaluate_actions(obs, actions)

    return of_training(Evaluate(), lambda batch: {"obs": torch.rand(batch, 4), "actions": torch.randint(0, 3, (batch,))})


@library
def sb3_act() -> Program:
    import gymnasium as gym
    from stable_baselines3.common.policies import ActorCriticPolicy

    policy = ActorCriticPolicy(gym.spaces.Box(-1.0, 1.0, (4,)), gym.spaces.Box(-1.0, 1.0, (2,)), lambda _: 1e-3)
    return of_model(policy, lambda batch: {"obs": torch.rand(batch, 4), "deterministic": True})


@library
def ignite_metrics() -> Program:
    from ignite.metrics import Accuracy, Loss, Precision, Recall

    metrics = [Accuracy(), Loss(F.cross_entropy), Precision(average=True), Recall(average=True)]

    def evaluate(scores: torch.Tensor, targets: torch.Tensor) -> Any:
        for each in metrics:
            each.reset()
            each.update((scores, targets))
        return [each.compute() for each in metrics]

    return of_function(
        evaluate, lambda batch: {"scores": torch.randn(batch, 4), "targets": torch.randint(0, 4, (batch,))}, (8, 10, 12)
    )


@library
def tabnet() -> Program:
    from pytorch_tabnet.tab_network import TabNet

    matrix = torch.eye(6)
    return of_model(
        TabNet(6, 2, n_d=4, n_a=4, n_steps=2, cat_idxs=[], cat_dims=[], group_attention_matrix=matrix),
        lambda batch: {"x": torch.randn(batch, 6)},
        (4, 6, 8),
    )


@library
def rtdl_numbers() -> Program:
    from rtdl_num_embeddings import PeriodicEmbeddings, PiecewiseLinearEmbeddings, compute_bins

    bins = compute_bins(torch.randn(50, 4), n_bins=5)
    model = nn.ModuleList(
        [PeriodicEmbeddings(4, 8, lite=False), PiecewiseLinearEmbeddings(bins, 8, activation=False, version="B")]
    )

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.each = model

        def forward(self, x: torch.Tensor) -> Any:
            return [each(x) for each in self.each]

    return of_model(Both(), lambda batch: {"x": torch.randn(batch, 4)})


@library
def rtdl_ft_transformer() -> Program:
    from rtdl_revisiting_models import FTTransformer

    model = FTTransformer(
        n_cont_features=3,
        cat_cardinalities=[4, 5],
        d_out=2,
        n_blocks=2,
        d_block=16,
        attention_n_heads=2,
        attention_dropout=0.1,
        ffn_d_hidden_multiplier=2.0,
        ffn_dropout=0.1,
        residual_dropout=0.0,
    )
    return of_model(model, lambda batch: {"x_cont": torch.randn(batch, 3), "x_cat": torch.randint(0, 4, (batch, 2))})


@library
def itransformer() -> Program:
    from iTransformer import iTransformer

    model = iTransformer(num_variates=5, lookback_len=24, dim=32, depth=2, heads=2, dim_head=16, pred_length=(6, 12))
    return of_model(model, lambda batch: {"x": torch.randn(batch, 24, 5)})


# -- optimizers ----------------------------------------------------------------------------------------------------------


def _optimizer(name: str, make: Callable[[list[nn.Parameter]], Any]) -> None:
    def build() -> Program:
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
        optimizer = make(list(model.parameters()))
        if hasattr(optimizer, "train"):
            optimizer.train()

        def step(x: torch.Tensor, y: torch.Tensor) -> Any:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach(), [each.detach().clone() for each in model.parameters()]

        return of_function(
            step, lambda batch: {"x": torch.randn(batch, 8), "y": torch.arange(batch) % 3}, (8, 12, 16), needs_grad=True
        )

    LIBRARIES[f"optimizer_{name}"] = build


def _of(module: str, name: str, **options: Any) -> Callable[[list[nn.Parameter]], Any]:
    import importlib

    return lambda parameters: getattr(importlib.import_module(module), name)(parameters, **options)


_optimizer("lion", _of("lion_pytorch", "Lion", lr=1e-3, weight_decay=0.1))
_optimizer("schedulefree", _of("schedulefree", "AdamWScheduleFree", lr=1e-2))
_optimizer("prodigy", _of("prodigyopt", "Prodigy", lr=1.0))
_optimizer("adam_atan2", _of("adam_atan2_pytorch", "AdamAtan2", lr=1e-3))
for _name in ("AdaBelief", "RAdam", "Lamb", "Ranger21", "Shampoo", "MADGRAD", "Adan", "SOAP", "AdaFactor"):
    _optimizer(
        _name.lower(),
        _of("pytorch_optimizer", _name) if _name != "Ranger21" else _of("pytorch_optimizer", _name, num_iterations=20),
    )
