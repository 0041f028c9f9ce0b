"""torch.distributions with its checks on, which is the default: one graph, eager's samples, gradients and errors."""

from __future__ import annotations

import pytest
import torch
import torch.distributions as dist
from torch.distributions import constraints

import fxjit


@pytest.fixture(autouse=True)
def checks():
    """On, as by default: torch.compile switches them off for its whole process."""
    before = dist.Distribution._validate_args
    dist.Distribution.set_default_validate_args(True)
    yield
    dist.Distribution.set_default_validate_args(before)


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def covariance(a):
    return a @ a.T + torch.eye(len(a))


def sampled(d):
    sample = d.rsample() if d.has_rsample else d.sample()
    return sample, d.log_prob(sample.detach())


CASES = {
    "Normal": lambda x: sampled(dist.Normal(x, x.exp())),
    "of numbers": lambda x: dist.Normal(0.0, 1.0).log_prob(x),
    "Independent": lambda x: sampled(dist.Independent(dist.Normal(x, 1.0), 1)),
    "expanded": lambda x: dist.Normal(x, 1.0).expand((4, 3)).rsample(),
    "Bernoulli": lambda x: (*sampled(dist.Bernoulli(logits=x)), dist.Bernoulli(probs=x.sigmoid()).entropy()),
    "Categorical": lambda x: (*sampled(dist.Categorical(logits=x)), dist.Categorical(probs=x.softmax(0)).entropy()),
    "OneHotCategorical": lambda x: dist.OneHotCategoricalStraightThrough(logits=x).rsample(),
    "Multinomial": lambda x: dist.Multinomial(5, logits=x).sample(),
    "Exponential": lambda x: sampled(dist.Exponential(x.exp())),
    "Laplace": lambda x: sampled(dist.Laplace(x, 1.0)),
    "Gamma": lambda x: sampled(dist.Gamma(x.exp(), x.exp())),
    "Beta": lambda x: dist.Beta(x.exp(), x.exp()).rsample(),
    "Dirichlet": lambda x: sampled(dist.Dirichlet(x.exp())),
    "Geometric": lambda x: sampled(dist.Geometric(logits=x)),
    "StudentT": lambda x: sampled(dist.StudentT(x.exp() + 2)),
    "Weibull": lambda x: sampled(dist.Weibull(torch.ones(3), x.exp())),
    "transformed": lambda x: sampled(dist.TransformedDistribution(dist.Normal(x, 1.0), [dist.AffineTransform(1.0, 2.0)])),
    "mixture": lambda x: dist.MixtureSameFamily(dist.Categorical(logits=x), dist.Normal(x, x.exp())).log_prob(x[:1]),
    "divergence": lambda x: dist.kl_divergence(dist.Normal(x, x.exp()), dist.Normal(torch.zeros_like(x), 1.0)),
    "divergence of categories": lambda x: dist.kl_divergence(dist.Categorical(logits=x), dist.Categorical(logits=-x)),
}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_one_graph(assert_same_as_eager, case):
    assert_same_as_eager(case, leaf(3))


def test_of_matrices(assert_same_as_eager):
    def both(mean, a):
        d = dist.MultivariateNormal(mean, covariance(a))
        standard = dist.MultivariateNormal(torch.zeros(3), scale_tril=torch.eye(3))
        return d.rsample((2,)), d.log_prob(mean * 2), dist.kl_divergence(d, standard)

    assert_same_as_eager(both, leaf(3), leaf(3, 3))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_what_a_distribution_refuses(backend):
    def scaled(x, scale):
        return dist.Normal(x, scale).log_prob(x)

    fxjit.reset()
    compiled = fxjit.compile(scaled, backend=backend, fullgraph=True)
    good, bad = torch.ones(3), -torch.ones(3)
    torch.testing.assert_close(compiled(good, good), scaled(good, good))
    for x, scale in ((good, bad), (good * torch.nan, good)):
        with pytest.raises(ValueError, match="to satisfy the constraint") as theirs:
            scaled(x, scale)
        with pytest.raises(ValueError, match="to satisfy the constraint") as ours:
            compiled(x, scale)
        assert str(ours.value) == str(theirs.value)


MATRICES = [torch.eye(2), -torch.eye(2), torch.randn(2, 2), torch.stack([torch.eye(2), -torch.eye(2)]), torch.zeros(2, 2),
            torch.stack([torch.eye(2), torch.randn(2, 2)]), torch.full((2, 2), torch.nan), torch.randn(4, 2, 3)]


@pytest.mark.parametrize("name", ["square", "symmetric", "positive_definite", "positive_semidefinite"])
def test_constraints_of_matrices(name):
    constraint = getattr(constraints, name)
    for matrix in MATRICES:
        fxjit.reset()
        compiled = fxjit.compile(lambda x: constraint.check(x), backend="eager", fullgraph=True)
        assert torch.equal(compiled(matrix), constraint.check(matrix))
