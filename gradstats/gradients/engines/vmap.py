"""Engine ``vmap``: per-sequence gradients by ``torch.func``, for any architecture that torch.func can trace."""

from __future__ import annotations

from torch import Tensor
from torch.func import functional_call, vjp, vmap
from transformers.utils import ModelOutput

from gradstats.gradients.attention import measuring_attention
from gradstats.gradients.blocks import ParameterSelection
from gradstats.gradients.engines.reduction import ChunkResult, reduce_gradients, stack_weightings
from gradstats.gradients.engines.unsupported import UnsupportedModuleError
from gradstats.gradients.held_parameters import whole_parameters
from gradstats.gradients.memory import is_out_of_memory
from gradstats.gradients.objective import Chunk, Objective, TokenStatistics
from gradstats.gradients.rotary import refuse_mixed_lengths
from gradstats.gradients.sketches import CountSketch
from gradstats.policy.policy import Policy


def vmap_engine(policy: Policy, chunk: Chunk, selection: ParameterSelection, sketch: CountSketch | None) -> ChunkResult:
    """Differentiate all sequences of a chunk at once, ``vmap(vjp(log-probabilities))``.

    It holds a gradient of every selected parameter for every sequence and every weighting of the chunk.

    Raises:
        UnsupportedModuleError: when gradient checkpointing is on, the model is sharded or offloaded, or torch.func
            cannot trace the model, for example the usual loop over the experts of a mixture.
    """
    model = policy.model
    refuse_mixed_lengths(model, chunk.times)
    if any(getattr(module, "gradient_checkpointing", False) for module in model.modules()):
        raise UnsupportedModuleError(
            'engine="vmap" cannot go through gradient checkpointing: switch it off on the model, or use engine="loop"'
        )
    everything = {name: tensor.detach() for name, tensor in model.named_parameters()}
    parameters = {name: tensor.detach() for name, tensor in whole_parameters(model, selection).items()}
    n_weightings = len(chunk.weights)
    with (
        Objective(model, policy.temperature, traced=True) as objective,
        measuring_attention(policy, batched=True),
    ):

        def gradients_of_one(ids: Tensor, weights: Tensor) -> tuple[list[dict[str, Tensor]], TokenStatistics]:
            def logprobs(at: dict[str, Tensor]) -> tuple[Tensor, TokenStatistics]:
                def call(*args: object, **kwargs: object) -> ModelOutput:
                    return functional_call(model, everything | at, args, kwargs)

                values_of_one, statistics = objective(call, ids[None], chunk.kept)
                return values_of_one[0], TokenStatistics(*(values[0] for values in statistics))

            _, pull_back, statistics = vjp(logprobs, parameters, has_aux=True)  # pyright: ignore[reportAssignmentType]
            return [pull_back(weights[number])[0] for number in range(n_weightings)], statistics

        try:
            gradients, statistics = vmap(gradients_of_one)(chunk.input_ids, chunk.weights.transpose(0, 1))
        except RuntimeError as error:
            if is_out_of_memory(error) or not is_tracing_failure(error):
                raise
            raise UnsupportedModuleError(
                f'engine="vmap" cannot trace {policy.name} ({str(error).split(". ")[0]}): for a mixture of experts '
                'call model.set_experts_implementation("batched_mm") first; otherwise use engine="loop"'
            ) from error
        reduced = [reduce_gradients(of_weighting, selection, sketch) for of_weighting in gradients]
    return stack_weightings(chunk, reduced, statistics)


def is_tracing_failure(error: RuntimeError) -> bool:
    """Return whether an error means that torch.func cannot trace the model."""
    words = ("vmap", "functorch", "torch.func", "batching rule", "mutate a captured tensor")
    return any(word in str(error).lower() for word in words)
