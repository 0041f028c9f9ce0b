"""The other programs of `--packages`: packages made of torch that no list had yet, small and with random weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from benchmarks.library_programs import images_of, of_function, of_model, of_training, sequences_of, tokens_of
from benchmarks.package_programs import around, package, rows_of
from benchmarks.programs import Arguments, Program

# -- series and sound --------------------------------------------------------------------------------------------------


@package("gluonts")
def gluonts_deepar() -> Program:
    from gluonts.torch.model.deepar.module import DeepARModel

    model = DeepARModel("D", 12, 4, num_layers=1, hidden_size=8, dropout_rate=0.0, lags_seq=[1, 2, 3], num_parallel_samples=2)

    def inputs(batch: int) -> Arguments:
        past = 12 + 3
        return {
            "feat_static_cat": torch.zeros(batch, 1, dtype=torch.long), "feat_static_real": torch.randn(batch, 1),
            "past_time_feat": torch.randn(batch, past, 1), "past_target": torch.randn(batch, past),
            "past_observed_values": torch.ones(batch, past), "future_time_feat": torch.randn(batch, 4, 1),
            "future_target": torch.randn(batch, 4), "future_observed_values": torch.ones(batch, 4),
        }

    return of_training(around(lambda self, **arguments: self.model.loss(**arguments), model=model).fn, inputs)


@package("gluonts")
def gluonts_patchtst() -> Program:
    from gluonts.torch.model.patch_tst.module import PatchTSTModel

    model = PatchTSTModel(
        prediction_length=4, context_length=16, patch_len=4, stride=2, padding_patch="end", d_model=8, nhead=2,
        dim_feedforward=16, dropout=0.0, activation="relu", norm_first=False, num_encoder_layers=1, scaling="std",
        num_feat_dynamic_real=0,
    )
    return of_model(model, lambda batch: {"past_target": torch.randn(batch, 16), "past_observed_values": torch.ones(batch, 16)})


@package("nbeats-pytorch")
def nbeats() -> Program:
    from nbeats_pytorch.model import NBeatsNet

    net = NBeatsNet(
        device=torch.device("cpu"), stack_types=(NBeatsNet.TREND_BLOCK, NBeatsNet.SEASONALITY_BLOCK, NBeatsNet.GENERIC_BLOCK),
        forecast_length=4, backcast_length=12, thetas_dim=(2, 4, 4), nb_blocks_per_stack=1, hidden_layer_units=16,
    )
    return of_training(net, lambda batch: {"backcast": torch.randn(batch, 12)})


@package("chronos-forecasting")
def chronos_bolt() -> Program:
    from chronos.chronos_bolt import ChronosBoltModelForForecasting
    from transformers import T5Config

    config = T5Config(d_model=16, d_kv=8, d_ff=32, num_layers=1, num_decoder_layers=1, num_heads=2, vocab_size=2,
                      decoder_start_token_id=0, feed_forward_proj="relu", dropout_rate=0.0)
    config.chronos_config = {"context_length": 32, "prediction_length": 8, "input_patch_size": 4, "input_patch_stride": 4,
                             "quantiles": [0.1, 0.5, 0.9], "use_reg_token": True}
    return of_model(ChronosBoltModelForForecasting(config), lambda batch: {"context": torch.randn(batch, 24)})


@package("demucs")
def demucs_htdemucs() -> Program:
    from demucs.htdemucs import HTDemucs

    model = HTDemucs(["a", "b"], audio_channels=1, channels=8, nfft=256, depth=2, t_layers=1, t_heads=2, segment=0.5,
                     samplerate=4096, dconv_mode=0, use_train_segment=False)
    return of_model(model, lambda batch: {"mix": torch.randn(batch, 1, 2048)}, (1, 2, 3))


@package("openunmix")
def open_unmix() -> Program:
    from openunmix.model import OpenUnmix

    return of_training(OpenUnmix(nb_bins=33, nb_channels=2, hidden_size=16, nb_layers=1),
                       lambda batch: {"x": torch.rand(batch, 2, 33, 10)})


@package("diffsptk")
def sound_diffsptk() -> Program:
    import diffsptk

    def analysis(self: Any, x: torch.Tensor) -> Any:
        spectrum = self.stft(x)
        return self.cepstrum(spectrum), self.bank(spectrum), self.lpc(self.frame(x))

    return around(
        analysis, lambda batch: {"x": torch.randn(batch, 400)},
        stft=diffsptk.STFT(frame_length=64, frame_period=32, fft_length=64), frame=diffsptk.Frame(64, 32),
        cepstrum=diffsptk.MelCepstralAnalysis(fft_length=64, cep_order=8, alpha=0.4, n_iter=2),
        bank=diffsptk.MFCC(fft_length=64, mfcc_order=6, n_channel=12, sample_rate=8000), lpc=diffsptk.LPC(64, 6),
    )


@package("dasp-pytorch")
def sound_dasp() -> Program:
    import dasp_pytorch

    def effects(self: Any, x: torch.Tensor) -> Any:
        gains = self.gains.sigmoid().expand(x.shape[0], -1)
        loud = dasp_pytorch.functional.gain(x, 16000, gains[:, 0] * 6)
        driven = dasp_pytorch.functional.distortion(loud, 16000, gains[:, 1] * 12)
        return dasp_pytorch.functional.compressor(
            driven, 16000, threshold_db=-20 * gains[:, 0], ratio=1 + gains[:, 1], attack_ms=5 + gains[:, 0],
            release_ms=50 + gains[:, 1], knee_db=3 + gains[:, 0], makeup_gain_db=gains[:, 1],
        )

    return around(effects, lambda batch: {"x": torch.randn(batch, 1, 512)}, gains=nn.Parameter(torch.randn(1, 2)))


@package("torchlibrosa")
def sound_torchlibrosa() -> Program:
    from torchlibrosa.augmentation import SpecAugmentation
    from torchlibrosa.stft import LogmelFilterBank, Spectrogram

    model = nn.Sequential(Spectrogram(n_fft=64, hop_length=32),
                          LogmelFilterBank(sr=8000, n_fft=64, n_mels=16, fmin=50, fmax=3000),
                          SpecAugmentation(time_drop_width=2, time_stripes_num=1, freq_drop_width=2, freq_stripes_num=1))
    return of_model(model, lambda batch: {"input": torch.randn(batch, 512)})


@package("torch-stoi")
def loss_stoi() -> Program:
    from torch_stoi import NegSTOILoss

    return of_model(NegSTOILoss(sample_rate=10000, do_resample=False),
                    lambda batch: {"est_targets": torch.randn(batch, 8000), "targets": torch.randn(batch, 8000)}, (1, 2, 3))


@package("vocos")
def vocos_vocoder() -> Program:
    from vocos.heads import ISTFTHead
    from vocos.models import VocosBackbone

    model = nn.Sequential(VocosBackbone(input_channels=8, dim=16, intermediate_dim=32, num_layers=2), ISTFTHead(16, 32, 8))
    return of_model(model, lambda batch: {"input": torch.randn(batch, 8, 12)})


# -- pictures ----------------------------------------------------------------------------------------------------------


@package("piq")
def losses_piq() -> Program:
    import piq

    def losses(x: torch.Tensor, y: torch.Tensor) -> Any:
        return (piq.ssim(x, y, kernel_size=5), piq.vif_p(x, y), piq.gmsd(x, y), piq.haarpsi(x, y), piq.mdsi(x, y),
                piq.total_variation(x), piq.psnr(x, y), piq.fsim(x, y), piq.srsim(x, y))

    return of_function(losses, lambda batch: {"x": torch.rand(batch, 3, 48, 48), "y": torch.rand(batch, 3, 48, 48)}, (1, 2, 3))


@package("pytorch-wavelets")
def wavelets() -> Program:
    from pytorch_wavelets import DTCWTForward, DTCWTInverse, DWTForward, DWTInverse

    def both(self: Any, x: torch.Tensor) -> Any:
        low, high = self.forth(x)
        low2, high2 = self.dual(x)
        return self.back((low, [h * 0.5 for h in high])), self.undual((low2, high2)), high

    return around(both, images_of(16), forth=DWTForward(J=2, wave="db2", mode="zero"), back=DWTInverse(wave="db2", mode="zero"),
                  dual=DTCWTForward(J=2), undual=DTCWTInverse())


@package("unet")
def unet_3d() -> Program:
    from unet import UNet3D

    return of_model(UNet3D(in_channels=1, out_classes=2, num_encoding_blocks=2, out_channels_first_layer=4,
                           normalization="batch", padding=True), lambda batch: {"x": torch.randn(batch, 1, 8, 8, 8)})


def _spandrel(name: str, make: Any, argument: str = "x") -> None:
    def build() -> Program:
        import importlib

        architecture = importlib.import_module(f"spandrel.architectures.{name}")
        return of_model(make(architecture), images_of(16, name=argument), (1, 2, 3))

    build.__name__ = f"spandrel_{name.lower()}"
    package("spandrel")(build)


_spandrel("DAT", lambda m: m.DAT(img_size=16, embed_dim=32, split_size=[2, 4], depth=[1], num_heads=[2], expansion_factor=2,
                                 upscale=2))
_spandrel("HAT", lambda m: m.HAT(img_size=16, embed_dim=60, depths=(1,), num_heads=(2,), window_size=4, overlap_ratio=0.5,
                                 upscale=2, upsampler="pixelshuffle"))
_spandrel("NAFNet", lambda m: m.NAFNet(width=8, enc_blk_nums=[1, 1], middle_blk_num=1, dec_blk_nums=[1, 1]), "inp")
_spandrel("OmniSR", lambda m: m.OmniSR(num_feat=8, block_num=1, res_num=1, window_size=4, up_scale=2))
_spandrel("FDAT", lambda m: m.FDAT(embed_dim=16, num_groups=1, depth_per_group=1, num_heads=2, window_size=4, scale=2))


@package("pytorchcv")
def pytorchcv_models() -> Program:
    from pytorchcv.models.fdmobilenet import fdmobilenet_wd4

    return of_model(fdmobilenet_wd4(), images_of(224), (1, 2, 3))


@package("geffnet")
def geffnet_mixnet() -> Program:
    import geffnet

    return of_model(geffnet.create_model("mixnet_s", pretrained=False, num_classes=10), images_of(32))


@package("antialiased-cnns")
def antialiased() -> Program:
    import antialiased_cnns

    return of_model(antialiased_cnns.resnet18(pretrained=False, num_classes=10), images_of(64))


@package("pytorch-toolbelt")
def toolbelt_losses() -> Program:
    from pytorch_toolbelt import losses as tl
    from pytorch_toolbelt.inference import tta

    def training(self: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        out = tta.fliplr_image2mask(self.net, x)
        return self.dice(out, y), self.lovasz(out, y), self.focal(out, y), out

    def inputs(batch: int) -> Arguments:
        return {"x": torch.randn(batch, 3, 16, 16), "y": torch.randint(0, 2, (batch, 1, 16, 16)).float()}

    return around(training, inputs,
                  net=nn.Conv2d(3, 1, 3, padding=1), dice=tl.DiceLoss("binary"), lovasz=tl.BinaryLovaszLoss(),
                  focal=tl.BinaryFocalLoss())


@package("pytorchvideo")
def video_x3d() -> Program:
    from pytorchvideo.models.x3d import create_x3d

    return of_model(create_x3d(input_clip_length=4, input_crop_size=32, model_num_class=5, width_factor=1.0, depth_factor=1.0,
                               head_dim_out=64), lambda batch: {"x": torch.randn(batch, 3, 4, 32, 32)}, (1, 2, 3))


@package("grad-cam")
def explained_gradcam() -> Program:
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputSoftmaxTarget

    target = ClassifierOutputSoftmaxTarget(1)

    def forward(self: Any, x: torch.Tensor) -> Any:
        hidden = self.conv(x).relu()
        score = target(self.head(hidden.mean((2, 3)))[0])
        return score, hidden.mean(1)

    return around(forward, images_of(16), conv=nn.Conv2d(3, 4, 3), head=nn.Linear(4, 3))


@package("torchcam")
def explained_torchcam() -> Program:
    from torchcam.methods import CAM

    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)).eval()
    cam = CAM(model, target_layer="1", fc_layer="4", input_shape=(3, 16, 16))

    def explain(x: torch.Tensor) -> Any:
        return cam(1, model(x))

    return of_function(explain, images_of(16), (1, 2, 3))


# -- graphs, points, symmetry ------------------------------------------------------------------------------------------


@package("mace-torch", "e3nn")
def mace_potential() -> Program:
    from mace.modules.radial import BesselBasis, PolynomialCutoff

    def radial(self: Any, lengths: torch.Tensor) -> Any:
        return self.mix(self.basis(lengths) * self.cutoff(lengths))

    return around(radial, lambda batch: {"lengths": torch.rand(4 * batch, 1) * 4 + 0.5},
                  basis=BesselBasis(r_max=5.0, num_basis=8), cutoff=PolynomialCutoff(r_max=5.0), mix=nn.Linear(8, 4))


@package("point-transformer-pytorch")
def point_transformer() -> Program:
    from point_transformer_pytorch import PointTransformerLayer

    layer = PointTransformerLayer(dim=16, pos_mlp_hidden_dim=8, attn_mlp_hidden_mult=2, num_neighbors=4)
    return of_model(layer, lambda batch: {"x": torch.randn(batch, 10, 16), "pos": torch.randn(batch, 10, 3),
                                          "mask": torch.ones(batch, 10).bool()})


# -- flows, solvers, sorting -------------------------------------------------------------------------------------------


@package("FrEIA")
def flow_freia() -> Program:
    import FrEIA.framework as ff
    import FrEIA.modules as fm

    net = ff.SequenceINN(8)
    for _ in range(2):
        net.append(fm.AllInOneBlock, permute_soft=True,
                   subnet_constructor=lambda i, o: nn.Sequential(nn.Linear(i, 16), nn.ReLU(), nn.Linear(16, o)))
    return of_training(around(lambda self, x: self.net(x), net=net).fn, rows_of(), (4, 6, 8))


@package("glasflow")
def flow_glasflow() -> Program:
    from glasflow import CouplingNSF

    return around(lambda self, x: (self.flow.log_prob(x), self.flow.forward(x)),
                  flow=CouplingNSF(n_inputs=8, n_transforms=2, n_neurons=16, n_blocks_per_transform=1, num_bins=4))


@package("torchcfm")
def matching_torchcfm() -> Program:
    from torchcfm.conditional_flow_matching import VariancePreservingConditionalFlowMatcher
    from torchcfm.models import MLP

    matcher = VariancePreservingConditionalFlowMatcher(sigma=0.1)

    def loss(self: Any, x: torch.Tensor) -> Any:
        noise = torch.randn_like(x)
        t, xt, ut = matcher.sample_location_and_conditional_flow(noise, x)
        return ((self.net(torch.cat([xt, t[:, None]], -1)) - ut) ** 2).mean()

    return around(loss, net=MLP(dim=8, w=16, time_varying=True))


@package("flow-matching")
def matching_meta() -> Program:
    from flow_matching.path import CondOTProbPath, MixtureDiscreteProbPath
    from flow_matching.path.scheduler import PolynomialConvexScheduler

    path, discrete = CondOTProbPath(), MixtureDiscreteProbPath(scheduler=PolynomialConvexScheduler(n=2.0))

    def loss(self: Any, x: torch.Tensor, tokens: torch.Tensor) -> Any:
        t = torch.rand(x.shape[0])
        sample = path.sample(x_0=torch.randn_like(x), x_1=x, t=t)
        jump = discrete.sample(x_0=torch.zeros_like(tokens), x_1=tokens, t=t)
        return ((self.net(sample.x_t) - sample.dx_t) ** 2).mean(), jump.x_t

    return around(loss, lambda batch: {"x": torch.randn(batch, 8), "tokens": torch.randint(0, 9, (batch, 5))},
                  net=nn.Linear(8, 8))


@package("xitorch")
def solver_xitorch() -> Program:
    from xitorch import LinearOperator
    from xitorch.interpolate import Interp1D
    from xitorch.linalg import solve

    def forward(self: Any, x: torch.Tensor) -> Any:
        matrix = x.t() @ x + torch.eye(4)
        found = solve(LinearOperator.m(matrix, is_hermitian=True), self.right, method="exactsolve")
        return found, Interp1D(self.grid, self.values, method="linear")(x.sigmoid().flatten())

    return around(forward, rows_of(4), right=nn.Parameter(torch.randn(4, 1)), grid=nn.Parameter(torch.linspace(0, 1, 6), False),
                  values=nn.Parameter(torch.randn(6)))


@package("diffsort")
def sorted_diffsort() -> Program:
    from diffsort import DiffSortNet

    sorter = DiffSortNet("odd_even", size=8, steepness=5, device="cpu")
    return around(lambda self, x: sorter(self.linear(x)), linear=nn.Linear(8, 8))


@package("tntorch")
def tensors_tntorch() -> Program:
    import tntorch as tn

    def forward(x: torch.Tensor) -> Any:
        train = tn.Tensor(x, ranks_tt=3)
        return train.torch(), tn.dot(train, train)

    return of_function(forward, lambda batch: {"x": torch.randn(batch, 4, 4)}, (4, 5, 6))


@package("pymanopt")
def manifolds_pymanopt() -> Program:
    import numpy as np
    from pymanopt.manifolds import Sphere, Stiefel

    sphere, stiefel = Sphere(6), Stiefel(6, 2)

    def forward(x: Any, v: Any, q: Any) -> Any:
        tangent = sphere.projection(x, v)
        return sphere.retraction(x, tangent), sphere.norm(x, tangent), stiefel.projection(q, q * 2.0)

    def inputs(batch: int) -> Arguments:
        x = np.random.randn(6)
        return {"x": x / np.linalg.norm(x), "v": np.random.randn(6), "q": np.linalg.qr(np.random.randn(6, 2))[0]}

    return of_function(forward, inputs)


@package("torchrbf")
def interpolated_torchrbf() -> Program:
    from torchrbf import RBFInterpolator

    known = torch.rand(12, 2)
    return of_function(RBFInterpolator(known, known.sum(1, keepdim=True), smoothing=0.1, kernel="thin_plate_spline"),
                       lambda batch: {"x": torch.rand(batch, 2)}, (4, 6, 8))


# -- learners and learners of learners ---------------------------------------------------------------------------------


@package("higher")
def learned_higher() -> Program:
    import higher

    class Learner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
            with higher.innerloop_ctx(self.net, optimizer, copy_initial_weights=False) as (net, steps):
                steps.step(((net(x) - y) ** 2).mean())
                return ((net(x) - y) ** 2).mean()

    return Program(Learner(), lambda batch: {"x": torch.randn(batch, 4), "y": torch.randn(batch, 2)}, (4, 6, 8),
                   needs_grad=True)


@package("hypnettorch")
def hypernet_hypnettorch() -> Program:
    from hypnettorch.hnets import HMLP
    from hypnettorch.mnets import MLP

    main = MLP(n_in=4, n_out=2, hidden_layers=(6,), no_weights=True, verbose=False)
    hyper = HMLP(main.hyper_shapes_learned, uncond_in_size=0, cond_in_size=4, layers=(8,), num_cond_embs=3, verbose=False)
    return around(lambda self, x: main(x, weights=self.hyper(cond_id=1)), rows_of(4), hyper=hyper)


@package("easyfsl")
def shots_easyfsl() -> Program:
    from easyfsl.methods import PrototypicalNetworks

    few = PrototypicalNetworks(nn.Sequential(nn.Flatten(), nn.Linear(12, 8)))

    def episode(self: Any, support: torch.Tensor, query: torch.Tensor) -> Any:
        self.few.process_support_set(support, torch.arange(3).repeat_interleave(2))
        return self.few(query)

    return around(episode, lambda batch: {"support": torch.randn(6, 3, 2, 2), "query": torch.randn(batch, 3, 2, 2)}, few=few)


@package("torch-optimizer", "pytorch-ranger")
def optimizers_torch_optimizer() -> Program:
    import torch_optimizer

    kinds = (torch_optimizer.AccSGD, torch_optimizer.AdaBound, torch_optimizer.NovoGrad, torch_optimizer.SGDP,
             torch_optimizer.AdamP, torch_optimizer.A2GradUni)
    models = [nn.Linear(4, 3) for _ in kinds]
    optimizers = [kind(model.parameters(), lr=0.01) if kind is not torch_optimizer.A2GradUni else kind(model.parameters())
                  for kind, model in zip(kinds, models, strict=True)]

    def train(x: torch.Tensor) -> Any:
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        return [model.weight.detach().clone() for model in models]

    return of_function(train, rows_of(4), (4, 6, 8), needs_grad=True)


@package("lycoris-lora")
def adapted_lycoris() -> Program:
    from lycoris import LycorisNetwork, create_lycoris

    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    LycorisNetwork.apply_preset({"target_module": ["Linear"]})
    adapter = create_lycoris(net, 1.0, linear_dim=4, linear_alpha=2.0, algo="lokr")
    adapter.apply_to()
    return around(lambda self, x: self.net(x), net=net)


@package("hqq")
def quantised_hqq() -> Program:
    from hqq.core.quantize import BaseQuantizeConfig, HQQBackend, HQQLinear

    HQQLinear.set_backend(HQQBackend.PYTORCH)
    layer = HQQLinear(nn.Linear(64, 32), BaseQuantizeConfig(nbits=4, group_size=32), compute_dtype=torch.float32, device="cpu")
    return of_function(nn.Sequential(layer, nn.ReLU()), rows_of(64, "input"), (4, 6, 8))


@package("optimum-quanto")
def quantised_quanto() -> Program:
    from optimum.quanto import freeze, qint8, quantize

    net = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    quantize(net, weights=qint8)
    freeze(net)
    return of_function(net, rows_of(32, "input"), (4, 6, 8))


@package("rtdl-revisiting-models", "tabm", "rtdl-num-embeddings")
def tables_tabm() -> Program:
    from rtdl_revisiting_models import ResNet
    from tabm import TabM

    net = TabM.make(n_num_features=6, cat_cardinalities=[3], d_out=2, k=4, n_blocks=2, d_block=16, dropout=0.0)
    rest = ResNet(d_in=6, d_out=2, n_blocks=1, d_block=8, d_hidden_multiplier=2.0, dropout1=0.0, dropout2=0.0)

    def inputs(batch: int) -> Arguments:
        return {"x": torch.randn(batch, 6), "c": torch.randint(0, 3, (batch, 1))}

    return around(lambda self, x, c: (self.net(x, c), self.rest(x)), inputs, net=net, rest=rest)


@package("torch-rechub")
def clicks_rechub() -> Program:
    from torch_rechub.basic.features import DenseFeature, SparseFeature
    from torch_rechub.models.ranking import DeepFM

    dense, sparse = [DenseFeature("age")], [SparseFeature("user", vocab_size=10, embed_dim=4),
                                            SparseFeature("item", vocab_size=20, embed_dim=4)]
    model = DeepFM(deep_features=dense + sparse, fm_features=sparse, mlp_params={"dims": [8], "dropout": 0.0})

    def inputs(batch: int) -> Arguments:
        return {"x": {"age": torch.rand(batch), "user": torch.randint(0, 10, (batch,)), "item": torch.randint(0, 20, (batch,))}}

    return of_training(model, inputs, (4, 6, 8))


@package("pfrl")
def policy_pfrl() -> Program:
    import pfrl

    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), pfrl.nn.Branched(
        nn.Sequential(nn.Linear(8, 2), pfrl.policies.SoftmaxCategoricalHead()), nn.Linear(8, 1)))

    def forward(self: Any, x: torch.Tensor) -> Any:
        distribution, value = self.model(x)
        return distribution.log_prob(torch.zeros(x.shape[0])), distribution.entropy(), value

    return around(forward, rows_of(4), model=model)


@package("skrl")
def preprocessing_skrl() -> Program:
    from skrl.resources.preprocessors.torch import RunningStandardScaler

    scaler = RunningStandardScaler(size=4, device="cpu")
    return around(lambda self, x: self.head(scaler(x, train=True)), rows_of(4), head=nn.Linear(4, 2))


@package("torcheval")
def metrics_torcheval() -> Program:
    from torcheval.metrics import MulticlassAccuracy
    from torcheval.metrics import functional as tf

    def metrics(x: torch.Tensor, y: torch.Tensor) -> Any:
        meter = MulticlassAccuracy(num_classes=3)
        meter.update(x, y)
        return (meter.compute(), tf.multiclass_f1_score(x, y, num_classes=3, average="macro"),
                tf.mean_squared_error(x[:, 0], x[:, 1]), tf.topk_multilabel_accuracy(x, (x > 0).float(), k=2))

    return of_function(metrics, lambda batch: {"x": torch.randn(batch, 3), "y": torch.randint(0, 3, (batch,))}, (4, 6, 8))


@package("monotonicnetworks")
def monotone() -> Program:
    import monotonicnetworks as mn

    net = nn.Sequential(mn.direct_norm(nn.Linear(4, 8), kind="one-inf"), mn.GroupSort(2),
                        mn.direct_norm(nn.Linear(8, 1), kind="inf"))
    return around(lambda self, x: self.net(x), rows_of(4), net=mn.MonotonicWrapper(net, lipschitz_const=1.0))


@package("torchscale")
def layers_torchscale() -> Program:
    from torchscale.architecture.config import RetNetConfig
    from torchscale.architecture.retnet import RetNetDecoder

    config = RetNetConfig(decoder_embed_dim=16, decoder_value_embed_dim=32, decoder_retention_heads=2, decoder_ffn_embed_dim=32,
                          decoder_layers=2, vocab_size=50, no_output_layer=False)
    model = RetNetDecoder(config, embed_tokens=nn.Embedding(50, 16))
    return of_model(model, tokens_of(8, 50, "prev_output_tokens"))


@package("curated-transformers")
def curated_llama() -> Program:
    from curated_transformers.layers import AttentionMask
    from curated_transformers.models import LlamaCausalLM, LlamaConfig

    config = LlamaConfig(hidden_width=16, intermediate_width=32, n_hidden_layers=2, n_query_heads=2, n_key_value_heads=2,
                         n_pieces=50, dtype=torch.float32)
    model = LlamaCausalLM(config)

    def forward(self: Any, x: torch.Tensor) -> Any:
        return self.model(x, AttentionMask(torch.ones(x.shape).bool())).logits

    return around(forward, tokens_of(8, 50), model=model)


@package("mmengine")
def blocks_mmengine() -> Program:
    from mmengine.config import ConfigDict
    from mmengine.model import BaseModule, Sequential
    from mmengine.registry import Registry

    registry = Registry("blocks")

    class Block(BaseModule):  # type: ignore[misc]
        def __init__(self, width: int, scale: float) -> None:
            super().__init__()
            self.linear, self.scale = nn.Linear(width, width), scale

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x).relu() * self.scale

    registry.register_module(module=Block)
    blocks = [{"type": "Block", "width": 8, "scale": 2.0}, {"type": "Block", "width": 8, "scale": 0.5}]
    config = ConfigDict(blocks=blocks, gain=3.0)
    net = Sequential(*(registry.build(each) for each in config.blocks))
    return around(lambda self, x: self.net(x) * config.gain + config.blocks[0].scale, net=net)


@package("keras (backend torch)")
def keras_layers() -> Program:
    import os

    os.environ["KERAS_BACKEND"] = "torch"
    import keras

    keras.utils.set_random_seed(0)  # its weights are drawn from its own stream
    model = keras.Sequential([
        keras.layers.Input((8,)), keras.layers.Dense(16, activation="gelu", name="wide"),
        keras.layers.LayerNormalization(name="norm"), keras.layers.Dense(4, activation="softmax", name="head"),
    ], name="net")
    return of_model(model, rows_of(8, "inputs"), (4, 6, 8))


@package("pyhessian")
def curvature_pyhessian() -> Program:
    from pyhessian.utils import group_product, normalization, orthnormal

    def forward(x: torch.Tensor) -> Any:
        vectors = normalization([x, x * 2])
        return vectors, group_product(vectors, vectors), orthnormal([x + 1], [vectors[:1]])

    return of_function(forward, rows_of(4), (4, 6, 8))


@package("pytorch-nlp")
def attention_torchnlp() -> Program:
    from torchnlp.nn import Attention, LockedDropout

    attention = Attention(8)
    drop = LockedDropout(0.0)
    return around(lambda self, x: self.attention(drop(x), x), sequences_of(8, 6), attention=attention)
