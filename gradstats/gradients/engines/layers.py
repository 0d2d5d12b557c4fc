"""What each kind of layer contributes to the gradient of a sequence, and the reduction of it during a backward pass."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from transformers.pytorch_utils import Conv1D

from gradstats.gradients.engines.experts import ExpertsLayer, RoutedProducts
from gradstats.gradients.engines.recomputed import TOLERANCES, OtherModule, other_modules
from gradstats.gradients.engines.reduction import (
    OuterProducts,
    Reduction,
    contract,
    gram_strips,
    rows_at_once,
    sq_norms,
)
from gradstats.gradients.parameters import ParameterSelection, UnsupportedModuleError, describe, owners
from gradstats.policy.model import CausalModel

_CASTS: tuple[Callable[..., object], ...] = (Tensor.to, Tensor.type, Tensor.float, Tensor.double)


def may_be_linear(module: nn.Module) -> bool:
    """Return whether a module has the parameters of a linear map and no others."""
    parameters = dict(module.named_parameters())
    if not {"weight"} <= set(parameters) <= {"weight", "bias"} or "forward" in vars(module):
        return False
    return parameters["weight"].ndim == 2 and ("bias" not in parameters or parameters["bias"].ndim == 1)


class WatchedParameters(TorchFunctionMode):
    """Within this context, watches what is computed from the parameters of a linear map.

    ``products`` are input and output of each call of ``torch.nn.functional.linear`` with the parameters, in their own
    dtype or cast to another.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._weights: list[Tensor] = [module.get_parameter("weight")]
        self._biases: list[Tensor] = [parameter for name, parameter in module.named_parameters() if name == "bias"]
        self.products: list[tuple[Tensor, Tensor]] = []
        self.other_use = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        """Call the function, and look at its arguments."""
        kwargs = kwargs or {}
        watched = [value for value in tree_leaves((args, kwargs)) if _is_one_of(value, self._weights + self._biases)]
        found = func(*args, **kwargs)
        if not watched or not any(isinstance(leaf, Tensor) for leaf in tree_leaves(found)):
            return found
        if func is functional.linear and self._is_whole(*args, **kwargs):
            inputs = args[0] if args else kwargs["input"]
            if torch.is_grad_enabled() and not found.requires_grad:
                found.requires_grad_()
            self.products.append((inputs.detach(), found))
        elif func in _CASTS and _is_one_of(args[0], watched):
            (self._weights if _is_one_of(args[0], self._weights) else self._biases).append(found)
        else:
            self.other_use = True
        return found

    def _is_whole(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
        """Return whether the weight, and the bias where there is one, have their own places."""
        has_bias = bias is None if not self._biases else _is_one_of(bias, self._biases)
        return has_bias and _is_one_of(weight, self._weights) and not _is_one_of(input, self._weights + self._biases)


def _is_one_of(value: object, tensors: list[Tensor]) -> bool:
    return any(value is tensor for tensor in tensors)


@dataclass(frozen=True)
class EmbeddingRows:
    """The gradient of an embedding, for each sequence: rows of it, by token."""

    ids: Tensor  # (batch, time), the row to which each position adds
    values: Tensor  # (batch, time, columns), the values that it adds


Term = OuterProducts | EmbeddingRows | RoutedProducts | Tensor


@dataclass(frozen=True)
class Layer(ABC):
    """A module that owns selected parameters."""

    path: str
    module: Any
    names: dict[str, str]  # name of each selected parameter in the module ("weight", "bias") → its name in the model

    #: The form of the gradient of ``weight``; the gradient of ``bias`` is always a plain tensor.
    weight_term: ClassVar[type] = Tensor

    @staticmethod
    @abstractmethod
    def handles(module: nn.Module) -> bool:
        """Return whether a module is of this kind."""

    @abstractmethod
    def terms(self, inputs: Tensor, gradient: Tensor) -> Iterator[tuple[str, Term]]:
        """Yield the gradients of the selected parameters, for each sequence."""

    def term_kinds(self) -> Iterator[tuple[str, type]]:
        """Yield each selected parameter with the kind of term that one call of the module adds to its gradient."""
        for attribute, name in self.names.items():
            yield name, self.weight_term if attribute == "weight" else Tensor

    def per_token(self, tensor: Tensor, batch: int, times: Collection[int]) -> Tensor:
        """Return an input or output as (batch, time, …), also where the model has merged the axes batch and time."""
        if tensor.ndim > 2 and tensor.shape[0] == batch:
            return tensor
        if batch == 1 or tensor.shape[0] in {batch * time for time in times}:
            return tensor.reshape(batch, -1, *tensor.shape[1:])
        raise UnsupportedModuleError(
            f'engine="ghost" cannot distinguish sequences in {describe(self.path, self.module)}, which gets a '
            f'tensor of shape {tuple(tensor.shape)} for {batch} sequences: use engine="vmap" or engine="loop"'
        )


class LinearLayer(Layer):
    """``torch.nn.Linear``, weight (outputs, inputs), including the factors of an adapter."""

    weight_term = OuterProducts

    @staticmethod
    def handles(module: nn.Module) -> bool:
        """Return whether the module is of this kind; subclasses count where they compute the same function."""
        return isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward

    def terms(self, inputs: Tensor, gradient: Tensor) -> Iterator[tuple[str, Term]]:
        """Yield the outer products, gradient first."""
        if "weight" in self.names:
            yield self.names["weight"], OuterProducts(inputs.flatten(1, -2), gradient.flatten(1, -2))
        if "bias" in self.names:
            yield self.names["bias"], _sum_over_time(gradient, 1)


class TransposedLinearLayer(Layer):
    """GPT-2's ``Conv1D``, weight (inputs, outputs)."""

    weight_term = OuterProducts

    @staticmethod
    def handles(module: nn.Module) -> bool:
        """Return whether the module is of this kind; subclasses count where they compute the same function."""
        return isinstance(module, Conv1D) and type(module).forward is Conv1D.forward

    def terms(self, inputs: Tensor, gradient: Tensor) -> Iterator[tuple[str, Term]]:
        """Yield the outer products, input first."""
        if "weight" in self.names:
            yield self.names["weight"], OuterProducts(inputs.flatten(1, -2), gradient.flatten(1, -2), transposed=True)
        if "bias" in self.names:
            yield self.names["bias"], _sum_over_time(gradient, 1)


class EmbeddingLayer(Layer):
    """``torch.nn.Embedding`` of tokens or positions, and subclasses that multiply it by ``embed_scale``."""

    weight_term = EmbeddingRows

    @staticmethod
    def handles(module: nn.Module) -> bool:
        """Return False where gradients are divided by frequencies or the forward pass renormalises rows."""
        if not isinstance(module, nn.Embedding) or module.scale_grad_by_freq or module.max_norm is not None:
            return False
        return type(module).forward is nn.Embedding.forward or hasattr(module, "embed_scale")

    def per_token(self, tensor: Tensor, batch: int, times: Collection[int]) -> Tensor:
        """Return the gradient of every position; positions may be given once for all sequences."""
        if tensor.ndim > 1 and tensor.shape[0] in (1, batch):
            return tensor.expand(batch, *tensor.shape[1:])
        return super().per_token(tensor, batch, times)

    def terms(self, inputs: Tensor, gradient: Tensor) -> Iterator[tuple[str, Term]]:
        """Yield the rows; none for the padding token, which torch leaves out as well."""
        scale = getattr(self.module, "embed_scale", None)
        if scale is not None:
            gradient = gradient * torch.as_tensor(scale).to(gradient)
        if self.module.padding_idx is not None:
            gradient = gradient * (inputs != self.module.padding_idx)[..., None]
        yield self.names["weight"], EmbeddingRows(inputs, gradient)


class LayerNormLayer(Layer):
    """``torch.nn.LayerNorm``."""

    @staticmethod
    def handles(module: nn.Module) -> bool:
        """Return whether the module is of this kind; subclasses count where they compute the same function."""
        return isinstance(module, nn.LayerNorm) and type(module).forward is nn.LayerNorm.forward

    def terms(self, inputs: Tensor, gradient: Tensor) -> Iterator[tuple[str, Term]]:
        """Yield the whole gradients."""
        n_axes = len(self.module.normalized_shape)
        if "weight" in self.names:
            normalised = functional.layer_norm(inputs, self.module.normalized_shape, eps=self.module.eps)
            yield self.names["weight"], _sum_over_time(gradient * normalised, n_axes)
        if "bias" in self.names:
            yield self.names["bias"], _sum_over_time(gradient, n_axes)


class TorchRMSNormLayer(Layer):
    """``torch.nn.RMSNorm``."""

    @staticmethod
    def handles(module: nn.Module) -> bool:
        """Return whether the module is of this kind; subclasses count where they compute the same function."""
        return isinstance(module, nn.RMSNorm) and type(module).forward is nn.RMSNorm.forward

    def terms(self, inputs: Tensor, gradient: Tensor) -> Iterator[tuple[str, Term]]:
        """Yield the whole gradients."""
        normalised = functional.rms_norm(inputs, self.module.normalized_shape, eps=self.module.eps)
        yield self.names["weight"], _sum_over_time(gradient * normalised, len(self.module.normalized_shape))


class BroadcastLayer(Layer):
    """The RMSNorms of transformers: one vector ``weight``, multiplied or added element by element.

    However the module uses its weight (Gemma adds one to it), a weight of shape (batch, 1, …, width) in its place gives
    the same output, and autograd gives the gradient of that weight by sequence.
    """

    @staticmethod
    def handles(module: nn.Module) -> bool:
        """Decide by the name of the class, which differs between architectures only in its prefix."""
        parameters = dict(module.named_parameters(recurse=False))
        is_norm = type(module).__name__.endswith("RMSNorm") and not isinstance(module, nn.RMSNorm)
        return is_norm and set(parameters) == {"weight"} and parameters["weight"].ndim == 1

    def stand_in(self, inputs: Tensor, batch: int, times: Collection[int]) -> Tensor:
        """Return a weight for each sequence, to be used in place of the module's weight."""
        if inputs.shape[0] != batch:
            self.per_token(inputs, 0, times)
        weight = self.module.weight.detach()
        return weight.expand(batch, *[1] * (inputs.ndim - 2), len(weight)).requires_grad_()

    def terms(self, inputs: Tensor, gradient: Tensor) -> Iterator[tuple[str, Term]]:
        """Return the gradient of the substituted weight, which is the gradient of each sequence."""
        yield self.names["weight"], gradient.flatten(start_dim=1)


KINDS: tuple[type[Layer], ...] = (
    LinearLayer,
    TransposedLinearLayer,
    EmbeddingLayer,
    LayerNormLayer,
    TorchRMSNormLayer,
    BroadcastLayer,
)


def supported_layers(
    model: nn.Module, selection: ParameterSelection, wider: Collection[str] = (), stand_ins: Collection[str] = ()
) -> tuple[list[Layer], list[ExpertsLayer], list[OtherModule]]:
    """Return the modules that own selected parameters: layers of their kind, fused experts, those of no known kind.

    A module of no known kind has the parameters of the modules inside it as well, which it may read without calling
    them.
    """
    owned = [one for one in owners(model, selection) if one[0] not in stand_ins]
    every = (*KINDS, ExpertsLayer)
    kinds = {path: next((kind for kind in every if kind.handles(module)), None) for path, module, _ in owned}
    unknown = [one for one in owned if kinds[one[0]] is None]
    unknown += [(path, model.get_submodule(path), {}) for path in sorted(wider)]
    others = other_modules(model, selection, sorted(unknown, key=lambda one: one[0].count(".") + bool(one[0])))
    inside = tuple(f"{other.path}." for other in others)
    layers: list[Layer] = []
    experts: list[ExpertsLayer] = []
    for path, module, names in owned:
        kind = kinds[path]
        if kind is None or path in wider or path.startswith(inside):
            continue
        if kind is ExpertsLayer:
            experts.append(ExpertsLayer(path, module, names))
        else:
            layers.append(kind(path, module, names))  # pyright: ignore[reportArgumentType]
    return layers, experts, others


def _sum_over_time(values: Tensor, n_axes: int) -> Tensor:
    """Return (batch, *shape): the sum over all but the first and the last ``n_axes`` axes."""
    axes = tuple(range(1, values.ndim - n_axes))
    return values.sum(dim=axes) if axes else values


@dataclass(frozen=True)
class PerSequenceParameters:
    """A module whose own parameters are replaced during the forward pass."""

    path: str
    module: nn.Module
    names: dict[str, str]  # name of each selected parameter in the module → its name in the model

    @property
    def are_vectors(self) -> bool:
        """Whether each of the parameters has one axis."""
        return all(self.module.get_parameter(attribute).ndim == 1 for attribute in self.names)

    def terms(self) -> Iterator[tuple[str, type]]:
        """Yield each parameter with the kind of its gradient."""
        for name in self.names.values():
            yield name, Tensor

    @contextmanager
    def replaced(self, values: dict[str, Tensor]) -> Iterator[None]:
        """Let the module hold other tensors in place of its parameters."""
        own = {attribute: self.module._parameters[attribute] for attribute in values}
        self.module._parameters.update(values)  # pyright: ignore[reportArgumentType, reportCallIssue]
        try:
            yield
        finally:
            self.module._parameters.update(own)

    def by_sequence(self, batch: int) -> dict[str, Tensor]:
        """Return a copy of each parameter for every sequence, (batch, 1, width), that requires a gradient."""
        vectors = {attribute: self.module.get_parameter(attribute).detach() for attribute in self.names}
        return {
            attribute: vector.expand(batch, 1, len(vector)).requires_grad_() for attribute, vector in vectors.items()
        }


def broadcasts(model: CausalModel, stand_ins: Sequence[PerSequenceParameters], ids: Tensor) -> bool:
    """Return whether vectors that differ between sequences give each sequence the output that its own vectors give."""
    generator = torch.Generator().manual_seed(0)

    def different(vector: Tensor) -> Tensor:
        noise = torch.randn(len(ids), 1, len(vector), generator=generator, dtype=torch.float64).to(vector)
        return vector.detach() * (1 + 0.1 * noise) + 0.01 * noise

    chosen = [
        (one, {attribute: different(one.module.get_parameter(attribute)) for attribute in one.names})
        for one in stand_ins
    ]

    def logits(row: int | None) -> Tensor:
        with ExitStack() as stack:
            for one, values in chosen:
                of_row = values if row is None else {name: value[row, 0] for name, value in values.items()}
                stack.enter_context(one.replaced(of_row))
            return model(ids, use_cache=False)["logits"]

    with torch.no_grad():
        try:
            together = logits(None)
        except (RuntimeError, ValueError, IndexError):  # shapes that do not fit
            return False
        allowed = TOLERANCES.get(together.dtype.itemsize, 1e-1) * together.abs().max()
        return all(bool((together[row] - logits(row)[row]).abs().max() <= allowed) for row in range(len(ids)))


#: Address, shape and strides of a tensor.
Place = tuple[int, torch.Size, tuple[int, ...]]


class SharedInputs:
    """Counts of layers with the same input, by :func:`_place`."""

    def __init__(self, total: Counter[Place] | None = None) -> None:
        self._total: Counter[Place] = Counter(total)
        self._left = self._total.copy()

    def count(self, layer: Layer, inputs: Tensor) -> None:
        """Count one layer."""
        if layer.weight_term is OuterProducts and "weight" in layer.names:
            place = _place(inputs.flatten(1, -2))
            if self._left[place] <= 0:  # an earlier tensor was there
                self._total[place] = self._left[place] = 0
            self._total[place] += 1
            self._left[place] += 1

    def leave(self, place: Place) -> tuple[int, bool]:
        """Return how many layers have the input, and whether more of them are to come after this one."""
        self._left[place] -= 1
        return self._total[place] or 1, self._left[place] > 0

    def copy(self) -> SharedInputs:
        """Return the same counts for one backward pass."""
        return SharedInputs(self._total)


class CallCounts:
    """Counts of a forward pass, from which a backward pass knows when a parameter's gradient is complete."""

    def __init__(self) -> None:
        self.n_terms: Counter[tuple[str, type]] = Counter()
        self.ids: dict[str, list[Tensor]] = defaultdict(list)  # for each embedding, the ids of each use, (batch, time)
        self.sharing = SharedInputs()  # layers with the same input, as far as the forward pass records inputs

    def count(self, layer: Layer, inputs: Tensor) -> None:
        """Count one call of a layer's module."""
        self.n_terms.update(layer.term_kinds())
        if isinstance(layer, EmbeddingLayer):
            self.ids[layer.names["weight"]].append(inputs)
        if torch.is_grad_enabled():  # otherwise the layer runs again, on other tensors
            self.sharing.count(layer, inputs)


class HeadReduction:
    """Reduces the gradient of an output embedding in slices, one sequence at a time.

    It holds one gradient of the weight where a sequence takes several slices, or the weight is tied. Otherwise, the
    outer products of the slice are reduced as those of any layer.

    Args:
        layer: the output embedding.
        uses: the counts of the forward pass.

    Attributes:
        rows: for each sequence, where the weight is tied to the input embedding: the tokens that occur, ascending, and
            the rows of the gradient (multiplied by P) at them.
    """

    def __init__(self, layer: Layer, uses: CallCounts) -> None:
        self._names = layer.names
        self._uses = uses
        self._buffer: Tensor | None = None
        self.waiting = False

    @property
    def tied(self) -> Collection[str]:
        """The weight, if it is that of an embedding as well."""
        return set(self._names.values()) & set(self._uses.ids)

    def begin(self, reduction: Reduction, weights: Tensor) -> None:
        """Take the next pass over the slices for one weighting, (batch, kept)."""
        self._reduction = reduction
        self.weights = weights
        self.waiting = True
        self.rows: list[tuple[Tensor, Tensor]] = []

    def take(self, row: int, slices: Iterator[tuple[Tensor, Tensor, Tensor]], n_slices: int) -> None:
        """Take the slices of a sequence, see :class:`gradstats.gradients.head.HeadReducer`."""
        reduction = self._reduction.of_row(row)
        name, bias = self._names.get("weight"), self._names.get("bias")
        of_weight = None if name is None or (n_slices <= 1 and name not in self.tied) else self._zeros(name)
        of_bias = None
        with torch.no_grad():
            for states, gradients, weights in slices:
                weighted = states.to(reduction.dtype) * weights[:, None]
                if bias is not None:
                    part = gradients.T @ weights
                    of_bias = part if of_bias is None else of_bias + part
                if of_weight is not None:
                    of_weight.addmm_(gradients.T, weighted)
                elif name is not None:
                    _add_outer_products(reduction, name, OuterProducts(weighted[None], gradients[None]))
            if bias is not None and of_bias is not None:
                reduction.add(bias, of_bias[None])
            if name is not None and of_weight is not None:
                self._add_weight(reduction, row, name, of_weight)

    def _zeros(self, name: str) -> Tensor:
        """Return the buffer of one gradient."""
        if self._buffer is None:
            self._buffer = self.weights.new_empty(self._reduction.shape_of(name))
        return self._buffer.zero_()

    def _add_weight(self, reduction: Reduction, row: int, name: str, gradient: Tensor) -> None:
        preconditioner = reduction.preconditioner_of(name)
        step = rows_at_once(1, gradient.shape[1], gradient.device)

        def parts() -> Iterator[tuple[int, Tensor]]:
            for first in range(0, len(gradient), step):
                part = gradient[first : first + step]
                yield first, (part if preconditioner is None else part * preconditioner[first : first + step])[None]

        reduction.add_products(name, parts())
        if name in self.tied:
            tokens = torch.unique(torch.cat([ids[row if len(ids) > 1 else 0] for ids in self._uses.ids[name]]))
            rows = gradient[tokens]
            self.rows.append((tokens, rows if preconditioner is None else rows * preconditioner[tokens]))


class LayerReduction:
    """Reduces each parameter's gradient as soon as all its terms are available."""

    # `head` has reduced the gradient of an output embedding in slices; None where it is a layer like others

    def __init__(self, reduction: Reduction, uses: CallCounts, head: HeadReduction | None = None) -> None:
        self._reduction = reduction
        self._uses = uses
        self._head = head
        self._pending: dict[tuple[str, type], list[Term]] = defaultdict(list)
        self.sharing = uses.sharing.copy()
        self._input_grams: dict[Place, tuple[Tensor, list[Tensor]]] = {}
        self._heads: dict[str, tuple[Tensor, Tensor]] = {}

    def add(self, name: str, term: Term) -> None:
        """Add a term of a parameter's gradient."""
        key = (name, Tensor if isinstance(term, Tensor) else type(term))
        self._pending[key].append(term)
        if len(self._pending[key]) == self._uses.n_terms[key]:
            self._reduce(*key)

    def finish(self) -> None:
        """Reduce the remaining terms: those of modules of which one call did not influence the objective."""
        for kind in (Tensor, OuterProducts, EmbeddingRows, RoutedProducts):
            for name, pending in list(self._pending):
                if pending is kind and (name, kind) in self._pending:
                    self._reduce(name, kind)

    def _reduce(self, name: str, kind: type) -> None:
        if kind is EmbeddingRows and self._pending.get((name, OuterProducts)):
            return  # the terms of the head are not complete, and they come first
        terms = self._pending.pop((name, kind))
        if kind is Tensor:
            self._reduction.add(name, functools.reduce(torch.add, cast("list[Tensor]", terms)))
        elif kind is OuterProducts:
            self._reduce_outer_products(name, OuterProducts.join(cast("list[OuterProducts]", terms)))
        elif kind is RoutedProducts:
            RoutedProducts.join(cast("list[RoutedProducts]", terms)).add_to(self._reduction, name)
        else:
            self._reduce_rows(name, cast("list[EmbeddingRows]", terms))

    def _reduce_outer_products(self, name: str, term: OuterProducts) -> None:
        place = _place(term.inputs)
        n_sharing, more = self.sharing.leave(place)
        if _forms_products(self._reduction, name) or not term.prefers_gram(n_sharing):
            _add_products(self._reduction, name, term)
        else:
            _, shared = self._input_grams.pop(place, None) or (None, gram_strips(term.inputs, self._reduction.dtype))
            if more:  # with the inputs, so that nothing else comes to lie in their place
                self._input_grams[place] = term.inputs, shared
            self._reduction.add_sq_norms(name, contract(gram_strips(term.gradients, self._reduction.dtype), shared))
        if name in self._uses.ids:
            # Tied to an embedding: ‖H + E‖² = ‖H‖² + 2⟨E, H⟩ + ‖E‖² for the gradients of head and embedding, and ⟨E, H⟩
            # needs only the rows of H at the tokens' ids, (batch, time of the head, time of the embedding).
            ids = torch.cat(self._uses.ids[name], dim=1)[:, None].expand(-1, term.left.shape[1], -1)
            self._heads[name] = term.left.gather(2, ids), term.right
            if (name, EmbeddingRows) in self._pending:
                self._reduce(name, EmbeddingRows)

    def _reduce_rows(self, name: str, terms: list[EmbeddingRows]) -> None:
        reduction = self._reduction
        ids = torch.cat([term.ids for term in terms], dim=1)
        values = torch.cat([term.values for term in terms], dim=1).to(reduction.dtype)
        batch, _, columns = values.shape
        n_rows = int(ids.max()) + 1
        if self._head is not None and name in self._head.tied:
            n_rows = self._reduction.size_of(name) // columns
        owner = torch.arange(batch, device=ids.device)[:, None]
        keys, places = torch.unique(owner * n_rows + ids, return_inverse=True)
        rows = values.new_zeros(len(keys), columns).index_add_(0, places.flatten(), values.flatten(0, 1))
        preconditioner = reduction.preconditioner_of(name)
        if preconditioner is not None:
            rows = rows * preconditioner[keys % n_rows]
        total = torch.zeros(batch, dtype=torch.float64, device=ids.device).index_add_(0, keys // n_rows, sq_norms(rows))
        if name in self._heads:
            # 2⟨E, H⟩ = 2 Σ_{t,s} ⟨e_t, x_s⟩ g_s[id_t], with rows e_t of the embedding's gradient. In a metric
            # 2⟨P∘E, P∘H⟩ = 2⟨P²∘E, H⟩, and row id_t of P² multiplies e_t.
            gathered, inputs = self._heads.pop(name)
            if preconditioner is not None:
                values = values * preconditioner[ids].square()
            products = torch.bmm(inputs.to(reduction.dtype), values.transpose(1, 2))
            total += 2 * products.mul_(gathered).sum(dim=(1, 2)).double()
        elif self._head is not None and name in self._head.tied:
            # The rows of H were kept at all tokens that occur, those of E may lack some.
            known = torch.cat([row * n_rows + tokens for row, (tokens, _) in enumerate(self._head.rows)])
            of_head = torch.cat([values for _, values in self._head.rows])[torch.searchsorted(known, keys)]
            total.index_add_(0, keys // n_rows, 2 * (rows * of_head.to(rows)).sum(dim=1).double())
        reduction.add_sq_norms(name, total)
        sketches = reduction.sketches_of(name)
        if reduction.sketch is not None and sketches is not None:
            size = reduction.size_of(name)
            reduction.sketch.add_rows(sketches, name, size, keys // n_rows, keys % n_rows, rows)


def _forms_products(reduction: Reduction, name: str) -> bool:
    """Return whether a gradient has to be formed, whatever is cheaper.

    Inner products of inputs and of gradients give neither a sketch nor those of P∘(Σ_t g_t x_tᵀ).
    """
    return reduction.sketch is not None or reduction.preconditioner_of(name) is not None


def _add_products(reduction: Reduction, name: str, term: OuterProducts) -> None:
    products = term.without_idle_ends().products(reduction.dtype, reduction.preconditioner_of(name))
    reduction.add_products(name, products)


def _add_outer_products(reduction: Reduction, name: str, term: OuterProducts) -> None:
    """Add outer products that share their inputs with no other layer."""
    if _forms_products(reduction, name):
        _add_products(reduction, name, term)
    else:
        reduction.add_sq_norms(name, term.without_idle_ends().sq_norms(reduction.dtype))


def _place(tensor: Tensor) -> Place:
    """Return a tensor's place in memory, which two tensors that exist at the same time share only if equal."""
    return tensor.data_ptr(), tensor.shape, tensor.stride()
