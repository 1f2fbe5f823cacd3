"""The sigmoid focal loss, called through mmcv, against the formula of arXiv 1708.02002 and its gradient by autograd."""

import pytest
import torch

from tasks.detect import mmlab

mmlab.load()

from mmcv.ops import sigmoid_focal_loss  # noqa: E402

WEIGHT = [0.5, 2.0, 1.5]


def logits(count=8, classes=3, dtype=torch.float64):
    return 2 * torch.randn(count, classes, dtype=dtype, generator=torch.Generator().manual_seed(0))


def plain_sigmoid(x, target, gamma, alpha, weight):
    rows = []
    for logits_of_anchor, label in zip(x, target):
        row = []
        for c, logit in enumerate(logits_of_anchor):
            p = 1 / (1 + torch.exp(-logit))
            of_truth, share = (p, alpha) if c == label else (1 - p, 1 - alpha)
            row.append(-share * (1 - of_truth) ** gamma * torch.log(of_truth))
        factor = weight[label] if weight is not None and 0 <= label < len(weight) else 1
        rows.append(factor * torch.stack(row))
    return torch.stack(rows)


def with_gradient(loss, x):
    leaf = x.clone().requires_grad_()
    value = loss(leaf)
    value.backward()
    return value.detach(), leaf.grad


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("weight", [None, WEIGHT])
@pytest.mark.parametrize(("gamma", "alpha"), [(2.0, 0.25), (0.5, 0.9)])
def test_sigmoid(gamma, alpha, weight, reduction):
    x, target = logits(), [0, 1, 2, 3, 3, 2, -1, 0]  # 3 and -1: background
    divisor = len(x) if reduction == "mean" else 1
    expected = with_gradient(lambda leaf: plain_sigmoid(leaf, target, gamma, alpha, weight).sum() / divisor, x)
    factors = None if weight is None else torch.tensor(weight, dtype=x.dtype)
    found = with_gradient(
        lambda leaf: sigmoid_focal_loss(leaf, torch.tensor(target), gamma, alpha, factors, reduction), x
    )
    torch.testing.assert_close(found, expected)


def test_certain_and_wrong_logits_keep_their_slope():
    """log(1 - p) of a float32 p is -inf from 17 on; the loss goes on growing in proportion to the logit."""
    x = torch.tensor([[-200.0, 30.0]])
    loss = sigmoid_focal_loss(x, torch.tensor([0]), 2.0, 0.25, None, "none")
    assert loss[0].tolist() == pytest.approx([0.25 * 200, 0.75 * 30])
    _, gradient = with_gradient(lambda leaf: sigmoid_focal_loss(leaf, torch.tensor([0]), 2.0, 0.25, None, "sum"), x)
    assert gradient[0].tolist() == pytest.approx([-0.25, 0.75])
