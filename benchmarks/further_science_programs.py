"""The other programs of `--further`: pictures, graphs and robots, physics, learners by reward, second derivatives."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from benchmarks.further_package_programs import around, classes_of, further
from benchmarks.library_programs import images_of, of_function, of_model, of_training, tokens_of
from benchmarks.package_programs import rows_of
from benchmarks.programs import Arguments, Program

# -- pictures ----------------------------------------------------------------------------------------------------------


@further
def volumes_timm() -> Program:
    import timm_3d

    model = timm_3d.create_model("resnet18", pretrained=False, num_classes=3, in_chans=1)
    return of_model(model, lambda batch: {"x": torch.randn(batch, 1, 32, 32, 32)}, (1, 2, 3))


@further
def compressai_hyperprior() -> Program:
    from compressai.losses import RateDistortionLoss
    from compressai.models import ScaleHyperprior

    loss = RateDistortionLoss(lmbda=0.01)

    def train(self: Any, x: torch.Tensor) -> Any:
        out = self.net(x)
        return loss(out, x)["loss"], self.net.aux_loss(), out["x_hat"]

    return around(train, lambda batch: {"x": torch.rand(batch, 3, 64, 64)}, (1, 2, 3), net=ScaleHyperprior(8, 12))


@further
def deepinv_restoration() -> Program:
    import deepinv as dinv

    physics = dinv.physics.Inpainting((3, 16, 16), mask=0.7)
    prior = dinv.optim.PnP(dinv.models.DnCNN(3, 3, depth=3, nf=8, pretrained=None))
    restoration = dinv.optim.optim_builder("PGD", prior=prior, data_fidelity=dinv.optim.L2(), max_iter=3,
                                           params_algo={"stepsize": 1.0, "g_param": 0.05})
    return of_function(lambda x: restoration(physics(x), physics), images_of(16))


@further
def effdet_bench() -> Program:
    from effdet import DetBenchTrain, EfficientDet, get_efficientdet_config

    config = get_efficientdet_config("tf_efficientdet_lite0")
    config.update({"num_classes": 3, "image_size": (128, 128), "fpn_channels": 16, "fpn_cell_repeats": 1,
                   "box_class_repeats": 1})
    bench = DetBenchTrain(EfficientDet(config, pretrained_backbone=False))

    def inputs(batch: int) -> Arguments:
        boxes = torch.tensor([[10.0, 10.0, 60.0, 60.0], [30.0, 40.0, 100.0, 90.0]]).expand(batch, 2, 4)
        return {"x": torch.randn(batch, 3, 128, 128), "target": {"bbox": boxes, "cls": torch.ones(batch, 2)}}

    return of_training(bench, inputs)


@further
def pyiqa_metrics() -> Program:
    from pyiqa.archs.gmsd_arch import GMSD
    from pyiqa.archs.nlpd_arch import NLPD
    from pyiqa.archs.ssim_arch import SSIM

    metrics = [GMSD(), NLPD(), SSIM()]
    return of_function(lambda x, y: [metric(x, y) for metric in metrics],
                       lambda batch: {"x": torch.rand(batch, 3, 64, 64), "y": torch.rand(batch, 3, 64, 64)})


@further
def fastmri_varnet() -> Program:
    from fastmri.models import VarNet

    model = VarNet(num_cascades=2, sens_chans=4, sens_pools=2, chans=4, pools=2)

    def inputs(batch: int) -> Arguments:
        mask = torch.zeros(1, 1, 1, 32, 1).bool()
        mask[..., ::2, :] = mask[..., 12:20, :] = True
        return {"masked_kspace": torch.randn(batch, 3, 32, 32, 2) * mask, "mask": mask.expand(batch, -1, -1, -1, -1)}

    return of_training(model, inputs)


@further
def doctr_recognition() -> Program:
    from doctr.models.recognition import crnn_mobilenet_v3_small

    model = crnn_mobilenet_v3_small(pretrained=False, pretrained_backbone=False, vocab="abcdef")
    return of_model(model, lambda batch: {"x": torch.rand(batch, 3, 32, 64), "return_model_output": True, "return_preds": True})


@further
def byol_pytorch() -> Program:
    from byol_pytorch import BYOL

    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    learner = BYOL(net, image_size=16, hidden_layer=-2, projection_size=8, projection_hidden_size=16, augment_fn=nn.Identity(),
                   use_simplicial_embeddings=False)
    return of_training(learner, images_of(16))


@further
def pixel_contrast() -> Program:
    from pixel_level_contrastive_learning import PixelCL

    net = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(4))
    learner = PixelCL(net, image_size=32, hidden_layer_pixel=1, hidden_layer_instance=2, projection_size=8,
                      projection_hidden_size=16, augment_fn=nn.Identity())
    return of_training(learner, images_of(32))


@further
def torchgan_layers() -> Program:
    from torchgan.layers import MinibatchDiscrimination1d, SelfAttention2d, SpectralNorm2d
    from torchgan.losses import wasserstein_gradient_penalty
    from torchgan.models import DCGANDiscriminator, DCGANGenerator

    def train(self: Any, z: torch.Tensor) -> Any:
        images = self.g(z)
        score = self.d(images)
        penalty = wasserstein_gradient_penalty(images, score)
        return score, penalty, self.attend(images), self.mini(images.flatten(1)[:, :8]), self.norm(images)

    return around(train, rows_of(8, "z"), (4, 6, 8), True, g=DCGANGenerator(8, 32, 3, 4), d=DCGANDiscriminator(32, 3, 4),
                  attend=SelfAttention2d(3, 8), mini=MinibatchDiscrimination1d(8, 4), norm=SpectralNorm2d(nn.Conv2d(3, 4, 3)))


# -- graphs, spaces, robots --------------------------------------------------------------------------------------------


@further
def pygod_dominant() -> Program:
    from pygod.nn import DOMINANTBase

    def loss(self: Any, x: torch.Tensor, edges: torch.Tensor, adjacent: torch.Tensor) -> Any:
        features, structure = self.model(x, edges)
        return self.model.loss_func(x, features, adjacent, structure, 0.5)

    def inputs(batch: int) -> Arguments:
        nodes = 6 * batch
        return {"x": torch.randn(nodes, 8), "edges": torch.randint(0, nodes, (2, 4 * nodes)),
                "adjacent": (torch.rand(nodes, nodes) > 0.7).float()}

    return around(loss, inputs, model=DOMINANTBase(8, 16, num_layers=4))


@further
def pytorch_kinematics() -> Program:
    import pytorch_kinematics as pk

    joint = '<joint name="j{0}" type="revolute"><parent link="l{0}"/><child link="l{1}"/><axis xyz="0 {2} {3}"/>' \
            '<origin xyz="0 0 0.3" rpy="0 0.1 0"/></joint>'
    links = "".join(f'<link name="l{i}"/>' for i in range(4))
    joints = "".join(joint.format(i, i + 1, i % 2, 1 - i % 2) for i in range(3))
    chain = pk.build_serial_chain_from_urdf(f'<robot name="arm">{links}{joints}</robot>', "l3")

    def poses(self: Any, x: torch.Tensor) -> Any:
        angles = self.linear(x)
        return chain.forward_kinematics(angles).get_matrix(), chain.jacobian(angles)

    return around(poses, rows_of(8), linear=nn.Linear(8, 3))


# -- physics, tensors, circuits ----------------------------------------------------------------------------------------


@further
def deepwave_scalar() -> Program:
    import deepwave

    def shot(self: Any, x: torch.Tensor) -> Any:
        out = deepwave.scalar(
            self.speed, grid_spacing=4.0, dt=0.001, source_amplitudes=x.unsqueeze(1),
            source_locations=torch.tensor([[[3, 3]]]).expand(x.shape[0], 1, 2),
            receiver_locations=torch.tensor([[[3, 9]]]).expand(x.shape[0], 1, 2), pml_width=2, pml_freq=25.0, max_vel=1500.0,
            python_backend=True,
        )
        return out[-1]

    return around(shot, rows_of(10), (1, 2, 3), speed=nn.Parameter(torch.full((12, 12), 1500.0)))


@further
def neurodiffeq_residual() -> Program:
    from neurodiffeq import diff
    from neurodiffeq.conditions import IVP
    from neurodiffeq.networks import FCNN

    condition = IVP(t_0=0.0, u_0=1.0, u_0_prime=0.0)

    def residual(self: Any, t: torch.Tensor) -> Any:
        t = t.requires_grad_()
        u = condition.enforce(self.net, t)
        return (diff(u, t, order=2) + u).square().mean()

    return around(residual, lambda batch: {"t": torch.rand(batch, 1)}, (4, 6, 8), True, net=FCNN(1, 1, hidden_units=(16, 16)))


@further
def torchphysics_fcn() -> Program:
    import torchphysics as tp

    space, out = tp.spaces.R2("x"), tp.spaces.R1("u")
    model = tp.models.FCN(space, out, hidden=(16,))

    def residual(self: Any, x: torch.Tensor) -> Any:
        x = x.requires_grad_()
        u = self.model(tp.spaces.Points(x, space)).as_tensor
        return tp.utils.laplacian(u, x).square().mean(), tp.utils.grad(u, x)

    return around(residual, rows_of(2), (4, 6, 8), True, model=model)


@further
def pina_laplacian() -> Program:
    from pina import LabelTensor
    from pina.model import FeedForward
    from pina.operator import laplacian

    def residual(self: Any, x: torch.Tensor) -> Any:
        points = LabelTensor(x, ["x", "y"]).requires_grad_()
        u = LabelTensor(self.model(points), ["u"])
        return laplacian(u, points, components=["u"], d=["x", "y"]).tensor.square().mean()

    return around(residual, rows_of(2), (4, 6, 8), True, model=FeedForward(2, 1, inner_size=16))


@further
def phiflow_advection() -> Program:
    from phi.torch.flow import Box, CenteredGrid, StaggeredGrid, advect, batch, diffuse, math, spatial

    def step(x: torch.Tensor) -> Any:
        values = math.wrap(x, batch("b"), spatial("x,y"))
        smoke = CenteredGrid(values, 0, x=8, y=8, bounds=Box(x=8, y=8))
        wind = StaggeredGrid((1.0, 0.5), 0, x=8, y=8, bounds=Box(x=8, y=8))
        moved = diffuse.explicit(advect.semi_lagrangian(smoke, wind, 1.0), 0.1, 1.0)
        return moved.values.native("b,x,y")

    return of_function(step, lambda batch: {"x": torch.rand(batch, 8, 8)})


# -- learners by reward, second derivatives, recommenders --------------------------------------------------------------


@further
def bindsnet_spikes() -> Program:
    from bindsnet.network import Network
    from bindsnet.network.nodes import Input, LIFNodes
    from bindsnet.network.topology import Connection

    network = Network(learning=False)
    network.add_layer(Input(n=8), "in")
    network.add_layer(LIFNodes(n=4), "out")
    network.add_connection(Connection(network.layers["in"], network.layers["out"], w=torch.rand(8, 4)), "in", "out")

    def run(x: torch.Tensor) -> Any:
        network.reset_state_variables()
        network.run(inputs={"in": (x > 0).float().unsqueeze(1)}, time=x.shape[0])
        return network.layers["out"].v, network.layers["out"].s

    return of_function(run, rows_of(8), (4, 6, 8))


@further
def rsl_rl_model() -> Program:
    from rsl_rl.models import MLPModel
    from tensordict import TensorDict

    groups = {"actor": ["policy"]}
    example = TensorDict({"policy": torch.zeros(2, 8)}, [2])
    model = MLPModel(example, groups, "actor", 3, [16], obs_normalization=True)
    return around(lambda self, x: self.model(TensorDict({"policy": x}, [x.shape[0]])), model=model)


@further
def rl_games_network() -> Program:
    from rl_games.algos_torch.network_builder import A2CBuilder
    from rl_games.algos_torch.running_mean_std import RunningMeanStd

    builder = A2CBuilder()
    builder.load({
        "separate": False, "space": {"continuous": {
            "mu_activation": "None", "sigma_activation": "None", "mu_init": {"name": "default"},
            "sigma_init": {"name": "const_initializer", "val": 0}, "fixed_sigma": True}},
        "mlp": {"units": [16], "activation": "elu", "initializer": {"name": "default"}},
    })
    net = builder.build("a2c", actions_num=2, input_shape=(8,), num_seqs=1, value_size=1)
    return around(lambda self, x: self.net({"obs": self.scaler(x)}), net=net, scaler=RunningMeanStd((8,)))


@further
def d3rlpy_policies() -> Program:
    from d3rlpy.models.torch.encoders import VectorEncoder, VectorEncoderWithAction
    from d3rlpy.models.torch.policies import NormalPolicy, build_squashed_gaussian_distribution
    from d3rlpy.models.torch.q_functions.mean_q_function import ContinuousMeanQFunction

    def forward(self: Any, x: torch.Tensor) -> Any:
        distribution = build_squashed_gaussian_distribution(self.policy(x))
        action, log_prob = distribution.sample_with_log_prob()
        return self.q(x, action).q_value, log_prob

    return around(forward, policy=NormalPolicy(VectorEncoder((8,), [16]), 16, 2, -4.0, 2.0, False),
                  q=ContinuousMeanQFunction(VectorEncoderWithAction((8,), 2, [16]), 16))


@further
def backpack_per_sample() -> Program:
    from backpack import backpack, extend
    from backpack.extensions import BatchGrad

    net, loss = extend(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))), extend(nn.CrossEntropyLoss())

    def train(x: torch.Tensor, y: torch.Tensor) -> Any:
        net.zero_grad()
        with backpack(BatchGrad()):
            loss(net(x), y).backward()
        return [weight.grad_batch for weight in net.parameters()]

    return of_function(train, classes_of(), (4, 6, 8), needs_grad=True)


@further
def asdl_fisher() -> Program:
    from asdl import FISHER_EMP, FisherConfig, get_fisher_maker

    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))

    def curvature(x: torch.Tensor, y: torch.Tensor) -> Any:
        maker = get_fisher_maker(net, FisherConfig(fisher_type=FISHER_EMP, fisher_shapes=["diag"], data_size=x.shape[0]))
        maker.setup_model_call(net, x)
        maker.setup_loss_call(nn.functional.cross_entropy, maker.setup_model_call(net, x), y)
        return maker.forward_and_backward()

    return of_function(curvature, classes_of(), (4, 6, 8), needs_grad=True)


@further
def curvlinops_hessian() -> Program:
    from curvlinops import GGNLinearOperator, HessianLinearOperator

    net, loss = nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 2)), nn.MSELoss()
    weights = list(net.parameters())

    def products(x: torch.Tensor) -> Any:
        data = [(x, x[:, :2])]
        vector = torch.ones(sum(weight.numel() for weight in weights))
        return [kind(net, loss, weights, data, check_deterministic=False) @ vector
                for kind in (HessianLinearOperator, GGNLinearOperator)]

    return of_function(products, rows_of(), (4, 6, 8), needs_grad=True)


@further
def recbole_layers() -> Program:
    from recbole.model.layers import BaseFactorizationMachine, MLPLayers, TransformerEncoder
    from recbole.model.loss import BPRLoss, EmbLoss

    bpr, penalty = BPRLoss(), EmbLoss()

    def train(self: Any, x: torch.Tensor) -> Any:
        hidden = self.encoder(self.embed(x), torch.zeros(x.shape[0], 1, 1, x.shape[1]))[-1]
        score = self.mlp(hidden[:, -1])
        return bpr(score, -score), penalty(hidden), self.fm(hidden)

    return around(train, tokens_of(6, 50), embed=nn.Embedding(50, 16), mlp=MLPLayers([16, 8, 1]), fm=BaseFactorizationMachine(),
                  encoder=TransformerEncoder(n_layers=1, hidden_size=16, inner_size=32, hidden_dropout_prob=0.0,
                                             attn_dropout_prob=0.0))


@further
def ignite_training() -> Program:
    from ignite.metrics import Accuracy, ConfusionMatrix

    def metrics(self: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        logits = self.linear(x)
        accuracy, confusion = Accuracy(), ConfusionMatrix(num_classes=3)
        for metric in (accuracy, confusion):
            metric.reset()
            metric.update((logits, y))
        return logits, accuracy.compute(), confusion.compute()

    return around(metrics, classes_of(), (4, 6, 8), linear=nn.Linear(8, 3))


@further
def metaformer() -> Program:
    from x_metaformer import CAFormer

    model = CAFormer(in_channels=3, depths=(1, 1, 1, 1), dims=(8, 8, 16, 16), init_kernel_size=3, init_stride=2,
                     drop_path_rate=0.0, dropout=0.0)
    return of_model(model, images_of(64))


@further
def fast_feedforward() -> Program:
    from fastfeedforward import FFF

    def forward(self: Any, x: torch.Tensor) -> Any:
        return self.fff(x, use_hard_decisions=False), self.fff(x, use_hard_decisions=True)

    return around(forward, fff=FFF(8, 4, 3, depth=2))


@further
def liquid_net() -> Program:
    from liquidnet.main import LiquidNet

    net = LiquidNet(8)
    return around(lambda self, x: self.net(x, torch.zeros(x.shape[0], 8)), net=net)


@further
def netcal_penalties() -> Program:
    from netcal.regularization import DCAPenalty, MMCEPenalty

    first, second = DCAPenalty(weight=0.5), MMCEPenalty(weight=0.5)

    def loss(self: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        scores = self.linear(x).softmax(-1)
        return first(scores, y), second(scores, y)

    return around(loss, classes_of(), (4, 6, 8), linear=nn.Linear(8, 3))
