"""Whether a model's forward pass gives the log-probabilities of a policy: it is fixed, causal, and of the tokens."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import numpy as np
import torch
from torch import Tensor

from gradstats.gradients.attention import forget_lengths, measuring_attention, refusing_lower_precision
from gradstats.gradients.head import replaced_forward, sliced_head
from gradstats.gradients.parameters import UnsupportedModuleError
from gradstats.gradients.recompute import layers_in_float32
from gradstats.policy.model import n_logits, output_embedding
from gradstats.policy.policy import Policy, suitable_threads
from gradstats.policy.sharding import is_sharded
from gradstats.rollouts.table import Rollouts

# Tokens of the completion that are scored.
_MOST_TOKENS = 32
# How often a model that draws random numbers although it is in evaluation mode is scored.
_RANDOM_PASSES = 16
# Logits that differ by less, relative to the largest, are equal.
_EQUAL = 1e-4
# Logits before a changed token may move by this share of what those after it move by, in float32: experts work on the
# tokens that chose them together, and round differently for others. In half precision another expert may be chosen.
_LEAK, _LEAK_IN_HALF = 1e-4, 0.1


def refuse_unfit_forward(policy: Policy, rollouts: Rollouts) -> None:
    """Score the first tokens of the first sequence, again, and with other tokens at its end.

    Refused are models whose output is random (dropout, layerdrop), that see the token they predict or later ones (an
    encoder, a masked language model), that have an encoder beside the decoder, or whose logits belong to other
    positions than those of the tokens (virtual tokens of peft).
    """
    _refuse_other_tokens(policy)
    prompt, completion = (list(rollouts.frame[f"{part}_tokens"].iloc[0]) for part in ("prompt", "completion"))
    ids = [*prompt, *completion[:_MOST_TOKENS]]
    with suitable_threads(policy), torch.no_grad():
        with refusing_lower_precision(policy), _random_draws(policy) as drawn:
            logits = _logits(policy, ids, len(prompt))
        in_training = any(module.training for module in policy.model.modules())
        again = _RANDOM_PASSES if drawn and not in_training else 1
        equal = all(_are_equal(logits, _logits(policy, ids, len(prompt))) for _ in range(again))
        if not equal or (drawn and in_training):
            raise ValueError(
                f"{policy.name} gives different outputs for the same input (dropout, layerdrop or another random part "
                "is on): call model.eval() before measuring"
            )
        for first in _replaced_from(len(prompt), len(ids)):
            other = _with_other_end(ids, first, prompt, n_logits(policy.model))
            leak = _leak(logits, _logits(policy, other, len(prompt)), first + 1 - len(prompt))
            most, half = _LEAK, policy.dtype.itemsize < 4
            if half and is_sharded(policy.model):
                most = _LEAK_IN_HALF
            elif half and leak > most:
                with layers_in_float32(policy.model):
                    exact, moved = (_logits(policy, one, len(prompt)) for one in (ids, other))
                leak = _leak(exact, moved, first + 1 - len(prompt))
            if leak > most:
                raise ValueError(
                    f"{policy.name} is not causal: changing a later token changes the log-probability of an earlier "
                    "one, so that no product of them is the probability of a completion: measure a model that attends "
                    "to earlier tokens alone (of encoders such as BERT, one loaded with is_decoder=True)"
                )


def _replaced_from(n_prompt: int, n: int) -> list[int]:
    """Return from which tokens on they are replaced: the completion's first, and one in its middle.

    The second is odd where it can be: positions that are seen together, blocks of diffusion models, begin at even ones.
    """
    middle = (n_prompt + n) // 2
    return sorted({n_prompt, min(middle + (middle % 2 == 0), n - 1)})


def _leak(logits: Tensor, other: Tensor, first: int) -> float:
    """Return by how much the logits before the changed tokens differ, relative to those from the first of them on."""
    moved = (logits.float() - other.float()).square().mean(dim=1).sqrt()
    after = float(moved[first:].max())
    return float(moved[:first].max()) / after if after else 0.0


def _refuse_other_tokens(policy: Policy) -> None:
    """Refuse what is known to need other inputs than the tokens, or to put tokens of its own before them."""
    config = policy.model.config
    output_embedding(policy.model)
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModuleError(
            f"{policy.name} has an encoder beside its decoder ({config.model_type}), and a policy scores prompt and "
            "completion as one sequence: measure a decoder-only model"
        )
    adapter = getattr(policy.model, "active_peft_config", None)
    # Those of prefix tuning stand in the keys and values of each layer, and no logits belong to them.
    if getattr(adapter, "is_prompt_learning", False) and "PREFIX" not in str(getattr(adapter, "peft_type", "")):
        raise UnsupportedModuleError(
            f"{policy.name} puts virtual tokens before the sequence (peft's prompt tuning, p-tuning or CPT), to which "
            "logits belong as well: measure an adapter without them, such as LoRA or prefix tuning"
        )


def _logits(policy: Policy, ids: list[int], n_prompt: int) -> Tensor:
    """Return the logits (tokens of the completion + 1, vocabulary): those that predict it, and those after it.

    Where they are many, it is the hidden states from which they follow, position by position.
    """
    forget_lengths(policy.model)
    head = output_embedding(policy.model)
    many = sliced_head(policy.model, len(ids)) is not None
    with measuring_attention(policy, batched=False), replaced_forward(head, _same) if many else nullcontext():
        logits: Tensor = policy.model(torch.tensor([ids], device=policy.device), use_cache=False)["logits"]
    if logits.shape[1] != len(ids):
        raise UnsupportedModuleError(
            f"the forward pass of {policy.name} gives logits at {logits.shape[1]} positions for {len(ids)} tokens: "
            "measure a model whose logits belong to its tokens, one each"
        )
    return logits[0, n_prompt - 1 :].clone()


def _same(hidden: Tensor) -> Tensor:
    return hidden


def _are_equal(one: Tensor, other: Tensor) -> bool:
    if torch.equal(torch.nan_to_num(one), torch.nan_to_num(other)):
        return True
    return bool((one - other).abs().max() <= _EQUAL * one.abs().max().clamp(min=1.0))


def _with_other_end(ids: list[int], first: int, prompt: list[int], vocabulary: int) -> list[int]:
    """Replace every token from the first on by another one of the sequence, so that none is foreign to the model."""
    known = [*ids[len(prompt) :], *prompt, (ids[first] + 1) % vocabulary]
    other = next((one for one in known if one != ids[first]), ids[first])
    return [*ids[:first], *(other if one != other else ids[first] for one in ids[first:])]


@contextmanager
def _random_draws(policy: Policy) -> Iterator[list[bool]]:
    """Note whether a random number is drawn inside, by torch, NumPy or Python; one that decided nothing as well."""

    def states() -> list[object]:
        device = policy.device
        of_torch = [torch.get_rng_state()]
        if device.type == "cuda":
            of_torch.append(torch.cuda.get_rng_state(device))
        of_numpy = np.random.get_state(legacy=False)  # noqa: NPY002 # the generator that a model's own code may use
        return [random.getstate(), repr(of_numpy), *(state.tolist() for state in of_torch)]

    before, drawn = states(), []
    yield drawn
    if states() != before:
        drawn.append(True)
