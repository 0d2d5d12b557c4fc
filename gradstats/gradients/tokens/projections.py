r"""Engine ``tokens``: projections :math:`\langle s_t, v_k\rangle` of every token's score, by forward differentiation.

:math:`\langle s_t, v\rangle` is the derivative of :math:`\log\pi_{\theta + \varepsilon v}(y_t)` with respect
to :math:`\varepsilon`: one forward-mode pass gives it for all tokens of all sequences at once. Passes along several
directions run together and share all computation that does not depend on the direction.

A token's log-probability depends on only one of the last hidden states. One backward pass through the output embedding
gives the gradient of every token there, so the forward derivatives end at the hidden states, and no direction costs a
pass through the vocabulary.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, jvp, vmap
from torch.utils.hooks import RemovableHandle

from gradstats.gradients.attention import (
    forget_lengths,
    forward_mode_attention,
    measuring_attention,
    refuse_mixed_lengths,
)
from gradstats.gradients.engines.ghost import first_input, without_weight_gradients
from gradstats.gradients.engines.layers import EmbeddingLayer, Layer, LinearLayer, TransposedLinearLayer
from gradstats.gradients.engines.registry import is_tracing_failure
from gradstats.gradients.head import Head, sliced_head
from gradstats.gradients.objective import Chunk, Objective, TokenStatistics
from gradstats.gradients.parameters import ParameterSelection, UnsupportedModuleError, owners
from gradstats.measurement.disk_size import GIB
from gradstats.policy.memory import is_out_of_memory
from gradstats.policy.model import n_logits, output_embedding
from gradstats.policy.policy import Policy

#: Rank of a matrix's direction.
_RANK = 16


@dataclass(frozen=True)
class Factors:
    r"""Directions of one matrix, :math:`V_k = A_k B_k^\top`."""

    left: Tensor  # (directions, rows, rank), A_k
    right: Tensor  # (directions, columns, rank), B_k


@dataclass(frozen=True)
class Tangents:
    r"""Seeded isotropic directions :math:`v_k`, :math:`\mathbb E\,v_k v_k^\top = I`, of random signs.

    The direction of a matrix is :math:`V = A B^\top/\sqrt r` with random signs in A and B, which is far cheaper to
    follow through a linear layer, :math:`Vx = A(B^\top x)/\sqrt r`, at almost the same variance. Parameters that are
    not matrices have independent random signs. For a score s whose matrices are :math:`G_\ell`,

    .. math:: \operatorname{Var}\langle s, v\rangle^2
        \le 2\lVert s\rVert^4 + \frac 6r \sum_\ell \lVert G_\ell^\top G_\ell\rVert_F^2
        \le \Bigl(2 + \frac 6r\Bigr) \lVert s\rVert^4 :

    at rank 16 standard errors are at most 9 % above those of Gaussian directions, and that only where one matrix of
    rank one holds the whole of the score.

    Direction k of a parameter depends only on the seed, k, the parameter's name and its shape: not on the sequences,
    their chunks, or what else is measured.

    Hutchinson, "A stochastic estimator of the trace of the influence matrix" (1989).

    Args:
        seed: seed of the signs.
        n: number of directions.
        rank: r.
    """

    seed: int
    n: int
    rank: int = _RANK

    @property
    def distribution(self) -> str:
        """The distribution in words, for the metadata."""
        return f"random signs, matrices of rank {self.rank}"

    def has_factors(self, shape: Sequence[int]) -> bool:
        """Return whether the directions of a parameter are products of factors."""
        return len(shape) == 2

    def factors(self, name: str, shape: Sequence[int], which: Collection[int], like: Tensor) -> Factors:
        r"""Return the factors of the given directions of a matrix; the left factor is scaled by :math:`1/\sqrt r`."""
        rows, columns = shape
        signs = [self._signs(name, shape, number, (rows + columns) * self.rank) for number in which]
        both = torch.from_numpy(np.stack(signs)).to(like).view(len(signs), rows + columns, self.rank)
        return Factors(both[:, :rows] * self.rank**-0.5, both[:, rows:])

    def dense(self, name: str, shape: Sequence[int], which: Collection[int], like: Tensor) -> Tensor:
        """Return the given directions of a parameter as plain tensors, (directions, *shape)."""
        if self.has_factors(shape):
            pair = self.factors(name, shape, which, like)
            return pair.left @ pair.right.transpose(1, 2)
        signs = [self._signs(name, shape, number, int(np.prod(shape))) for number in which]
        return torch.from_numpy(np.stack(signs)).to(like).view(len(signs), *shape)

    def _signs(self, name: str, shape: Sequence[int], number: int, size: int) -> np.ndarray:
        digest = hashlib.sha256(f"{name}:{tuple(shape)}".encode()).digest()
        rng = np.random.default_rng([self.seed, number, *np.frombuffer(digest, dtype=np.uint32).tolist()])
        bits = np.unpackbits(np.frombuffer(rng.bytes(-(-size // 8)), dtype=np.uint8), count=size)
        return 2 * bits.astype(np.int8) - 1


_KINDS = (LinearLayer, TransposedLinearLayer, EmbeddingLayer)


class FactoredLayers:
    """The layers whose weights move along products of two thin factors, by the names and shapes of these weights.

    Inside :meth:`moving`, forward-mode differentiation with respect to ``epsilon`` moves each of these weights along
    its direction.
    """

    def __init__(self, model: nn.Module, selection: ParameterSelection, tangents: Tangents) -> None:
        found: dict[str, list[tuple[nn.Module, type[Layer]]]] = {}
        elsewhere: set[str] = set()
        for _, module, names in owners(model, selection):
            kind = next((kind for kind in _KINDS if kind.handles(module)), None)
            for attribute, name in names.items():
                if kind is None or attribute != "weight" or not tangents.has_factors(selection.parameters[name].shape):
                    elsewhere.add(name)
                else:
                    found.setdefault(name, []).append((module, kind))
        self._owners = {name: modules for name, modules in found.items() if name not in elsewhere}
        self.shapes = {name: tuple(selection.parameters[name].shape) for name in self._owners}

    @contextmanager
    def moving(self, factors: dict[str, Factors], epsilon: Tensor) -> Iterator[None]:
        """Move the weights along one direction while the context is open; those without factors are fixed.

        ``epsilon``, a scalar, is differentiated forward with tangent 1.
        """
        handles = [
            module.register_forward_hook(_moved(module, kind, pair, epsilon), with_kwargs=True)
            for name, pair in factors.items()
            for module, kind in self._owners[name]
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def _moved(module: nn.Module, kind: type[Layer], factors: Factors, epsilon: Tensor) -> Callable[..., Tensor]:
    def direction(entered: Tensor) -> Tensor:
        """Return the derivative of the module's output with respect to its weight, along the direction."""
        left, right = factors.left, factors.right
        if kind is LinearLayer:
            return (entered @ right) @ left.transpose(-1, -2)
        if kind is TransposedLinearLayer:
            return (entered @ left) @ right.transpose(-1, -2)
        rows = nn.functional.embedding(entered, left)
        padding = cast("nn.Embedding", module).padding_idx
        if padding is not None:  # its row has no gradient
            rows = rows * (entered != padding)[..., None]
        scale = getattr(module, "embed_scale", None)
        return (rows if scale is None else rows * torch.as_tensor(scale).to(rows)) @ right.transpose(-1, -2)

    def after(_module: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object], output: Tensor) -> Tensor:
        return _Moved.apply(output, first_input(args, kwargs), epsilon, direction)  # pyright: ignore

    return after


class _Moved(torch.autograd.Function):
    """The identity on a layer's output; its forward derivative adds the derivative along the layer's weight.

    Under vmap over directions the output is the same for all: it is computed once, and only the derivative has an
    axis of directions.
    """

    generate_vmap_rule = False

    @staticmethod
    def forward(output: Tensor, entered: Tensor, epsilon: Tensor, direction: Callable[[Tensor], Tensor]) -> Tensor:
        return output.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[object, ...], output: Tensor) -> None:
        ctx.save_for_forward(inputs[1])
        ctx.direction = inputs[3]

    @staticmethod
    def vmap(info: object, in_dims: tuple[int | None, ...], *inputs: object) -> tuple[Tensor, int | None]:
        return _Moved.apply(*inputs), in_dims[0]  # pyright: ignore

    @staticmethod
    def jvp(ctx: Any, d_output: Tensor | None, *_: object) -> Tensor:
        (entered,) = ctx.saved_tensors
        moved = ctx.direction(entered)
        return moved if d_output is None else d_output + moved


# More directions at once are not faster, since what they share is then a small fraction of the cost. The limits are in
# directions, and in tokens times directions, of which a small model needs many.
_ENOUGH_DIRECTIONS = 16
_ENOUGH_TOKENS = 2**14
# Elements of the output embedding's derivatives that are computed at a time.
_HEAD_ELEMENTS = 2**25


@dataclass(frozen=True)
class HeadGradients:
    """Results of one forward pass of a chunk and one backward pass through the output embedding."""

    statistics: TokenStatistics  # per kept position, (batch, kept) each
    hidden: Tensor  # (batch, kept, width), the input of the output embedding where each kept token is predicted
    of_hidden: Tensor  # (batch, kept, width), ∂log π(y_t)/∂ h_t
    of_output: Callable[[slice], Tensor]  # positions → (batch, n, vocabulary), the gradient of its output there


def head_gradients(policy: Policy, chunk: Chunk) -> HeadGradients:
    """Gradients of each token's log-probability with respect to the hidden state and the logits that predict it."""
    refuse_mixed_lengths(policy.model, chunk.times)
    head = output_embedding(policy.model)
    seen: dict[str, Tensor] = {}

    def enter(_module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        seen["hidden"] = inputs[0].detach().requires_grad_()
        return (seen["hidden"], *inputs[1:])

    def leave(_module: nn.Module, _inputs: tuple[object, ...], output: Tensor) -> None:
        seen["output"] = output

    with (
        Objective(policy.model, policy.temperature) as objective,
        measuring_attention(policy, batched=False),
        without_weight_gradients(policy.model),
        _hooks(head.register_forward_pre_hook(enter), head.register_forward_hook(leave)),
        torch.enable_grad(),
    ):
        sliced = sliced_head(policy.model, len(chunk.rows) * chunk.kept)
        logprobs, statistics = objective(policy.model, chunk.input_ids, chunk.kept)
        wanted = [seen["hidden"]] if sliced is not None else [seen["hidden"], seen["output"]]
        of_hidden, *of_output = torch.autograd.grad(logprobs, wanted, torch.ones_like(logprobs))
    hidden, of_hidden, *whole = (
        _predicting(values, chunk.kept) for values in (seen["hidden"].detach(), of_hidden, *of_output)
    )
    if sliced is None:
        return HeadGradients(statistics, hidden, of_hidden, lambda span: whole[0][:, span])
    weight, bias = head.get_parameter("weight").detach(), getattr(head, "bias", None)
    again = Head(hidden, weight, bias, chunk.input_ids[:, -chunk.kept :], policy.temperature, sliced)

    def in_slices(span: slice) -> Tensor:
        with torch.no_grad():
            return torch.stack([again.slice(row, span)[1].to(hidden.dtype) for row in range(len(hidden))])

    return HeadGradients(statistics, hidden, of_hidden, in_slices)


def project_tokens(
    policy: Policy,
    chunk: Chunk,
    selection: ParameterSelection,
    tangents: Tangents,
    gradients: HeadGradients,
    memory_gib: float,
) -> Float[Tensor, "batch kept directions"]:
    """Return the projections of the scores of all kept tokens; zero where a token does not count."""
    projector = _Projector(policy, chunk, selection, tangents, gradients)
    enough = max(_ENOUGH_DIRECTIONS, _ENOUGH_TOKENS // chunk.n_tokens)
    at_once = max(1, min(enough, int(memory_gib * GIB // projector.bytes_per_direction)))
    projected: list[Tensor] = []
    done = 0
    while done < tangents.n:
        which = range(done, min(done + at_once, tangents.n))
        try:
            projected.append(projector(which))
        except Exception as error:
            if is_out_of_memory(error) and len(which) > 1:
                at_once = max(1, len(which) // 2)
                warnings.warn(
                    f"memory ran out with {len(which)} directions at once: continuing with {at_once}",
                    RuntimeWarning,
                    stacklevel=4,
                )
                continue
            if is_out_of_memory(error) or not _is_untraceable(error):
                raise
            raise UnsupportedModuleError(
                f"token_probes need forward derivatives, which {policy.name} does not have "
                f"({str(error).splitlines()[0]}): leave that module out with params, or measure all tokens exactly "
                "(token_probes=0, token_exact as large as the longest completion)"
            ) from error
        else:
            done = which.stop
    return torch.cat(projected, dim=2) * (chunk.weights[0] != 0)[..., None]


def _is_untraceable(error: BaseException) -> bool:
    """Return whether torch.func could not trace the model, or an operation has no forward derivative."""
    if isinstance(error, NotImplementedError):
        return True
    return isinstance(error, RuntimeError) and (is_tracing_failure(error) or "forward AD" in str(error))


class _Projector:
    """Projects a chunk's token scores on some directions at a time."""

    def __init__(
        self,
        policy: Policy,
        chunk: Chunk,
        selection: ParameterSelection,
        tangents: Tangents,
        gradients: HeadGradients,
    ) -> None:
        self._policy, self._chunk, self._tangents, self._gradients = policy, chunk, tangents, gradients
        self._head = output_embedding(policy.model)
        # ⟨P s_t, v⟩ = ⟨s_t, P v⟩, and P∘(A Bᵀ) has no factors: in a metric every direction is written out.
        self._preconditioner = selection.preconditioner
        factored = replace(selection, parameters={}) if selection.preconditioner else selection
        self._layers = FactoredLayers(policy.model, factored, tangents)
        self._everything = {name: tensor.detach() for name, tensor in policy.model.named_parameters()}
        self._written_out = {
            name: self._everything[name] for name in selection.parameters if name not in self._layers.shapes
        }
        places = {id(tensor): name for name, tensor in policy.model.named_parameters()}
        self._head_names = {attribute: places[id(tensor)] for attribute, tensor in self._head.named_parameters()}

    @property
    def bytes_per_direction(self) -> int:
        """Estimated memory of one more direction: the direction itself, and derivatives of a layer's activations."""
        batch, time = self._chunk.input_ids.shape
        config = self._policy.model.config
        matrices = {name: tensor.shape for name, tensor in self._written_out.items() if tensor.ndim == 2}
        shapes = matrices if self._preconditioner else self._layers.shapes
        widths = [sum(shape) for name, shape in shapes.items() if name not in self._head_names.values()]
        activations = batch * time * max(widths, default=0)
        attention = batch * time**2 * int(getattr(config, "num_attention_heads", None) or 1)
        direction = sum(tensor.numel() for tensor in self._written_out.values())
        direction += self._tangents.rank * sum(sum(shape) for shape in self._layers.shapes.values())
        return self._policy.dtype.itemsize * (4 * activations + 4 * attention + direction)

    def __call__(self, which: range) -> Tensor:
        """Return (batch, kept, directions)."""
        like = self._gradients.hidden
        factors = {
            name: self._tangents.factors(name, shape, which, like) for name, shape in self._layers.shapes.items()
        }
        pairs = {name: (pair.left, pair.right) for name, pair in factors.items()}
        written_out = {name: self._direction(name, tensor, which, like) for name, tensor in self._written_out.items()}
        with forward_mode_attention(self._policy), torch.no_grad():
            through_body = vmap(self._through_body)(pairs, written_out)
            through_head = self._through_head(pairs, written_out)
        return (through_body + through_head).permute(1, 2, 0)

    def _direction(self, name: str, tensor: Tensor, which: range, like: Tensor) -> Tensor:
        directions = self._tangents.dense(name, tensor.shape, which, like)
        preconditioner = self._preconditioner.get(name)
        return directions if preconditioner is None else (directions * preconditioner).to(like)

    def _through_body(self, pairs: dict[str, tuple[Tensor, Tensor]], written_out: dict[str, Tensor]) -> Tensor:
        r"""Return :math:`\langle \partial\log\pi(y_t)/\partial h_t, \dot h_t\rangle`, (batch, kept)."""
        chunk = self._chunk

        def hidden(epsilon: Tensor, at: dict[str, Tensor]) -> Tensor:
            entered: list[Tensor] = []

            def keep(_module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
                entered.append(inputs[0])
                # The logits are not needed: one position of plain states, since along directions a product in bfloat16
                # copies the output embedding for each of them.
                return (self._gradients.hidden[:, :1], *inputs[1:])

            factors = {name: Factors(*pair) for name, pair in pairs.items()}
            forget_lengths(self._policy.model)
            with self._layers.moving(factors, epsilon), _hooks(self._head.register_forward_pre_hook(keep)):
                functional_call(self._policy.model, self._everything | at, (chunk.input_ids,), {"use_cache": False})
            return _predicting(entered[0], chunk.kept)

        derivative = self._derivative(hidden, written_out)
        return (derivative.to(self._kind) * self._gradients.of_hidden.to(self._kind)).sum(dim=-1)

    def _through_head(self, pairs: dict[str, tuple[Tensor, Tensor]], written_out: dict[str, Tensor]) -> Tensor:
        """Compute the term of the output embedding's parameters, (directions, batch, kept)."""
        gradients = self._gradients
        some = next(iter((*written_out.values(), *(left for left, _ in pairs.values()))))
        total = gradients.hidden.new_zeros(len(some), *gradients.hidden.shape[:2], dtype=self._kind)
        of_head = set(self._head_names.values())
        if not of_head & (set(pairs) | set(written_out)):
            return total
        pairs = {name: pair for name, pair in pairs.items() if name in of_head}
        written_out = {name: tensor for name, tensor in written_out.items() if name in of_head}
        batch, kept, _ = gradients.hidden.shape
        step = max(1, _HEAD_ELEMENTS // (len(some) * batch * n_logits(self._policy.model)))
        for first in range(0, kept, step):
            span = slice(first, min(first + step, kept))
            of_output = gradients.of_output(span).to(self._kind)

            def of_span(
                pairs: dict[str, tuple[Tensor, Tensor]],
                written_out: dict[str, Tensor],
                span: slice = span,
                of_output: Tensor = of_output,
            ) -> Tensor:
                def output(epsilon: Tensor, at: dict[str, Tensor]) -> Tensor:
                    factors = {name: Factors(*pair) for name, pair in pairs.items()}
                    moved = {inner: (self._everything | at)[name] for inner, name in self._head_names.items()}
                    with self._layers.moving(factors, epsilon):
                        return functional_call(self._head, moved, (gradients.hidden[:, span],))

                derivative = self._derivative(output, {name: written_out[name] for name in written_out})
                return (derivative.to(self._kind) * of_output).sum(dim=-1)

            total[:, :, span] = vmap(of_span)(pairs, written_out)
        return total

    @property
    def _kind(self) -> torch.dtype:
        return torch.promote_types(self._policy.dtype, torch.float32)

    def _derivative(self, function: Callable[..., Tensor], written_out: dict[str, Tensor]) -> Tensor:
        """Return the derivative along one direction: factored weights move with epsilon, the others as arguments."""
        one = torch.ones((), dtype=self._policy.dtype, device=self._policy.device)
        primals = {name: self._everything[name] for name in written_out}
        _, derivative = jvp(function, (torch.zeros_like(one), primals), (one, written_out))  # pyright: ignore[reportAssignmentType]
        return derivative


@contextmanager
def _hooks(*handles: RemovableHandle) -> Iterator[None]:
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _predicting(values: Tensor, kept: int) -> Tensor:
    """Return the values at the positions that predict the kept tokens, from values at all or at the last positions."""
    return values[:, -kept - 1 : -1]
