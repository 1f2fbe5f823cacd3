import pytest
import torch

from backbones.diagnostics.statistics import (
    ATTENTION_FIELDS,
    TOKEN_FIELDS,
    attention_statistics,
    correlations,
    cosine_similarity,
    effective_rank,
    singular_values,
    token_statistics,
)
from tests.oracles.tokens import attention_facts, similarity, token_facts

RANDOM = torch.Generator().manual_seed(0)


def tokens(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=RANDOM) + 0.3


def test_cosine_similarity_at_its_bounds() -> None:
    simplex = torch.eye(5) - 1 / 5  # vertices as far apart as five can be
    assert cosine_similarity(simplex) == pytest.approx(-1 / 4)
    assert cosine_similarity(simplex) >= -1 / 4
    same = torch.full((7, 3), 0.1) * torch.arange(1, 8)[:, None]
    assert cosine_similarity(same) == pytest.approx(1)
    assert cosine_similarity(same) <= 1
    assert cosine_similarity(1e30 * same) == pytest.approx(1)
    assert cosine_similarity(1e-30 * same) == pytest.approx(1)


def test_statistics_are_the_plain_ones() -> None:
    rows = torch.cat([tokens(9, 5), torch.zeros(1, 5)]).double()
    facts = dict(zip(TOKEN_FIELDS, token_statistics(rows[None])[0].tolist(), strict=True))
    assert facts == pytest.approx({"similarity": similarity(rows.numpy()), **token_facts(rows.numpy())})
    signed = torch.tensor([[0.5, -0.5, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 3.0, 0.0]])
    for weights in (tokens(2, 3, 4, 8).softmax(-1), tokens(2, 3, 4, 8).relu(), signed[None, None]):
        found = attention_statistics(weights.double())
        for one, row in zip(weights.double().numpy(), found.tolist()):
            assert dict(zip(ATTENTION_FIELDS, row, strict=True)) == pytest.approx(attention_facts(one))


@pytest.mark.parametrize(("n", "d"), [(3, 8), (8, 3), (1, 5)])
def test_singular_values_and_effective_rank(n: int, d: int) -> None:
    batch = tokens(2, n, d).double()
    assert torch.allclose(singular_values(batch).flip(-1), torch.linalg.svdvals(batch))
    rank = effective_rank(singular_values(batch))
    assert ((rank >= 1) & (rank <= min(n, d) + 1e-9)).all()


def test_weights_of_nothing_have_no_entropy() -> None:
    nothing = attention_statistics(torch.zeros(1, 1, 2, 4))[0]
    assert nothing[ATTENTION_FIELDS.index("entropy")].isnan()
    assert attention_statistics(torch.full((1, 1, 2, 4), torch.nan)).isnan().all()


def test_correlations() -> None:
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert correlations(x, x.exp())["spearman"] == pytest.approx(1)
    assert 0.8 < correlations(x, x.exp())["pearson"] < 1
    assert correlations(x, -2 * x) == pytest.approx({"pearson": -1, "spearman": -1})
    none = {"pearson": None, "spearman": None}
    assert correlations(x, torch.ones(4)) == none
    assert correlations(x, torch.tensor([1.0, 2.0, 3.0, torch.inf])) == none
    assert correlations(x[:1], x[:1]) == none
