"""Linear maps inside modules of no known kind: routers, which read their weight themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

_CASTS: tuple[Callable[..., object], ...] = (Tensor.to, Tensor.type, Tensor.float, Tensor.double)


def may_be_linear(module: nn.Module) -> bool:
    """Return whether a module has the parameters of a linear map and no others."""
    parameters = dict(module.named_parameters())
    if not {"weight"} <= set(parameters) <= {"weight", "bias"} or "forward" in vars(module):
        return False
    return parameters["weight"].ndim == 2 and ("bias" not in parameters or parameters["bias"].ndim == 1)


class WatchedParameters(TorchFunctionMode):
    """Within this context, watches what is computed from the parameters of a linear map.

    Args:
        module: a module for which :func:`may_be_linear` holds.

    Attributes:
        products: input and output of each call of ``torch.nn.functional.linear`` with the parameters, in their own
            dtype or cast to another.
        other_use: whether something else was computed from a parameter.
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
            found = found if found.requires_grad else found.requires_grad_()
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
