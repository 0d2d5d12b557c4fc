"""A copy of a policy with weights rounded as inference servers round them, for embedded_mismatch and qwen_mismatch.

Linear layers are rounded to the nearest value, in one step per output channel (int8, fp8 E4M3) or per group of 128
weights of it (int4); the head, embeddings and norms are kept, as servers keep them. The copy is stored dequantised, so
that every engine reads it: arithmetic and activations are not rounded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch
import tyro
from torch import Tensor, nn

import gradstats as gs

GROUP = 128


def quantised(weight: Tensor, kind: Literal["int8", "int4", "fp8"]) -> Tensor:
    r"""Round a matrix (out, in): :math:`s\,\mathrm{round}(w/s)` with s the largest weight over the format's largest."""
    grouped = kind == "int4" and weight.shape[1] % GROUP == 0
    rows = weight.reshape(weight.shape[0], -1, GROUP) if grouped else weight.unsqueeze(1)
    most = {"int8": 127.0, "int4": 7.0, "fp8": torch.finfo(torch.float8_e4m3fn).max}[kind]
    step = (rows.abs().amax(dim=-1, keepdim=True) / most).clamp_min(torch.finfo(weight.dtype).tiny)
    scaled = rows / step
    rounded = scaled.to(torch.float8_e4m3fn).to(weight.dtype) if kind == "fp8" else scaled.round()
    return (rounded * step).reshape(weight.shape)


def main(policy: str, kind: Literal["int8", "int4", "fp8"], out: Path) -> None:
    """Write the copy.

    Args:
        policy: "embedded", a folder, a .gguf file or a hub id.
        kind: format of the weights.
        out: the folder, which must not exist.
    """
    if out.exists():
        raise SystemExit(f"{out} exists: remove it, or choose another folder (--out)")
    loaded = gs.load_policy(policy)
    head = loaded.model.get_output_embeddings()
    with torch.no_grad():
        for layer in loaded.model.modules():
            if isinstance(layer, nn.Linear) and layer is not head:
                layer.weight.copy_(quantised(layer.weight, kind))
    loaded.model.save_pretrained(out)
    loaded.tokenizer.save_pretrained(out)
    print(out)


if __name__ == "__main__":
    tyro.cli(main)
