import torch

from tasks.losses import BNNeck


def test_the_neck_standardises_and_classifies_without_shift_or_bias() -> None:
    neck, features = BNNeck(5, 7), torch.randn(16, 5) * 3 + 2
    after, logits = neck(features)
    expected = (features - features.mean(0)) / (features.var(0, unbiased=False) + 1e-5).sqrt()
    assert torch.allclose(after, expected, atol=1e-5)
    assert torch.allclose(logits, after @ neck.classifier.weight.T)
    trained = {name for name, parameter in neck.named_parameters() if parameter.requires_grad}
    assert trained == {"norm.weight", "classifier.weight"}
    assert 5e-4 < neck.classifier.weight.std().item() < 2e-3


def test_the_neck_computes_in_fp32_under_autocast() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        after, logits = BNNeck(5, 7)(torch.randn(16, 5).bfloat16())
    assert after.dtype == logits.dtype == torch.float32
