"""A policy: a causal language model, its tokenizer, and the distribution whose score is measured."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from gradstats.policy.checkpoint import (
    adapter_base,
    adapter_folder,
    check_vocabulary,
    dequantised,
    is_adapter,
    load_adapter,
    load_error,
    locate,
    refuse_pickled,
    unreachable,
)
from gradstats.system.hub import commit_of, hub_problem

_DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True)
class Policy:
    r"""A causal language model whose log-probabilities are those of its tempered distribution.

    :math:`\log\pi(y_t \mid x, y_{<t}) = \log\mathrm{softmax}(z_t / \tau)_{y_t}` with logits :math:`z_t` and
    temperature :math:`\tau`, as trainers compute it.

    Attributes:
        model: the model, in evaluation mode.
        tokenizer: its tokenizer; may be None where rollouts already hold token ids.
        name: where it was loaded from.
        temperature: :math:`\tau > 0`, of the distribution that is differentiated (and sampled, by default).
        revision: the hub commit of the weights, where there is one.
        adapter: where the peft adapter on top of the weights came from, where there is one.
        base: the model under the adapter, where ``name`` is the adapter's.
    """

    model: Any
    tokenizer: Any = None
    name: str = "model"
    temperature: float = 1.0
    revision: str | None = None
    adapter: str | None = None
    base: str | None = None

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"temperature is {self.temperature}: the policy's temperature must be above 0")

    @property
    def device(self) -> torch.device:
        """Where the model's parameters live."""
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The type of the model's parameters."""
        return next(self.model.parameters()).dtype

    def encode_prompt(
        self,
        prompt: str,
        *,
        system_prompt: str | None = None,
        template_options: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Token ids of a prompt with the chat template around it, up to where the completion begins.

        What the template puts after the user's message belongs to the prompt, such as the ``<think>`` that
        R1-style templates open. A tokenizer without a chat template encodes the bare text.

        Args:
            prompt: the user's message.
            system_prompt: a system message to put first.
            template_options: further variables of the chat template, such as ``enable_thinking``.

        Raises:
            ValueError: when there is no tokenizer, a system prompt or options but no chat template, an option that
                the template does not use, or the template fails.
        """
        if self.tokenizer is None:
            raise ValueError("this policy has no tokenizer: load it with load_policy, or give rollouts of token ids")
        if not self.tokenizer.chat_template:
            if system_prompt is not None or template_options:
                raise ValueError(f"the tokenizer of {self.name} has no chat template for a system prompt or options")
            return list(self.tokenizer(prompt)["input_ids"])
        self._refuse_unused(template_options or {})
        messages = [{"role": "system", "content": system_prompt}] if system_prompt is not None else []
        messages.append({"role": "user", "content": prompt})
        try:
            return list(
                self.tokenizer.apply_chat_template(
                    messages,
                    add_generation_prompt=True,
                    tokenize=True,
                    return_dict=False,
                    **dict(template_options or {}),
                )
            )
        except Exception as error:  # jinja raises whatever the template's author chose
            raise ValueError(
                f"the chat template of {self.name} failed on the prompt {prompt[:60]!r}: {error}"
            ) from error

    def _refuse_unused(self, template_options: Mapping[str, Any]) -> None:
        """A variable that the template never reads would be recorded and have no effect."""
        templates = self.tokenizer.chat_template
        text = " ".join(templates.values()) if isinstance(templates, dict) else templates
        for option in template_options:
            if not re.search(rf"\b{re.escape(option)}\b", text):
                raise ValueError(
                    f"the chat template of {self.name} does not use the template option {option!r}: leave it out, or "
                    "check its spelling in the model's documentation"
                )

    def describe(self) -> dict[str, Any]:
        """What a manifest records of the policy."""
        return {
            "name": self.name,
            "revision": self.revision,
            "adapter": self.adapter,
            "base": self.base,
            "architecture": type(self.model).__name__,
            "n_parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "dtype": str(self.dtype).removeprefix("torch."),
            "device": str(self.device),
            "temperature": self.temperature,
        }


def load_policy(
    name_or_path: str | os.PathLike[str],
    *,
    dtype: str = "float32",
    temperature: float = 1.0,
    device: str = "auto",
    revision: str | None = None,
    adapter: str | os.PathLike[str] | None = None,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
) -> Policy:
    """Load a causal language model that `transformers` knows, with its tokenizer.

    Args:
        name_or_path: "embedded" for the small arithmetic reasoner that ships with this package; a local folder; a
            ``.gguf`` file (its weights are dequantised; needs the extra ``gguf``); an id on the hub; or a folder with
            a peft adapter, which is put on the base that it names.
        dtype: "float32" (default), "float64", "bfloat16" or "float16". Gradients in bfloat16 are several per cent off.
        temperature: temperature of the distribution whose log-probability is differentiated.
        device: "auto" takes CUDA where there is one, else the CPU; or any torch device name.
        revision: commit, tag or branch on the hub; resolved to a commit, which ``policy.revision`` keeps.
        adapter: a peft adapter to put on the model (extra ``peft``): a folder, or an id on the hub, with
            ``@revision`` where it is not the newest. Its parameters are differentiated and the base's are not; where
            its folder holds a tokenizer, that is used.
        trust_remote_code: run model code that comes with the weights; off unless you say so.
        allow_pickle: read pickled weights (``.bin``, ``.pt``) where there are no safetensors; off unless you say so,
            since reading them may run code.

    Returns:
        The policy, in evaluation mode. Nothing of the model's ``generation_config`` is applied.

    Raises:
        FileNotFoundError: when a local folder or file does not exist.
        ConnectionError: when the name is no local folder and the hub cannot be reached or does not have it.
        ValueError: for an unknown dtype, a temperature that is not positive, weights that cannot be read or are
            pickled, model code that was not allowed, a tokenizer of another vocabulary than the model's, or an
            adapter that does not fit.
        ImportError: when an extra is missing.
    """
    if dtype not in _DTYPES:
        raise ValueError(f"dtype is {dtype!r}: choose one of {', '.join(_DTYPES)}")
    name, base = os.fspath(name_or_path), None
    adapter = None if adapter is None else os.fspath(adapter)
    if adapter is None and is_adapter(name):
        adapter, base = name, adapter_base(name)
    layer = None if adapter is None else adapter_folder(adapter, allow_pickle)
    source, options = locate(base or name)
    local = Path(source).is_dir()
    if not local:
        if reason := hub_problem(source, "config.json", revision=revision):
            raise unreachable(source, reason)
        revision = commit_of(source, "config.json", revision=revision) or revision
        options |= {"revision": revision} if revision else {}
    weights_options: dict[str, Any] = {}
    if "gguf_file" in options:
        weights_options = dequantised()
    elif not allow_pickle:
        weights_options = {"use_safetensors": True}
        if local:
            refuse_pickled(name, Path(source))
    options["trust_remote_code"] = trust_remote_code
    try:
        if layer is not None and (layer / "tokenizer_config.json").is_file():
            tokenizer = AutoTokenizer.from_pretrained(layer, trust_remote_code=trust_remote_code)
        else:
            tokenizer = AutoTokenizer.from_pretrained(source, **options)
        model = AutoModelForCausalLM.from_pretrained(source, dtype=_DTYPES[dtype], **options, **weights_options)
    except (OSError, ValueError) as error:
        raise load_error(name, source, error) from error
    if getattr(model, "_hf_peft_config_loaded", False):
        raise ValueError(f"{source} is an adapter: pass its base as policy and adapter={source!r}")
    model.requires_grad_(True)
    if adapter is not None and layer is not None:
        load_adapter(model, adapter, layer)
        model.to(_DTYPES[dtype])  # peft keeps an adapter in the dtype that it was saved in
    check_vocabulary(name, tokenizer, model)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    model: Any = model.to(device).eval()  # pyright: ignore[reportArgumentType]
    commit = getattr(model.config, "_commit_hash", None) or (None if local else revision)
    return Policy(model, tokenizer, name, temperature, commit, adapter, base)


def as_policy(policy_or_model: Any) -> Policy:
    """A policy as it is; a bare transformers model as a policy of temperature 1 without a tokenizer.

    Raises:
        TypeError: for anything else.
    """
    if isinstance(policy_or_model, Policy):
        return policy_or_model
    if not isinstance(policy_or_model, torch.nn.Module):
        raise TypeError(
            f"policy is a {type(policy_or_model).__name__}: pass a Policy from load_policy, or a transformers model"
        )
    name = getattr(policy_or_model.config, "_name_or_path", "") or type(policy_or_model).__name__
    return Policy(policy_or_model, None, name)
