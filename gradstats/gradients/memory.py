"""The memory that measuring one chunk takes at its peak, estimated before it is measured."""

from __future__ import annotations

import bisect
import math
from dataclasses import astuple, dataclass

import torch
from torch import Tensor

from gradstats.gradients.attention import EAGER_IN_SLICES, MOST_SCORES, attention_of, measuring_attention
from gradstats.gradients.head import slice_size, sliced_head
from gradstats.gradients.objective import Objective
from gradstats.gradients.parameters import ParameterSelection
from gradstats.gradients.sketches import SLICE_ON_DEVICE, default_sketch_version
from gradstats.measurement.disk_size import GIB
from gradstats.policy.memory import is_accelerator
from gradstats.policy.model import n_logits, output_embedding
from gradstats.policy.policy import Policy
from gradstats.policy.sharding import layer_lists

#: What stands for an engine's name where the self-check is estimated, which takes one sequence as the loop does.
SELF_CHECK = "self-check"
#: Python, torch and transformers without a model, on a CPU. A GPU holds none of them.
LIBRARIES_GIB = 0.48
# Fitted to the peaks of figures/engines/engines.csv. Activations that the backward pass creates beside those that it
# needs:
ACTIVATION_COPIES = 1.2
# The logits and what is computed from them: their gradient; under torch.func every intermediate result.
_LOGIT_COPIES = {"ghost": 2.0, "loop": 2.0, "vmap": 6.0, SELF_CHECK: 4.0}
# Gradients of all selected parameters while they are added up and reduced, for each sequence that is held.
_GRADIENT_COPIES = {"ghost": 0.0, "loop": 2.4, "vmap": 1.5, SELF_CHECK: 1.5}
# Logits of a slice that exist at once: where autograd differentiates them (the self-check), and in the engine.
_SLICE_COPIES = {"ghost": 1.2, "loop": 1.2, SELF_CHECK: 4.0}
_LENGTHS = (32, 64)


@dataclass(frozen=True)
class PeakMemory:
    """An estimate in GiB, by what takes it."""

    libraries: float
    weights: float
    activations: float
    logits: float
    gradients: float
    sketches: float
    preconditioner: float
    slices: float = 0.0  # of products and their sketches, on an accelerator; a CPU's are small

    @property
    def total(self) -> float:
        """The sum, in GiB."""
        return sum(astuple(self))


@dataclass(frozen=True)
class ActivationSize:
    """Bytes that the forward pass of one sequence keeps: ``linear`` · time + ``quadratic`` · time².

    Attributes:
        longest_whole: tokens above which attention goes in slices of queries, so that autograd keeps no square.
    """

    linear: float
    quadratic: float
    longest_whole: float = math.inf

    def __call__(self, time: int) -> float:
        """Return the bytes of one sequence of that length."""
        return self.linear * time + (self.quadratic * time**2 if time <= self.longest_whole else 0.0)

    def slice_bytes(self, time: int, n_layers: int) -> float:
        """Return the bytes of a slice of one layer's attention, where it goes in slices."""
        return self.quadratic * self.longest_whole**2 / n_layers if time > self.longest_whole else 0.0


def activation_size(policy: Policy) -> ActivationSize:
    """Count what autograd keeps of two short sequences without parameters and logits; attention may grow with time²."""
    with measuring_attention(policy, batched=False):
        (short, long), (few, many) = _LENGTHS, (_kept_bytes(policy, length) for length in _LENGTHS)
        sliced = attention_of(policy.model) == EAGER_IN_SLICES
    quadratic = max(0.0, (many / long - few / short) / (long - short))
    heads = getattr(policy.model.config.get_text_config(), "num_attention_heads", 1)
    longest = math.sqrt(MOST_SCORES / heads) if sliced and isinstance(heads, int) else math.inf
    return ActivationSize(few / short - quadratic * short, quadratic, longest)


def peak_memory(
    policy: Policy,
    engine: str,
    selection: ParameterSelection,
    n_sequences: int,
    time: int,
    sketch_dim: int | None,
    activations: ActivationSize,
    recompute: bool = False,
) -> PeakMemory:
    """Estimate the peak of an engine on a chunk; within 30 % of what was measured in figures/memory/memory.csv.

    Args:
        policy: the policy.
        engine: the name of the engine, or :data:`SELF_CHECK`.
        selection: the differentiated parameters.
        n_sequences: number of sequences of the chunk.
        time: number of tokens of each.
        sketch_dim: dimension of the sketches, or None.
        activations: what the forward pass of a sequence keeps.
        recompute: whether the layers run again in the backward pass.
    """
    at_once = 1 if engine in ("loop", SELF_CHECK) else n_sequences
    item = policy.dtype.itemsize
    config = policy.model.config.get_text_config()
    layers = getattr(config, "num_hidden_layers", 1)
    kept = at_once * (activations(time) / (layers if recompute else 1) + activations.slice_bytes(time, layers))
    inputs = at_once * time * item * layers * config.hidden_size if recompute else 0
    kept += inputs  # of all layers, beside the activations of one
    sketches = 0.0
    if sketch_dim is not None:
        # Sketches are float32; version 1 keeps signs as bits.
        signs = selection.n_parameters / 8.0 if default_sketch_version(selection.n_parameters) == 1 else 0.0
        sketches = 4.0 * n_sequences * sketch_dim + signs
    sizes = (
        item * sum(parameter.numel() for parameter in policy.model.parameters()),
        ACTIVATION_COPIES * kept,
        _logit_bytes(policy, engine, selection, at_once, time),
        _GRADIENT_COPIES[engine] * at_once * item * selection.n_parameters,
        sketches,
        sum(one.numel() * one.element_size() for one in selection.preconditioner.values()),
    )
    if not is_accelerator(policy.device):
        return PeakMemory(LIBRARIES_GIB, *(size / GIB for size in sizes))
    weights, held, logits, gradients, *others = sizes
    # A product, with its signs and gathered; signs and places are the same for all sequences.
    of_coordinate = 4 if sketch_dim is None else 12 + 16 / at_once
    of_layers, of_others = (
        of_coordinate * min(at_once * largest, SLICE_ON_DEVICE) for largest in _largest_parameters(policy, selection)
    )
    if engine == "ghost":
        logits = max(0.0, logits - held) if recompute else logits  # which are released before a layer runs again
        # Slices lie where the backward pass of the layer had its temporary tensors, or the logits a second copy.
        released = (1 - 1 / ACTIVATION_COPIES) * held + logits / 2
        # Beside the parameters of no layer nothing is held of layers that run again but their inputs.
        layer_released = ACTIVATION_COPIES * (kept - inputs) if recompute else released
    else:  # whole gradients, of which torch keeps no second copy here, are reduced when the backward pass is over
        gradients = at_once * item * selection.n_parameters
        released = layer_released = held + logits
    slices = max(0.0, of_layers - released, of_others - layer_released)
    return PeakMemory(0.0, *(size / GIB for size in (weights, held, logits, gradients, *others, slices)))


def _largest_parameters(policy: Policy, selection: ParameterSelection) -> tuple[int, int]:
    """Return the size of the largest selected parameter inside the layers, and of the largest that is in none."""
    inside = {id(one) for _, layers in layer_lists(policy.model) for one in layers.parameters()}
    sizes = [(id(one) in inside, one.numel()) for one in selection.parameters.values()]
    in_layers, others = (max((n for known, n in sizes if known == wanted), default=0) for wanted in (True, False))
    return in_layers, others


def _logit_bytes(policy: Policy, engine: str, selection: ParameterSelection, n_sequences: int, time: int) -> float:
    """Bytes of the logits and their gradient: of all of them, or of a slice with the buffers of the whole."""
    item, n_columns = max(policy.dtype.itemsize, 4), n_logits(policy.model)
    with measuring_attention(policy, batched=False):
        size = slice_size(torch.device("cpu") if engine == SELF_CHECK else policy.device)
        most = size if engine == SELF_CHECK else None
        sliced = engine != "vmap" and sliced_head(policy.model, n_sequences * time, most) is not None
    if not sliced:
        return _LOGIT_COPIES[engine] * n_sequences * time * item * n_columns
    weight = output_embedding(policy.model).get_parameter("weight")
    is_selected = any(one is weight for one in selection.parameters.values())
    buffer = weight.numel() if engine == "ghost" and is_selected else 0
    of_hidden = 2 * n_sequences * time * weight.shape[1]
    return item * (_SLICE_COPIES[engine] * size + buffer + of_hidden)


def tokens_that_fit(
    policy: Policy,
    engine: str,
    selection: ParameterSelection,
    sketch_dim: int | None,
    activations: ActivationSize,
    recompute: bool,
    memory_gib: float,
) -> int:
    """Return the length of the longest sequence whose estimated peak is at most ``memory_gib``; at most 2²²."""

    def fits(time: int) -> bool:
        peaks = [
            peak_memory(policy, name, selection, 1, time, sketch_dim, activations, recompute).total
            for name in (engine, SELF_CHECK)
        ]
        return max(peaks) <= memory_gib

    return bisect.bisect_left(range(1, 2**22), True, key=lambda time: not fits(time))


def _kept_bytes(policy: Policy, length: int) -> int:
    """Bytes of the tensors that autograd keeps of one sequence, each storage once."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in policy.model.parameters()}
    vocabulary = n_logits(policy.model)
    kept: dict[int, int] = {}

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights and tensor.shape[-1:] != (vocabulary,):
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    ids = torch.zeros(1, length, dtype=torch.long, device=policy.device)
    with (
        Objective(policy.model, policy.temperature) as objective,
        torch.enable_grad(),
        torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor),
    ):
        # What autograd keeps lives as long as the result, so that no two tensors have one address.
        result = objective(policy.model, ids, length - 1)
    del result
    return sum(kept.values())


def cache_bytes(policy: Policy) -> int:
    """Bytes of keys and values of one token; 0 for an architecture that does not state their shape."""
    config = policy.model.config
    layers, heads = getattr(config, "num_hidden_layers", 0), getattr(config, "num_attention_heads", 0)
    if not (layers and heads):
        return 0
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    return 2 * policy.dtype.itemsize * layers * (getattr(config, "num_key_value_heads", None) or heads) * width
