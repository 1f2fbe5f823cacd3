# my_attention.py: softmax with a learned temperature; linear attention with elu + 1 features, as function and class
import torch
from torch import nn


class Temperature(nn.Module):  # a core: the suite projects queries, keys and values
    def __init__(self, heads, head_dim):
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(heads, 1, 1))

    # q, k, v: [B, heads, N, head_dim]; scores are scale q k^T, where the scale is 1 / sqrt(head_dim) by default
    def forward(self, q, k, v, scale=None):
        q = q * self.temperature.to(q.dtype)
        return nn.functional.scaled_dot_product_attention(q, k, v, scale=scale)


def linear(q, k, v, scale=None):  # [B, heads, N, D / heads], before scaling; any scale cancels in the quotient
    q, k = nn.functional.elu(q) + 1, nn.functional.elu(k) + 1
    weights = q @ (k.transpose(-2, -1) @ v)
    return weights / (q @ k.sum(-2).unsqueeze(-1))


class Linear(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, tokens):  # [B, N, dim] -> [B, N, dim]
        shape = (*tokens.shape[:2], 3, self.heads, -1)
        q, k, v = self.qkv(tokens).view(shape).permute(2, 0, 3, 1, 4)
        return self.proj(linear(q, k, v).transpose(1, 2).flatten(2))
