# my_ffn.py: a gated linear unit
from torch import nn


class GatedFFN(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.gate, self.value, self.proj = nn.Linear(dim, hidden), nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def forward(self, tokens):  # [B, N, dim] -> [B, N, dim]
        return self.proj(self.gate(tokens).sigmoid() * self.value(tokens))
