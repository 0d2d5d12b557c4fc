"""Norm layers that compute in the model's dtype."""

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm


@pytest.fixture(autouse=True)
def norms_in_float64(monkeypatch):
    """The norms of transformers compute in float32 whatever the dtype, an error that would dominate at 1e-9."""

    def forward(self, inputs):
        return self.weight * inputs * torch.rsqrt(inputs.square().mean(-1, keepdim=True) + self.variance_epsilon)

    for kind in (LlamaRMSNorm, Qwen2RMSNorm):
        monkeypatch.setattr(kind, "forward", forward)
