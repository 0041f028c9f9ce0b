"""The programs of `--further`: more packages made of torch, each as its own documentation begins, small and with random
weights.

Optimizers and samplers, probability, layers of other papers, language, series and sound: packages that `package_programs`,
`container_programs` and `torch_package_programs` have not. `further_science_programs` has the others.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from benchmarks.library_programs import images_of, of_function, of_model, of_training, sequences_of, tokens_of
from benchmarks.package_programs import Around, rows_of
from benchmarks.programs import Arguments, Builder, Program

FURTHER: dict[str, Builder] = {}


def further(builder: Builder) -> Builder:
    FURTHER[builder.__name__] = builder
    return builder


def around(
    forward: Any, inputs: Any = None, batches: tuple[int, int, int] = (2, 3, 4), needs_grad: bool = False, **parts: Any
) -> Program:
    module = Around(forward, **parts).train()
    return Program(module, inputs or rows_of(), batches, module, needs_grad=needs_grad)


def classes_of(width: int = 8, classes: int = 3) -> Any:
    return lambda batch: {"x": torch.randn(batch, width), "y": torch.arange(batch) % classes}


def steps_of(make: Any, closure: bool = False) -> Program:
    """Two training steps with an optimizer; the weights after them."""
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = make(net.parameters())

    def loss(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        return net(x).square().mean()

    def train(x: torch.Tensor) -> Any:
        for _ in range(2):
            if closure:
                optimizer.step(lambda: loss(x))
            else:
                loss(x).backward()
                optimizer.step()
        return [weight.detach().clone() for weight in net.parameters()]

    return of_function(train, rows_of(), (4, 6, 8), needs_grad=True)


# -- optimizers and samplers -------------------------------------------------------------------------------------------


@further
def adabelief_pytorch() -> Program:
    from adabelief_pytorch import AdaBelief

    return steps_of(lambda weights: AdaBelief(weights, lr=1e-3, eps=1e-16, rectify=True, print_change_log=False))


@further
def adan_pytorch() -> Program:
    from adan_pytorch import Adan

    return steps_of(lambda weights: Adan(weights, lr=1e-3, weight_decay=0.02))


@further
def torch_pso() -> Program:
    from torch_pso import ParticleSwarmOptimizer

    return steps_of(
        lambda weights: ParticleSwarmOptimizer(weights, num_particles=3, max_param_value=1, min_param_value=-1), closure=True)


@further
def posteriors_sgld() -> Program:
    import posteriors
    from torch.func import functional_call

    net = nn.Linear(8, 3)
    weights = dict(net.named_parameters())

    def log_posterior(weights: Any, batch: Any) -> Any:
        x, y = batch
        logits = functional_call(net, weights, (x,))
        return -nn.functional.cross_entropy(logits, y) + posteriors.diag_normal_log_prob(weights) / 100, logits

    transform = posteriors.sgmcmc.sghmc.build(log_posterior, lr=1e-2, alpha=0.1)

    def sample(x: torch.Tensor, y: torch.Tensor) -> Any:
        state = transform.init({name: weight.detach() for name, weight in weights.items()})
        for _ in range(2):
            state, _ = transform.update(state, (x, y), inplace=False)
        return state.params

    return of_function(sample, classes_of(), (4, 6, 8), needs_grad=True)


# -- probability, uncertainty ------------------------------------------------------------------------------------------


@further
def laplace_torch() -> Program:
    from laplace import Laplace
    from torch.utils.data import DataLoader, TensorDataset

    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
    data = TensorDataset(torch.randn(12, 8), torch.arange(12) % 3)
    laplace = Laplace(net, "classification", subset_of_weights="last_layer", hessian_structure="diag")
    laplace.fit(DataLoader(data, batch_size=6))
    return of_function(lambda x: laplace(x, link_approx="probit"), rows_of(), (4, 6, 8))


@further
def blitz_bayesian() -> Program:
    from blitz.modules import BayesianConv2d, BayesianLinear
    from blitz.utils import variational_estimator

    @variational_estimator
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = BayesianConv2d(3, 4, (3, 3))
            self.linear = BayesianLinear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(self.conv(x).relu().mean((2, 3)))

    def loss(self: Any, x: torch.Tensor) -> Any:
        return self.net.sample_elbo(inputs=x, labels=torch.arange(x.shape[0]) % 2, criterion=nn.CrossEntropyLoss(),
                                    sample_nbr=2, complexity_cost_weight=0.01)

    return around(loss, images_of(8), net=Net())


@further
def lampe_npe() -> Program:
    from lampe.inference import NPE, NPELoss

    estimator = NPE(3, 8, transforms=2, hidden_features=[16])
    return around(lambda self, x, theta: self.loss(theta, x),
                  lambda batch: {"x": torch.randn(batch, 8), "theta": torch.randn(batch, 3)}, (4, 6, 8),
                  loss=NPELoss(estimator))


@further
def funsor_gaussian() -> Program:
    import funsor
    import funsor.ops as ops
    from funsor import Bint, Tensor

    funsor.set_backend("torch")

    def elimination(x: torch.Tensor) -> Any:
        count = x.shape[0]
        first = Tensor(x, {"i": Bint[count], "j": Bint[8]})
        second = Tensor(x.t().contiguous(), {"j": Bint[8], "k": Bint[count]})
        return (first + second).reduce(ops.logaddexp, "j").reduce(ops.add, frozenset({"i", "k"})).data

    return of_function(elimination, rows_of(), (4, 6, 8))


@further
def pytorch_ood_losses() -> Program:
    from pytorch_ood.detector import ODIN, EnergyBased, MaxSoftmax
    from pytorch_ood.loss import CenterLoss, EnergyRegularizedLoss, EntropicOpenSetLoss

    net = nn.Linear(8, 3)
    odin = ODIN(net, eps=0.002, temperature=10.0)
    energy, soft = EnergyBased(net), MaxSoftmax(net)

    def losses(self: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        logits = net(x)
        targets = torch.where(y == 2, -1, y)
        distances = self.center.distance(logits)
        with torch.no_grad():
            scores = energy(x), soft(x)
        return self.energy(logits, targets), self.entropic(logits, targets), self.center(distances, targets), scores, odin(x)

    return around(losses, classes_of(), (6, 9, 12), center=CenterLoss(3, 3), energy=EnergyRegularizedLoss(),
                  entropic=EntropicOpenSetLoss(), net=net)


@further
def torch_uncertainty_layers() -> Program:
    from torch_uncertainty.layers import BatchLinear, PackedLinear
    from torch_uncertainty.layers.bayesian import BayesLinear

    net = nn.Sequential(PackedLinear(8, 16, alpha=2, num_estimators=2, first=True), nn.ReLU(),
                        PackedLinear(16, 4, alpha=2, num_estimators=2, last=True), BayesLinear(4, 4), BatchLinear(4, 2, 2))
    return of_training(net, rows_of(8, "input"), (4, 6, 8))


@further
def torch_struct_chain() -> Program:
    from torch_struct import LinearChainCRF

    def loss(self: Any, x: torch.Tensor) -> Any:
        scores = self.score(x).reshape(x.shape[0], x.shape[1], 3, 3)
        chain = LinearChainCRF(scores)
        return chain.partition, chain.argmax, chain.marginals

    return around(loss, sequences_of(8, 5), score=nn.Linear(8, 9))


@further
def torch_semiring_einsum() -> Program:
    import torch_semiring_einsum as tse

    equation = tse.compile_equation("bik,bkj->bij")

    def products(self: Any, x: torch.Tensor) -> Any:
        hidden = self.linear(x)
        return (tse.log_einsum(equation, hidden, x.transpose(1, 2), block_size=3),
                tse.real_einsum_forward(equation, x, x.transpose(1, 2), block_size=2),
                tse.log_viterbi_einsum_forward(equation, x, x.transpose(1, 2), block_size=4))

    return around(products, sequences_of(8, 5), linear=nn.Linear(8, 8))


@further
def difftopk_loss() -> Program:
    from difftopk import TopKCrossEntropyLoss

    loss = TopKCrossEntropyLoss(diffsort_method="odd_even", inverse_temperature=2, p_k=[0.5, 0.0, 0.0, 0.0, 0.5], n=8, m=6,
                                distribution="cauchy", top1_mode="sm")
    return around(lambda self, x, y: loss(self.linear(x), y), classes_of(), (4, 6, 8), linear=nn.Linear(8, 8))


# -- layers of other papers --------------------------------------------------------------------------------------------


@further
def unit_scaling() -> Program:
    import unit_scaling as uu

    model = uu.TransformerDecoder(hidden_size=16, vocab_size=50, layers=2, heads=2)
    return around(lambda self, x: self.model.loss(x), tokens_of(8, 50), model=model)


@further
def monotonenorm() -> Program:
    import monotonenorm as mn

    net = nn.Sequential(mn.direct_norm(nn.Linear(8, 16), kind="one-inf"), mn.GroupSort(8),
                        mn.direct_norm(nn.Linear(16, 1), kind="inf"))
    return of_training(mn.SigmaNet(net, sigma=1.0, monotone_constraints=[1] * 8), rows_of(), (4, 6, 8))


@further
def pytorch_lattice() -> Program:
    import numpy as np
    from pytorch_lattice.layers import CategoricalCalibrator, Lattice, NumericalCalibrator

    def forward(self: Any, x: torch.Tensor) -> Any:
        one = self.numerical(x[:, :1])
        other = self.categorical((x[:, 1:2] > 0).float())
        return self.lattice(torch.cat([one, other], -1))

    return around(forward, lambda batch: {"x": torch.rand(batch, 2)}, (4, 6, 8),
                  numerical=NumericalCalibrator(np.linspace(0.0, 1.0, 5), output_min=0.0, output_max=1.0),
                  categorical=CategoricalCalibrator(2, output_min=0.0, output_max=1.0), lattice=Lattice([2, 2]))


@further
def agent_attention() -> Program:
    from agent_attention_pytorch import AgentTransformer

    return of_training(AgentTransformer(dim=16, depth=2, num_agent_tokens=4, dim_head=8, heads=2),
                       lambda batch: {"x": torch.randn(batch, 12, 16), "mask": torch.ones(batch, 12).bool()})


@further
def attention_free() -> Program:
    from aft_pytorch import AFTFull, AFTLocal, AFTSimple

    model = nn.Sequential(AFTFull(max_seqlen=12, dim=16, hidden_dim=8), AFTSimple(max_seqlen=12, dim=16, hidden_dim=8),
                          AFTLocal(max_seqlen=12, dim=16, hidden_dim=8))
    return of_training(model, sequences_of(16, 12, "input"))


@further
def flash_pytorch() -> Program:
    from flash_pytorch import FLASHTransformer

    model = FLASHTransformer(num_tokens=50, dim=16, depth=2, causal=True, group_size=4, query_key_dim=8)
    return of_training(model, tokens_of(10, 50))


@further
def memory_transformer_xl() -> Program:
    from memory_transformer_xl import MemoryTransformerXL

    model = MemoryTransformerXL(num_tokens=50, dim=16, depth=2, seq_len=8, mem_len=8, lmem_len=8, heads=2, memory_layers=[2])

    def forward(self: Any, x: torch.Tensor) -> Any:
        logits, memories = self.model(x)
        return self.model(x, memories=memories)[0], logits

    return around(forward, tokens_of(8, 50), model=model)


@further
def compressive_transformer() -> Program:
    from compressive_transformer_pytorch import CompressiveTransformer

    model = CompressiveTransformer(num_tokens=50, dim=16, depth=2, seq_len=8, mem_len=8, cmem_len=2, heads=2, memory_layers=[2])

    def forward(self: Any, x: torch.Tensor) -> Any:
        logits, memories, loss = self.model(x)
        logits, _, again = self.model(x, memories=memories)
        return logits, loss + again

    return around(forward, tokens_of(8, 50), model=model)


@further
def state_space_s5() -> Program:
    from s5 import S5Block

    return of_training(S5Block(8, 16, bidir=False), sequences_of(8, 12))


@further
def swin_transformer() -> Program:
    from swin_transformer_pytorch import SwinTransformer

    model = SwinTransformer(hidden_dim=16, layers=(2, 2, 2, 2), heads=(1, 2, 2, 4), num_classes=3, head_dim=8, window_size=2,
                            downscaling_factors=(2, 2, 2, 2), relative_pos_embedding=True)
    return of_training(model, images_of(32, name="img"))


@further
def glom() -> Program:
    from glom_pytorch import Glom

    return of_training(Glom(dim=16, levels=3, image_size=16, patch_size=4),
                       lambda batch: {"img": torch.randn(batch, 3, 16, 16), "iters": 3})


@further
def bottleneck_transformer() -> Program:
    from bottleneck_transformer_pytorch import BottleStack

    return of_training(BottleStack(dim=16, fmap_size=8, dim_out=32, proj_factor=4, num_layers=2, heads=2, dim_head=8,
                                   rel_pos_emb=True), images_of(8, 16))


# -- language and molecules --------------------------------------------------------------------------------------------


@further
def joeynmt_translation() -> Program:
    from joeynmt.decoders import TransformerDecoder
    from joeynmt.embeddings import Embeddings
    from joeynmt.encoders import TransformerEncoder

    def forward(self: Any, x: torch.Tensor) -> Any:
        mask = (x != 1).unsqueeze(1)
        encoded, hidden = self.encoder(self.embed(x), (x != 1).sum(1), mask)
        return self.decoder(trg_embed=self.embed(x), encoder_output=encoded, encoder_hidden=hidden, src_mask=mask,
                            unroll_steps=None, hidden=None, trg_mask=mask)[0]

    return around(forward, tokens_of(8, 50), embed=Embeddings(16, scale=True, vocab_size=50),
                  encoder=TransformerEncoder(16, 32, 1, 2, 0.0, 0.0),
                  decoder=TransformerDecoder(1, 2, 16, 32, 0.0, 0.0, 50))


@further
def fair_esm() -> Program:
    from esm.model.esm2 import ESM2

    model = ESM2(num_layers=2, embed_dim=16, attention_heads=2)
    return of_model(model, lambda batch: {"tokens": torch.randint(4, 24, (batch, 10)), "repr_layers": [1, 2],
                                          "return_contacts": True})


@further
def enformer() -> Program:
    from enformer_pytorch import Enformer

    model = Enformer.from_hparams(dim=24, depth=1, heads=2, output_heads={"human": 5, "mouse": 3}, target_length=4,
                                  attn_dim_key=8, num_downsamples=3, dim_divisible_by=2)
    return of_model(model, lambda batch: {"x": torch.randint(0, 5, (batch, 64)), "head": "human"}, (1, 2, 3))


@further
def pretrained_bert() -> Program:
    from pytorch_pretrained_bert import BertConfig, BertForMaskedLM

    config = BertConfig(50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)

    def inputs(batch: int) -> Arguments:
        tokens = torch.randint(0, 50, (batch, 8))
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "masked_lm_labels": tokens}

    return of_model(BertForMaskedLM(config), inputs)


# -- series and sound --------------------------------------------------------------------------------------------------


@further
def torchcrepe_pitch() -> Program:
    import torchcrepe

    model = torchcrepe.Crepe("tiny").eval()

    def pitch(x: torch.Tensor) -> Any:
        probabilities = model(x).unsqueeze(0).transpose(1, 2)
        return probabilities, torchcrepe.decode.weighted_argmax(probabilities)

    return of_function(pitch, lambda batch: {"x": torch.randn(batch, 1024)})


@further
def torch_pitch_shift() -> Program:
    from torch_pitch_shift import pitch_shift

    return of_function(lambda x: pitch_shift(x, 2, 4000), lambda batch: {"x": torch.randn(batch, 1, 1024)})


@further
def torchfcpe_pitch() -> Program:
    from torchfcpe.models import CFNaiveMelPE

    model = CFNaiveMelPE(input_channels=16, out_dims=36, hidden_dims=16, n_layers=1, n_heads=2)

    def infer(self: Any, x: torch.Tensor) -> Any:
        latent = self.model(x)
        return latent, self.model.latent2cents_local_decoder(latent)

    return around(infer, sequences_of(16, 12), model=model.eval())


@further
def torchsynth_voice() -> Program:
    from torchsynth.config import SynthConfig
    from torchsynth.module import ADSR, VCA, ControlRateUpsample, SineVCO

    config = SynthConfig(batch_size=2, sample_rate=4000, buffer_size_seconds=0.25, control_rate=100, reproducible=False)
    parts = {"envelope": ADSR(config), "up": ControlRateUpsample(config), "vco": SineVCO(config), "vca": VCA(config)}

    def voice(self: Any, x: torch.Tensor) -> Any:
        level = self.up(self.envelope(x.abs().as_subclass(torch.Tensor)))
        return self.vca(self.vco(x * 60, level), level)

    return around(voice, lambda batch: {"x": torch.rand(2)}, (2, 3, 4), **parts)


@further
def alias_free_torch() -> Program:
    from alias_free_torch import Activation1d, Activation2d

    return around(lambda self, x: (self.one(x.mean(3)), self.two(x)), images_of(16),
                  one=Activation1d(activation=nn.SiLU()), two=Activation2d(activation=nn.LeakyReLU()))


@further
def audio_diffusion() -> Program:
    from audio_diffusion_pytorch import DiffusionModel, UNetV0, VDiffusion, VSampler

    model = DiffusionModel(net_t=UNetV0, in_channels=2, channels=[8, 16], factors=[1, 4], items=[1, 1], attentions=[0, 1],
                           attention_heads=2, attention_features=8, resnet_groups=2, diffusion_t=VDiffusion, sampler_t=VSampler)

    def train(self: Any, x: torch.Tensor) -> Any:
        return self.model(x), self.model.sample(x, num_steps=2)

    return around(train, lambda batch: {"x": torch.randn(batch, 2, 64)}, model=model)


@further
def bigvgan_vocoder() -> Program:
    from bigvgan.bigvgan import BigVGAN
    from bigvgan.env import AttrDict

    model = BigVGAN(AttrDict(
        num_mels=8, upsample_initial_channel=16, resblock="1", resblock_kernel_sizes=[3], resblock_dilation_sizes=[[1, 3, 5]],
        upsample_rates=[4, 2], upsample_kernel_sizes=[8, 4], activation="snakebeta", snake_logscale=True,
    ))
    return of_training(model, lambda batch: {"x": torch.randn(batch, 8, 12)})
