r"""Log-probabilities from the last hidden states, with the output embedding in slices of tokens.

The logits of a long sequence, tokens × vocabulary, take more memory than everything else. Here the logits
:math:`z_t = W h_t + b` of a slice of tokens are computed, reduced to the log-probability of the sampled token, the
entropy and :math:`\sum\pi^2`, and to :math:`u_t = \partial\log\pi(y_t)/\partial h_t`, and overwritten by the next
slice. A backward pass with token weights :math:`w_t` then needs only :math:`w_t u_t`. The gradient of the output
embedding, :math:`\sum_t w_t\,(\partial\log\pi(y_t)/\partial z_t)\,h_t^\top`, is added up slice by slice.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional

from gradstats.policy.model import CausalModel, n_logits, output_embedding
from gradstats.policy.sharding import is_sharded, reshard

#: Up to this many logits are held whole, which is faster for short sequences.
MOST_LOGITS = 2**26
# Logits of a slice.
_SLICE = {"cpu": 2**24, "cuda": 2**27}
# Logits that are processed at a time: on a CPU, few enough for the cache.
_STRIP = {"cpu": 2**19, "cuda": 2**26}
# Tokens of the probe, and the largest difference of its logits relative to the largest logit, by bytes of an entry.
_PROBE = 8
_TOLERANCES = {8: 1e-10, 4: 1e-5, 2: 2e-2}


def slice_size(device: torch.device) -> int:
    """Return the number of logits of a slice."""
    return _SLICE.get(device.type, _SLICE["cuda"])


@dataclass(frozen=True)
class HeadMap:
    r"""What a model makes of the products z of its output embedding: :math:`s z`, or :math:`c \tanh(z / c)`.

    Attributes:
        scale: s.
        cap: c, or None for none.
    """

    scale: float = 1.0
    cap: float | None = None

    def __call__(self, products: Tensor) -> Tensor:
        """Return the logits, in at least float32."""
        products = products.to(torch.promote_types(products.dtype, torch.float32))
        if self.cap is not None:
            return self.cap * torch.tanh(products / self.cap)
        return products if self.scale == 1.0 else self.scale * products

    def slope(self, logits: Tensor) -> Tensor | float:
        """Return the derivative of the logits with respect to the products."""
        return self.scale if self.cap is None else 1 - (logits / self.cap).square()


def sliced_head(model: CausalModel, n_positions: int, most: int | None = None) -> HeadMap | None:
    """Return the map from products to logits, where the logits of so many positions are not to be held.

    They are held up to :data:`MOST_LOGITS`, or up to ``most`` where it is less.

    None where there are few of them, or where the model computes its logits in another way than :class:`HeadMap`.
    """
    few = n_positions * n_logits(model) <= min(MOST_LOGITS, MOST_LOGITS if most is None else most)
    if few and not is_sharded(model):
        return None
    found = head_map(model)  # ranks that hold a model together have to probe it together
    return None if few else found


_known: weakref.WeakKeyDictionary[nn.Module, tuple[tuple[object, ...], HeadMap | None]] = weakref.WeakKeyDictionary()


def head_map(model: CausalModel) -> HeadMap | None:
    """Compare the logits of a few tokens with those of each map; None where no map gives them.

    The model runs twice: with hidden states of various sizes, so that a map cannot pass because all logits are small,
    and with an output embedding that returns one column, which has to be all that the model needs.
    """
    head = output_embedding(model)
    numbers = frozenset(_numbers(model.config.to_dict()))
    key = (id(head), n_logits(model), numbers)
    known = _known.get(model)
    if known is None or known[0] != key:
        known = key, _probed(model, head, numbers)
        _known[model] = known
        if is_sharded(model):
            reshard(model)
    return known[1]


def _numbers(config: object) -> Iterator[float]:
    if isinstance(config, dict):
        for value in config.values():
            yield from _numbers(value)
    elif isinstance(config, (int, float)) and config:
        yield float(config)


def _probed(model: CausalModel, head: nn.Module, numbers: frozenset[float]) -> HeadMap | None:
    parameters = {name for name, _ in head.named_parameters()}
    if not {"weight"} <= parameters <= {"weight", "bias"} or "forward" in vars(head):
        return None
    products: list[Tensor] = []

    def enter(_module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        n, width = inputs[0].shape[-2:]
        noise = torch.randn(n, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        directions = noise.to(inputs[0])
        sizes = functional.linear(directions, _weight(head)).abs().amax(dim=1)
        wanted = torch.logspace(0, 2, n, dtype=torch.float64).to(sizes) / sizes
        chosen = (directions * wanted[:, None]).expand_as(inputs[0])
        products.append(functional.linear(chosen, _weight(head), _bias(head)))
        return (chosen, *inputs[1:])

    ids = torch.arange(_PROBE, device=next(model.parameters()).device)[None] % n_logits(model)
    handle = head.register_forward_pre_hook(enter)
    try:
        with torch.no_grad():
            logits = model(ids, use_cache=False)["logits"]
            found = _fitting(logits, products, numbers)
            if found is None or (is_sharded(model) and found != HeadMap()):
                return None
            try:
                with replaced_forward(head, lambda hidden: hidden[..., :1]):
                    model(ids, use_cache=False)
            except (RuntimeError, ValueError, IndexError, TypeError):
                return None
    finally:
        handle.remove()
    return found if len(products) == 2 else None


def _fitting(logits: Tensor, products: list[Tensor], numbers: frozenset[float]) -> HeadMap | None:
    """Return the map with a number of the model's configuration that gives the logits of the products."""
    if len(products) != 1 or logits.shape != products[0].shape:
        return None
    wide = products[0].to(torch.promote_types(products[0].dtype, torch.float32))
    largest = int(wide.abs().argmax())
    ratio = float(logits.flatten()[largest] / wide.flatten()[largest])
    bound = float(logits.abs().max())
    scales = sorted({1.0, *numbers, *(1 / one for one in numbers)}, key=lambda one: abs(one - ratio))
    caps = sorted(one for one in numbers if one >= 0.99 * bound)
    tolerance = _TOLERANCES[min(products[0].dtype.itemsize, 8)] * bound
    for one in (HeadMap(scales[0]), *(HeadMap(cap=cap) for cap in caps[:3])):
        if bool((one(wide) - logits).abs().max() <= tolerance):
            return one
    return None


@contextmanager
def replaced_forward(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Let a module compute something else; its hooks still see its inputs and outputs."""
    module.forward = forward
    try:
        yield
    finally:
        del module.forward


def _weight(head: nn.Module) -> Tensor:
    return head.get_parameter("weight")


def _bias(head: nn.Module) -> Tensor | None:
    return getattr(head, "bias", None)


@runtime_checkable
class HeadReducer(Protocol):
    """Takes the gradient of the output embedding of one sequence after the other.

    Attributes:
        weights: (batch, kept), the token weights.
        waiting: whether the next pass over the slices is to be taken.
    """

    weights: Tensor
    waiting: bool

    def take(self, row: int, slices: Iterator[tuple[Tensor, Tensor, Tensor]], n_slices: int) -> None:
        """Take the slices of a sequence in which weights are not zero.

        Args:
            row: the sequence.
            slices: hidden states (n, width), gradients of the products (n, vocabulary) and token weights (n,).
            n_slices: how many there are.
        """


@dataclass(frozen=True)
class Head:
    """The output embedding of a chunk.

    Attributes:
        hidden: (batch, kept, width), the hidden states that predict the tokens.
        weight: (vocabulary, width).
        drawn: (batch, kept), the sampled tokens.
    """

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    drawn: Tensor
    temperature: float
    map: HeadMap

    @property
    def spans(self) -> list[slice]:
        """The positions of each slice of a sequence."""
        kept, vocabulary = self.drawn.shape[1], len(self.weight)
        step = max(1, slice_size(self.weight.device) // vocabulary)
        if kept * vocabulary <= MOST_LOGITS:
            step = max(1, kept)
        return [slice(start, min(start + step, kept)) for start in range(0, kept, step)]

    def slice(self, row: int, span: slice, *, gradients: bool = True) -> tuple[Tensor, Tensor]:
        r"""Return log-probabilities, entropies and Σπ², (3, n), and :math:`\partial\log\pi(y_t)/\partial z_t`.

        The latter has the shape (n, vocabulary); without ``gradients``, it is undefined.
        """
        logits = self.map(functional.linear(self.hidden[row, span], self.weight, self.bias))
        slope = self.map.slope(logits) if gradients else 1.0
        if self.temperature != 1.0:
            logits.div_(self.temperature)
        drawn = self.drawn[row, span, None]
        found = logits.new_empty(3, len(logits))
        step = max(1, _STRIP.get(logits.device.type, _STRIP["cuda"]) // logits.shape[1])
        for first in range(0, len(logits), step):
            strip = slice(first, first + step)
            log_pi = logits[strip].log_softmax(dim=-1)
            found[0, strip] = log_pi.gather(1, drawn[strip])[:, 0]
            pi = log_pi.exp()
            found[1, strip] = -log_pi.mul_(pi).sum(dim=-1)
            found[2, strip] = torch.mul(pi, pi, out=log_pi).sum(dim=-1)
            if gradients:
                torch.neg(pi, out=logits[strip])
        if gradients:
            logits.scatter_add_(1, drawn, torch.ones_like(logits[:, :1]))
            if not isinstance(slope, float) or slope != self.temperature:
                logits.mul_(slope / self.temperature)
        return found, logits

    def busy_spans(self, weights: Tensor) -> list[slice]:
        """Return the slices of one sequence in which a token counts."""
        counts = (weights != 0).cpu()
        return [span for span in self.spans if bool(counts[span].any())]


class HeadLogprobs(torch.autograd.Function):
    r"""Log-probabilities, entropies and :math:`\sum\pi^2`, of which the first is differentiable.

    Arguments: hidden states, weight and bias, whose gradients are computed where they are required; sampled tokens,
    temperature and map, see :class:`Head`; and what takes the gradient of the output embedding by sequence, or None.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        drawn: Tensor,
        temperature: float,
        of_products: HeadMap,
        head_sum: HeadReducer | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities, entropies and sums of squared probabilities."""
        head = Head(hidden, weight, bias, drawn, temperature, of_products)
        kind = torch.promote_types(hidden.dtype, torch.float32)
        results = torch.empty(3, *drawn.shape, dtype=kind, device=hidden.device)
        of_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        differentiated = of_hidden is not None or head_sum is not None
        for row in range(len(drawn)):
            weights = drawn.new_zeros(drawn.shape[1]) if head_sum is None else head_sum.weights[row]
            busy = head.busy_spans(weights)

            def slices(row: int = row, weights: Tensor = weights) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
                for span in head.spans:
                    results[:, row, span], gradients = head.slice(row, span, gradients=differentiated)
                    if of_hidden is not None:
                        of_hidden[row, span] = gradients.to(weight.dtype) @ weight
                    if weights[span].any():
                        yield hidden[row, span], gradients, weights[span]

            if head_sum is None:
                for _ in slices():
                    pass
            else:
                head_sum.take(row, slices(), len(busy))
        if head_sum is not None:
            head_sum.waiting = False
        logprobs, entropy, sum_pi_squared = results
        ctx.save_for_backward(hidden, weight, bias, drawn, of_hidden)
        ctx.further = temperature, of_products, head_sum
        ctx.mark_non_differentiable(entropy, sum_pi_squared)
        return logprobs, entropy, sum_pi_squared

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        """Return gradients of hidden states, weight and bias."""
        hidden, weight, bias, drawn, of_hidden = ctx.saved_tensors
        temperature, of_products, head_sum = ctx.further
        head = Head(hidden, weight, bias, drawn, temperature, of_products)
        weights = cotangents[0]
        of_weight = torch.zeros_like(weight, dtype=weights.dtype) if ctx.needs_input_grad[1] else None
        of_bias = torch.zeros_like(bias, dtype=weights.dtype) if ctx.needs_input_grad[2] else None
        taking = head_sum if head_sum is not None and head_sum.waiting else None
        for row in range(len(drawn)) if taking or of_weight is not None or of_bias is not None else ():
            busy = head.busy_spans(weights[row])

            def slices(row: int = row, busy: list[slice] = busy) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
                for span in busy:
                    yield hidden[row, span], head.slice(row, span)[1], weights[row, span]

            if taking is not None:
                taking.take(row, slices(), len(busy))
                continue
            for states, gradients, of_tokens in slices():
                if of_weight is not None:
                    of_weight.addmm_(gradients.T, states * of_tokens[:, None])
                if of_bias is not None:
                    of_bias.addmv_(gradients.T, of_tokens)
        if taking is not None:
            taking.waiting = False
        return (
            None if of_hidden is None else (of_hidden * weights[..., None]).to(hidden.dtype),
            None if of_weight is None else of_weight.to(weight.dtype),
            None if of_bias is None else of_bias.to(bias.dtype),
            *[None] * 4,
        )
