"""The type of the models that are sampled from and measured."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast, get_args

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from gradstats.config.options import WeightType

#: Name → type, in the order in which messages list them.
DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in get_args(WeightType)}


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a type, as in ``"float32"``."""
    return str(dtype).removeprefix("torch.")


if TYPE_CHECKING:
    from transformers import GenerationMixin, PreTrainedModel

    class CausalModel(PreTrainedModel, GenerationMixin):
        """A causal language model of transformers."""

else:
    CausalModel = nn.Module  # peft wraps a model in a class that is not a PreTrainedModel but forwards its attributes


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model under wrappers that run it in another way: torch.compile, DataParallel."""
    while True:
        parallel = isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel)
        inner = model._modules.get("module" if parallel else "_orig_mod")
        if inner is None:
            return model
        model = inner


@contextmanager
def uncompiled() -> Iterator[None]:
    """Run modules and forward methods under torch.compile as they were written: hooks see their layers."""
    if "torch._dynamo" not in sys.modules:  # nothing is compiled, and importing it takes seconds
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


def class_name(model: nn.Module) -> str:
    """Return the name of a model's class; of a sharded one, whose class is another, that of the model itself."""
    kind = type(model)
    if isinstance(model, FSDPModule):
        kind = next(base for base in kind.__mro__ if not issubclass(base, FSDPModule))
    return kind.__name__


def vocabulary_size(model: CausalModel) -> int:
    """Return the number of rows of a model's input embedding, padding of the vocabulary included."""
    return cast("Tensor", model.get_input_embeddings().weight).shape[0]


def output_embedding(model: CausalModel) -> nn.Module:
    """Return the layer that turns the last hidden states into logits."""
    head = model.get_output_embeddings()
    if head is None:
        raise ValueError(
            f"{class_name(model)} has no output embedding, and so no log-probabilities: load the model with "
            "AutoModelForCausalLM"
        )
    return cast("nn.Module", head)


def n_logits(model: CausalModel) -> int:
    """Return the number of logits per position."""
    return cast("Tensor", output_embedding(model).weight).shape[0]


def refuse_weights_that_are_not_finite(model: CausalModel, name: str) -> None:
    """Refuse a model that would draw and score nonsense."""
    for path, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            raise ValueError(f"the weights of {name} hold NaN or infinity ({path}): load an intact checkpoint")
