"""How a device computes: products in float32, sums in one order, and products of 16-bit numbers summed in float32."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from gradstats.policy.memory import is_accelerator, is_out_of_memory


@contextmanager
def float32_is_float32() -> Iterator[None]:
    """Switch TF32 and whatever else rounds the factors of float32 products off, and restore the settings afterwards.

    torch has them twice, for all products and for each library; reading one raises an error after only the other was
    set. Both are set here, where they can be read.
    """
    backends = torch.backends
    kept = [(backend, name, _read(backend, name)) for backend, name, _ in _exact(backends)]
    products = _read_products()
    try:
        if products is not None:
            torch.set_float32_matmul_precision("highest")
        for (backend, name, value), (_, _, before) in zip(_exact(backends), kept, strict=True):
            if before is not None:
                setattr(backend, name, value)
        yield
    finally:
        if products is not None:
            torch.set_float32_matmul_precision(products)
        for backend, name, before in kept:
            if before is not None:
                setattr(backend, name, before)


def _exact(backends: object) -> Iterator[tuple[object, str, object]]:
    """Yield the settings of each library with their exact values, those of all its operations first."""
    cudnn, cuda, mkldnn = (getattr(backends, name) for name in ("cudnn", "cuda", "mkldnn"))
    yield cudnn, "allow_tf32", False
    for library, operation in ((cuda, "matmul"), (mkldnn, "matmul"), (cudnn, "conv"), (cudnn, "rnn")):
        yield getattr(library, operation, None), "fp32_precision", "ieee"


def _read(backend: object, name: str) -> object:
    try:
        return getattr(backend, name, None)
    except RuntimeError:  # set by the other of the two ways
        return None


def _read_products() -> str | None:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


@contextmanager
def in_one_order(wanted: bool) -> Iterator[None]:
    """Let a device add in the same order each time, at some cost; a CPU with one setting of its threads always does.

    torch sorts what it would add at random, refuses operations that it cannot order, and attention is not fused.
    """
    if not wanted:
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without which cuBLAS is refused
    kept = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    settings: Any = torch.utils.deterministic  # of which torch declares no types
    filled = settings.fill_uninitialized_memory
    try:
        torch.use_deterministic_algorithms(True)
        settings.fill_uninitialized_memory = False
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.use_deterministic_algorithms(kept[0], warn_only=kept[1])
        settings.fill_uninitialized_memory = filled


def multiplies_as_they_are(left: Tensor, right: Tensor, dtype: torch.dtype) -> bool:
    """Return whether 16-bit factors need no cast: the device adds up their products, which are exact, in float32."""
    if not is_accelerator(left.device) or left.dtype.itemsize > 2 or left.dtype != right.dtype:
        return False
    return dtype == torch.float32 and accumulates_in_float32(left.device, left.dtype)


@contextmanager
def rounding_to_bfloat16(*factors: Tensor) -> Iterator[None]:
    """Let a CPU multiply float32 copies of such factors as bfloat16, if that is what they were, which loses nothing.

    oneDNN adds up such products in float32, in another order. As torch has it, the setting holds for the whole process:
    what another thread multiplies meanwhile may be rounded.
    """
    matmul: Any = getattr(torch.backends.mkldnn, "matmul", None)  # None in earlier versions of torch
    before = _read(matmul, "fp32_precision")
    if before is None or any(one.dtype != torch.bfloat16 or one.device.type != "cpu" for one in factors):
        yield
        return
    try:
        matmul.fp32_precision = "bf16"
        yield
    finally:
        matmul.fp32_precision = before


@lru_cache(maxsize=16)
def accumulates_in_float32(device: torch.device, dtype: torch.dtype) -> bool:
    """Try a product whose sum has more digits than the dtype; torch or the device may not know such products.

    Memory that runs out is an error, which is not remembered: it says nothing of the device.
    """
    factors = torch.tensor([[[1.0, 2.0**-13]]], dtype=dtype, device=device)
    ones = torch.ones(1, 2, 1, dtype=dtype, device=device)
    try:
        found = torch.bmm(factors, ones, out_dtype=torch.float32)
    except (NotImplementedError, RuntimeError, TypeError) as error:
        if is_out_of_memory(error):
            raise
        return False
    return found.dtype == torch.float32 and float(found) == 1 + 2.0**-13
