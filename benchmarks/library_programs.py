"""The programs of `--libraries`: one use of each of many packages, small and with random weights, and each in few lines.

They are not chosen for being easy: distributions, solvers, graph networks, state-space models, optimizers, metrics,
quantizers, detection, equivariant networks and probabilistic programs, as their packages' first examples use them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.programs import Arguments, Builder, Program

LIBRARIES: dict[str, Builder] = {}


def library(builder: Builder) -> Builder:
    LIBRARIES[builder.__name__] = builder
    return builder


def of_model(module: nn.Module, inputs: Callable[[int], Arguments], batches: tuple[int, int, int] = (2, 3, 4)) -> Program:
    return Program(module.eval(), inputs, batches, module)


def of_training(module: nn.Module, inputs: Callable[[int], Arguments], batches: tuple[int, int, int] = (2, 3, 4)) -> Program:
    return Program(module.train(), inputs, batches, module)


def of_function(
    fn: Any, inputs: Callable[[int], Arguments], batches: tuple[int, int, int] = (2, 3, 4), needs_grad: bool = False
) -> Program:
    return Program(fn, inputs, batches, needs_grad=needs_grad)


def images_of(size: int = 32, channels: int = 3, name: str = "x") -> Callable[[int], Arguments]:
    return lambda batch: {name: torch.randn(batch, channels, size, size)}


def sequences_of(width: int = 32, length: int = 16, name: str = "x") -> Callable[[int], Arguments]:
    return lambda batch: {name: torch.randn(batch, length, width)}


def tokens_of(length: int = 16, count: int = 100, name: str = "x") -> Callable[[int], Arguments]:
    return lambda batch: {name: torch.randint(0, count, (batch, length))}


def _graph(nodes: int, width: int = 8) -> Arguments:
    return {"x": torch.randn(nodes, width), "edge_index": torch.randint(0, nodes, (2, 4 * nodes))}


# -- tensors and layers ------------------------------------------------------------------------------------------------


@library
def einops_patches() -> Program:
    from einops import einsum, pack, rearrange, reduce, repeat, unpack

    def patches(x: torch.Tensor) -> Any:
        parts = rearrange(x, "b c (h p) (w q) -> b (h w) (p q c)", p=8, q=8)
        token = repeat(parts.mean((0, 1)), "d -> b 1 d", b=x.shape[0])
        packed, shapes = pack([token, parts], "b * d")
        scores = einsum(packed, packed, "b i d, b j d -> b i j")
        token, parts = unpack(scores.softmax(-1) @ packed, shapes, "b * d")
        return token, reduce(parts, "b (n two) d -> b n d", "max", two=2)

    return of_function(patches, images_of())


@library
def einops_layers() -> Program:
    from einops.layers.torch import EinMix, Rearrange, Reduce

    model = nn.Sequential(
        Rearrange("b c (h p) (w q) -> b (h w) (p q c)", p=8, q=8),
        nn.Linear(192, 32),
        EinMix("b n c -> b n d", weight_shape="c d", bias_shape="d", c=32, d=16),
        nn.GELU(),
        Reduce("b n d -> b d", "mean"),
    )
    return of_model(model, images_of(name="input"))


@library
def einx_operations() -> Program:
    import einx

    def operations(x: torch.Tensor) -> Any:
        heads = einx.id("b n (h d) -> b h n d", x, h=4)
        scores = einx.dot("b h q d, b h k d -> b h q k", heads, heads)
        return einx.sum("b h n [d]", heads), einx.softmax("b h q [k]", scores)

    return of_function(operations, sequences_of())


@library
def kornia_augmentations() -> Program:
    import kornia.enhance as enhance
    import kornia.filters as filters
    import kornia.geometry.transform as geometry

    def pipeline(x: torch.Tensor) -> Any:
        blurred = filters.gaussian_blur2d(x, (5, 5), (1.5, 1.5))
        edges = filters.sobel(blurred)
        turned = geometry.rotate(x, torch.full((x.shape[0],), 30.0))
        return blurred, edges, turned, enhance.adjust_gamma(x.abs(), 0.7), filters.median_blur(x, (3, 3))

    return of_function(pipeline, images_of())


@library
def kornia_canny() -> Program:
    from kornia.filters import Canny

    return of_function(Canny(), lambda batch: {"input": torch.rand(batch, 3, 24, 24)})


@library
def kornia_homography() -> Program:
    from kornia.geometry import find_homography_dlt, transform_points, warp_perspective

    def warp(x: torch.Tensor, points: torch.Tensor) -> Any:
        matrix = find_homography_dlt(points, points * 1.1 + 0.1)
        return warp_perspective(x, matrix, (16, 16)), transform_points(matrix, points)

    return of_function(warp, lambda batch: {"x": torch.rand(batch, 3, 24, 24), "points": torch.rand(batch, 8, 2) * 20})


@library
def kornia_color() -> Program:
    import kornia.color as color

    def colours(x: torch.Tensor) -> Any:
        return color.rgb_to_lab(x), color.rgb_to_hsv(x), color.rgb_to_ycbcr(x), color.lab_to_rgb(color.rgb_to_lab(x))

    return of_function(colours, lambda batch: {"x": torch.rand(batch, 3, 16, 16)})


@library
def kornia_random_augmentation() -> Program:
    import kornia.augmentation as augment

    model = augment.AugmentationSequential(
        augment.RandomHorizontalFlip(p=0.5),
        augment.RandomAffine(20.0, p=1.0),
        augment.ColorJitter(0.1, 0.1, 0.1, 0.1, p=1.0),
        data_keys=["input"],
    )
    return of_function(lambda x: model(x), lambda batch: {"x": torch.rand(batch, 3, 16, 16)})  # noqa: PLW0108 - it takes no x=


@library
def torchvision_ssd_heads() -> Program:
    from torchvision.models.detection import ssdlite320_mobilenet_v3_large as build

    model = build(weights=None, weights_backbone=None, num_classes=4).eval()

    def heads(x: torch.Tensor) -> Any:
        features = list(model.backbone(x).values())
        return model.head(features)

    return of_function(heads, images_of(64))


@library
def torchvision_deeplab() -> Program:
    from torchvision.models.segmentation import lraspp_mobilenet_v3_large as build

    return of_model(build(weights=None, weights_backbone=None, num_classes=4), images_of(64, name="input"))


@library
def torchvision_video() -> Program:
    from torchvision.models.video import r2plus1d_18

    return of_model(r2plus1d_18(num_classes=4), lambda batch: {"x": torch.randn(batch, 3, 4, 16, 16)})


@library
def torchvision_swin() -> Program:
    from torchvision.models.swin_transformer import SwinTransformer

    model = SwinTransformer([4, 4], 16, [1, 2], [2, 4], [4, 4], num_classes=4)
    return of_model(model, images_of(48))


@library
def torchvision_transforms_v2() -> Program:
    from torchvision.transforms import v2

    chain = v2.Compose([v2.Resize((20, 20), antialias=True), v2.CenterCrop(16), v2.Normalize([0.5] * 3, [0.2] * 3)])
    return of_function(lambda x: chain(x), lambda batch: {"x": torch.rand(batch, 3, 32, 32)})  # noqa: PLW0108 - it takes no x=


def _timm(name: str, size: int = 64, **options: Any) -> Builder:
    def build() -> Program:
        import timm

        return of_model(timm.create_model(name, num_classes=5, **options), images_of(size))

    return build


for _name, _size, _options in (
    (
        "swin_tiny_patch4_window7_224",
        64,
        {"img_size": 64, "window_size": 4, "embed_dim": 24, "depths": (1, 1), "num_heads": (2, 2)},
    ),
    ("maxvit_pico_rw_256", 64, {"img_size": 64}),
    ("xcit_nano_12_p16_224", 64, {"img_size": 64}),
    ("levit_128s", 224, {}),
    ("efficientformerv2_s0", 224, {}),
    ("repvgg_a0", 48, {}),
    ("ghostnetv2_100", 64, {}),
    ("volo_d1_224", 64, {"img_size": 64}),
    ("coat_tiny", 64, {"img_size": 64}),
    ("crossvit_9_240", 240, {}),
    ("beit_base_patch16_224", 64, {"img_size": 64, "embed_dim": 48, "depth": 2, "num_heads": 4}),
    ("eva02_tiny_patch14_224", 56, {"img_size": 56, "depth": 2}),
    ("vit_small_patch16_rope_ape_224", 64, {"img_size": 64, "depth": 2}),
    ("twins_svt_small", 64, {"img_size": 64}),
    ("pvt_v2_b0", 64, {}),
    ("nfnet_l0", 64, {}),
    ("hrnet_w18_small", 64, {}),
    ("mambaout_femto", 64, {}),
    ("sequencer2d_s", 224, {}),
    ("gmixer_12_224", 224, {}),
    ("cait_xxs24_224", 64, {"img_size": 64, "depth": 2}),
    ("nextvit_small", 64, {}),
    ("fastvit_t8", 64, {}),
    ("rdnet_tiny", 64, {}),
    ("mvitv2_tiny", 64, {"img_size": 64}),
    ("davit_tiny", 64, {}),
    ("vitamin_small_224", 64, {"img_size": 64}),
    ("tiny_vit_5m_224", 224, {}),
    ("naflexvit_base_patch16_gap", 64, {"embed_dim": 48, "depth": 2, "num_heads": 4}),
):
    LIBRARIES[f"timm_{_name.split('_')[0]}"] = _timm(_name, _size, **_options)


@library
def smp_unet() -> Program:
    import segmentation_models_pytorch as smp

    return of_model(smp.Unet("resnet18", encoder_weights=None, classes=3, decoder_attention_type="scse"), images_of(64))


@library
def smp_losses() -> Program:
    import segmentation_models_pytorch as smp

    dice, lovasz, focal = (
        smp.losses.DiceLoss("multiclass"),
        smp.losses.LovaszLoss("multiclass"),
        smp.losses.FocalLoss("multiclass"),
    )

    def losses(x: torch.Tensor, y: torch.Tensor) -> Any:
        stats = smp.metrics.get_stats(x.argmax(1), y, mode="multiclass", num_classes=3)
        return dice(x, y), lovasz(x, y), focal(x, y), smp.metrics.iou_score(*stats, reduction="macro")

    return of_function(losses, lambda batch: {"x": torch.randn(batch, 3, 8, 8), "y": torch.randint(0, 3, (batch, 8, 8))})


@library
def open_clip_tiny() -> Program:
    from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg

    model = CLIP(
        32,
        CLIPVisionCfg(layers=2, width=64, head_width=16, patch_size=8, image_size=32),
        CLIPTextCfg(context_length=16, vocab_size=100, width=32, heads=2, layers=2),
    )
    return of_model(model, lambda batch: {"image": torch.randn(batch, 3, 32, 32), "text": torch.randint(1, 100, (batch, 16))})


@library
def lightly_losses() -> Program:
    from lightly.loss import BarlowTwinsLoss, DINOLoss, NTXentLoss, VICRegLoss

    contrast, twins, vic = NTXentLoss(), BarlowTwinsLoss(), VICRegLoss()
    dino = DINOLoss(output_dim=16)

    def losses(x: torch.Tensor, y: torch.Tensor) -> Any:
        return contrast(x, y), twins(x, y), vic(x, y), dino([x, y], [x, y, x + y], epoch=1)

    return of_function(losses, lambda batch: {"x": torch.randn(batch, 16), "y": torch.randn(batch, 16)}, (4, 6, 8))


@library
def lightly_memory_bank() -> Program:
    from lightly.loss import NTXentLoss

    contrast = NTXentLoss(memory_bank_size=(32, 16))
    return of_function(contrast, lambda batch: {"out0": torch.randn(batch, 16), "out1": torch.randn(batch, 16)}, (4, 6, 8))


@library
def metric_learning_triplet() -> Program:
    from pytorch_metric_learning import losses, miners

    loss, miner = losses.TripletMarginLoss(), miners.MultiSimilarityMiner()

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return loss(x, y, miner(x, y))

    return of_function(step, lambda batch: {"x": torch.randn(batch, 8), "y": torch.arange(batch) % 3}, (12, 15, 18))


@library
def metric_learning_arcface() -> Program:
    from pytorch_metric_learning import losses

    return of_training(
        losses.ArcFaceLoss(5, 8),
        lambda batch: {"embeddings": torch.randn(batch, 8), "labels": torch.arange(batch) % 5},
        (8, 10, 12),
    )


# -- Gaussian processes, probabilistic programs, flows -----------------------------------------------------------------


@library
def gpytorch_exact_gp() -> Program:
    import gpytorch

    class Model(gpytorch.models.ExactGP):
        def __init__(self, x: torch.Tensor, y: torch.Tensor, likelihood: Any) -> None:
            super().__init__(x, y, likelihood)
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x: torch.Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    x = torch.linspace(0, 1, 20)
    y = torch.sin(6 * x)
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    model = Model(x, y, likelihood).train()
    likelihood.train()
    mll = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)

    def loss(scale: torch.Tensor) -> torch.Tensor:
        return -mll(model(x), y * scale.mean())

    return of_function(loss, lambda batch: {"scale": torch.ones(batch)})


@library
def gpytorch_kernels() -> Program:
    import gpytorch

    kernels = gpytorch.kernels
    kernel = kernels.ScaleKernel(kernels.MaternKernel(nu=2.5, ard_num_dims=3)) + kernels.PeriodicKernel()

    def matrix(x: torch.Tensor) -> torch.Tensor:
        return kernel(x).to_dense()

    return of_function(matrix, lambda batch: {"x": torch.randn(batch, 3)}, (6, 8, 10))


@library
def botorch_acquisition() -> Program:
    from botorch.acquisition import LogExpectedImprovement
    from botorch.models import SingleTaskGP

    x = torch.rand(10, 2, dtype=torch.double)
    model = SingleTaskGP(x, x.sin().sum(-1, keepdim=True))
    acquisition = LogExpectedImprovement(model, best_f=0.5)
    return Program(acquisition, lambda batch: {"X": torch.rand(batch, 1, 2, dtype=torch.double)}, (3, 5, 7))


@library
def botorch_test_functions() -> Program:
    from botorch.test_functions import Ackley, Branin, Hartmann

    functions = Ackley(2), Branin(), Hartmann()

    def evaluate(x: torch.Tensor) -> Any:
        return functions[0](x[:, :2]), functions[1](x[:, :2]), functions[2](x)

    return of_function(evaluate, lambda batch: {"x": torch.rand(batch, 6)}, (3, 5, 7))


@library
def pyro_elbo() -> Program:
    import pyro
    import pyro.distributions as dist
    from pyro.infer import Trace_ELBO

    pyro.clear_param_store()

    def model(data: torch.Tensor) -> None:
        p = pyro.sample("p", dist.Beta(torch.tensor(2.0), torch.tensor(2.0)))
        with pyro.plate("data", data.shape[0]):
            pyro.sample("obs", dist.Bernoulli(p), obs=data)

    def guide(data: torch.Tensor) -> None:
        a = pyro.param("a", torch.tensor(3.0), constraint=dist.constraints.positive)
        pyro.sample("p", dist.Beta(a, torch.tensor(2.0)))

    elbo = Trace_ELBO()
    return of_function(
        lambda data: elbo.loss(model, guide, data), lambda batch: {"data": (torch.rand(batch) > 0.5).float()}, (8, 10, 12)
    )


@library
def pyro_distributions() -> Program:
    import pyro.distributions as dist

    def densities(x: torch.Tensor) -> Any:
        mixture = dist.MixtureOfDiagNormals(torch.zeros(3, 2), torch.ones(3, 2), torch.zeros(3))
        return (
            dist.Normal(0.0, 1.0).expand(x.shape).to_event(1).log_prob(x),
            mixture.log_prob(x),
            dist.Delta(x).log_prob(x),
            dist.MaskedMixture(x[:, 0] > 0, dist.Normal(0.0, 1.0), dist.Normal(1.0, 2.0)).log_prob(x[:, 1]),
        )

    return of_function(densities, lambda batch: {"x": torch.randn(batch, 2)}, (4, 6, 8))


@library
def torch_distributions() -> Program:
    import torch.distributions as d

    def densities(x: torch.Tensor) -> Any:
        mixture = d.MixtureSameFamily(d.Categorical(logits=x), d.Normal(x, x.exp()))
        flow = d.TransformedDistribution(
            d.Normal(torch.zeros(3), torch.ones(3)), [d.TanhTransform(), d.AffineTransform(1.0, 2.0)]
        )
        return (
            mixture.log_prob(x[:, 0]),
            d.kl_divergence(d.Normal(x, 1.0), d.Normal(0.0, 2.0)),
            flow.rsample((2,)),
            d.Dirichlet(x.exp()).entropy(),
            d.MultivariateNormal(x, torch.eye(3)).log_prob(x * 2),
            d.Independent(d.Laplace(x, 1.0), 1).log_prob(x),
            d.RelaxedBernoulli(torch.tensor(0.5), logits=x).rsample(),
        )

    return of_function(densities, lambda batch: {"x": torch.randn(batch, 3)}, (4, 6, 8))


@library
def zuko_spline_flow() -> Program:
    import zuko

    flow = zuko.flows.NSF(3, 2, transforms=2, hidden_features=(16, 16))

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.flow = flow

        def forward(self, x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
            return -self.flow(c).log_prob(x)

    return of_training(Loss(), lambda batch: {"x": torch.randn(batch, 3), "c": torch.randn(batch, 2)}, (4, 6, 8))


@library
def nflows_maf() -> Program:
    from nflows.distributions.normal import StandardNormal
    from nflows.flows.base import Flow
    from nflows.transforms.autoregressive import MaskedAffineAutoregressiveTransform
    from nflows.transforms.base import CompositeTransform
    from nflows.transforms.permutations import ReversePermutation

    chain = [each for _ in range(2) for each in (ReversePermutation(3), MaskedAffineAutoregressiveTransform(3, 8))]
    flow = Flow(CompositeTransform(chain), StandardNormal([3]))

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.flow = flow

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return -self.flow.log_prob(inputs=x)

    return of_training(Loss(), lambda batch: {"x": torch.randn(batch, 3)}, (4, 6, 8))


@library
def normflows_realnvp() -> Program:
    import normflows as nf

    flows = []
    for _ in range(2):
        flows += [nf.flows.AffineCouplingBlock(nf.nets.MLP([1, 16, 2], init_zeros=True)), nf.flows.Permute(2, mode="swap")]
    model = nf.NormalizingFlow(nf.distributions.DiagGaussian(2), flows)

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.model.forward_kld(x)

    return of_training(Loss(), lambda batch: {"x": torch.randn(batch, 2)}, (4, 6, 8))


# -- differential equations, geometry, equivariance --------------------------------------------------------------------


@library
def torchsde_euler() -> Program:
    import torchsde

    class SDE(nn.Module):
        noise_type, sde_type = "diagonal", "ito"

        def __init__(self) -> None:
            super().__init__()
            self.mu, self.sigma = nn.Linear(3, 3), nn.Linear(3, 3)

        def f(self, t: Any, y: torch.Tensor) -> torch.Tensor:
            return self.mu(y)

        def g(self, t: Any, y: torch.Tensor) -> torch.Tensor:
            return self.sigma(y).sigmoid()

    sde = SDE()

    def solve(y: torch.Tensor) -> torch.Tensor:
        noise = torchsde.BrownianInterval(0.0, 1.0, size=tuple(y.shape), entropy=1)
        return torchsde.sdeint(sde, y, torch.linspace(0, 1, 3), bm=noise, method="euler", dt=0.25)

    return of_function(solve, lambda batch: {"y": torch.randn(batch, 3)})


@library
def torchcde_spline() -> Program:
    import torchcde

    def spline(x: torch.Tensor) -> Any:
        path = torchcde.CubicSpline(torchcde.hermite_cubic_coefficients_with_backward_differences(x))
        return path.evaluate(0.5), path.derivative(1.5)

    return of_function(spline, lambda batch: {"x": torch.randn(batch, 6, 2)})


@library
def torchdyn_node() -> Program:
    from torchdyn.core import NeuralODE

    node = NeuralODE(nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2)), solver="rk4", sensitivity="autograd")
    span = torch.linspace(0, 1, 5)
    return Program(lambda x: node(x, span), lambda batch: {"x": torch.randn(batch, 2)})


@library
def torchdiffeq_dopri5() -> Program:
    from torchdiffeq import odeint

    net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
    times = torch.linspace(0, 1, 3)
    return of_function(lambda y: odeint(lambda t, y: net(y), y, times), lambda batch: {"y": torch.randn(batch, 2)})


@library
def geoopt_poincare() -> Program:
    import geoopt

    ball = geoopt.PoincareBall(c=1.0)

    def walk(x: torch.Tensor, y: torch.Tensor) -> Any:
        a, b = ball.expmap0(x), ball.expmap0(y)
        return ball.dist(a, b), ball.mobius_add(a, b), ball.logmap(a, b), ball.projx(a * 3)

    return of_function(walk, lambda batch: {"x": torch.randn(batch, 4), "y": torch.randn(batch, 4)})


@library
def geoopt_riemannian_adam() -> Program:
    import geoopt

    ball = geoopt.PoincareBall()
    point = geoopt.ManifoldParameter(torch.tensor([[0.1, 0.2]]), manifold=ball)
    optimizer = geoopt.optim.RiemannianAdam([point], lr=0.1)

    def step(x: torch.Tensor) -> Any:
        optimizer.zero_grad()
        loss = ball.dist(point, ball.expmap0(x)).sum()
        loss.backward()
        optimizer.step()
        return loss.detach(), point.detach().clone()

    return of_function(step, lambda batch: {"x": torch.randn(batch, 2)}, needs_grad=True)


@library
def e3nn_tensor_product() -> Program:
    from e3nn import o3

    first = o3.Irreps("4x0e + 2x1o")
    product = o3.FullyConnectedTensorProduct(first, o3.Irreps("1x0e + 1x1o"), first)
    linear = o3.Linear(first, first)

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.product, self.linear = product, linear

        def forward(self, x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return self.linear(self.product(x, o3.spherical_harmonics([0, 1], v, normalize=True)))

    return of_model(Layer(), lambda batch: {"x": torch.randn(batch, 10), "v": torch.randn(batch, 3)}, (4, 6, 8))


@library
def e3nn_gate() -> Program:
    from e3nn.nn import BatchNorm, Gate

    gate = Gate("4x0e", [torch.relu], "2x0e", [torch.sigmoid], "2x1o")
    return of_model(
        nn.Sequential(gate, BatchNorm(gate.irreps_out)),
        lambda batch: {"input": torch.randn(batch, gate.irreps_in.dim)},
        (4, 6, 8),
    )


@library
def egnn_layer() -> Program:
    from egnn_pytorch import EGNN

    return of_model(
        EGNN(dim=16, num_nearest_neighbors=4),
        lambda batch: {"feats": torch.randn(batch, 10, 16), "coors": torch.randn(batch, 10, 3)},
    )


@library
def invariant_point_attention() -> Program:
    from invariant_point_attention import IPABlock

    def inputs(batch: int) -> Arguments:
        return {
            "x": torch.randn(batch, 8, 32),
            "pairwise_repr": torch.randn(batch, 8, 8, 16),
            "mask": torch.ones(batch, 8).bool(),
            "rotations": torch.eye(3).expand(batch, 8, 3, 3).clone(),
            "translations": torch.zeros(batch, 8, 3),
        }

    return of_model(IPABlock(dim=32, heads=2, require_pairwise_repr=True, pairwise_repr_dim=16), inputs)


@library
def deepxde_fnn() -> Program:
    import os

    os.environ["DDE_BACKEND"] = "pytorch"
    import deepxde as dde

    net = dde.nn.FNN([2, 16, 16, 1], "tanh", "Glorot normal")

    def residual(x: torch.Tensor) -> Any:
        x = x.requires_grad_()
        y = net(x)
        slope = torch.autograd.grad(y.sum(), x, create_graph=True)[0]
        return y, slope, torch.autograd.grad(slope[:, 0].sum(), x, create_graph=True)[0]

    return of_function(residual, lambda batch: {"x": torch.randn(batch, 2)}, (8, 10, 12), needs_grad=True)


@library
def neuralop_fno() -> Program:
    from neuralop.models import FNO

    return of_model(FNO(n_modes=(4, 4), in_channels=1, out_channels=1, hidden_channels=8, n_layers=2), images_of(16, 1))


# -- graphs ------------------------------------------------------------------------------------------------------------


def _pyg(name: str, make: Callable[[Any], nn.Module]) -> None:
    def build() -> Program:
        import torch_geometric.nn as gnn

        return of_model(make(gnn), _graph, (32, 48, 64))

    LIBRARIES[f"pyg_{name}"] = build


_pyg("gatv2", lambda gnn: gnn.GATv2Conv(8, 4, heads=2))
_pyg("transformer_conv", lambda gnn: gnn.TransformerConv(8, 4, heads=2))
_pyg("sage_jk", lambda gnn: gnn.GraphSAGE(8, 16, 2, 5, jk="cat"))
_pyg("chebconv", lambda gnn: gnn.ChebConv(8, 4, K=3))
_pyg(
    "pna",
    lambda gnn: gnn.PNAConv(8, 8, ["mean", "max", "std"], ["identity", "amplification"], torch.tensor([0, 1, 4, 8, 4, 2])),
)
_pyg("appnp", lambda gnn: gnn.APPNP(3, 0.1))
_pyg("arma", lambda gnn: gnn.ARMAConv(8, 4, num_stacks=2))
_pyg("gps", lambda gnn: gnn.GPSConv(8, gnn.GINConv(nn.Sequential(nn.Linear(8, 8), nn.ReLU())), heads=2))
_pyg(
    "graph_norm", lambda gnn: gnn.Sequential("x, edge_index", [(gnn.SAGEConv(8, 8), "x, edge_index -> x"), gnn.GraphNorm(8)])
)


@library
def pyg_pooling() -> Program:
    from torch_geometric.nn import SAGPooling, global_max_pool, global_mean_pool

    pool = SAGPooling(8)

    class Pool(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pool = pool

        def forward(self, x: torch.Tensor, edge_index: torch.Tensor, batch: torch.Tensor) -> Any:
            kept = self.pool(x, edge_index, batch=batch)
            return global_mean_pool(kept[0], kept[3]), global_max_pool(x, batch), kept[5]

    return of_model(Pool(), lambda count: _graph(8 * count) | {"batch": torch.arange(count).repeat_interleave(8)})


@library
def pyg_hetero() -> Program:
    from torch_geometric.nn import HeteroConv, SAGEConv

    model = HeteroConv({("a", "to", "b"): SAGEConv((8, 8), 4), ("b", "back", "a"): SAGEConv((8, 8), 4)}, aggr="sum")

    def inputs(count: int) -> Arguments:
        edges = torch.randint(0, count, (2, 3 * count))
        return {
            "x_dict": {"a": torch.randn(count, 8), "b": torch.randn(count, 8)},
            "edge_index_dict": {("a", "to", "b"): edges, ("b", "back", "a"): edges.flip(0)},
        }

    return of_model(model, inputs, (16, 24, 32))


@library
def pyg_data_batch() -> Program:
    from torch_geometric.data import Batch, Data
    from torch_geometric.nn import GCNConv, global_mean_pool

    conv = GCNConv(8, 4)

    def forward(data: Any) -> torch.Tensor:
        return global_mean_pool(conv(data.x, data.edge_index).relu(), data.batch)

    return of_function(forward, lambda batch: {"data": Batch.from_data_list([Data(**_graph(6)) for _ in range(batch)])})
