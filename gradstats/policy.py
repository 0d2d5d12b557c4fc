"""A policy: a causal language model, its tokenizer, and the distribution whose score is measured."""

from __future__ import annotations

import importlib.resources
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from gradstats.hub import hub_problem

EMBEDDED = "embedded"

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
    """

    model: Any
    tokenizer: Any = None
    name: str = "model"
    temperature: float = 1.0
    revision: str | None = None

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

        A tokenizer without a chat template encodes the bare text.

        Args:
            prompt: the user's message.
            system_prompt: a system message to put first.
            template_options: further variables of the chat template, such as ``enable_thinking``.

        Raises:
            ValueError: when there is no tokenizer, or a system prompt but no chat template, or the template fails.
        """
        if self.tokenizer is None:
            raise ValueError("this policy has no tokenizer: load it with load_policy, or give rollouts of token ids")
        if not self.tokenizer.chat_template:
            if system_prompt is not None or template_options:
                raise ValueError(f"the tokenizer of {self.name} has no chat template for a system prompt or options")
            return list(self.tokenizer(prompt)["input_ids"])
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

    def describe(self) -> dict[str, Any]:
        """What a manifest records of the policy."""
        return {
            "name": self.name,
            "revision": self.revision,
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
    trust_remote_code: bool = False,
) -> Policy:
    """Load a causal language model that `transformers` knows, with its tokenizer.

    Args:
        name_or_path: "embedded" for the small arithmetic reasoner that ships with this package; a local folder; a
            ``.gguf`` file (its weights are dequantised; needs the extra ``gguf``); or an id on the hub.
        dtype: "float32" (default), "float64", "bfloat16" or "float16". Gradients in bfloat16 are several per cent off.
        temperature: temperature of the distribution whose log-probability is differentiated.
        device: "auto" takes CUDA where there is one, else the CPU; or any torch device name.
        revision: commit, tag or branch on the hub.
        trust_remote_code: run model code that comes with the weights; off unless you say so.

    Returns:
        The policy, in evaluation mode. Nothing of the model's ``generation_config`` is applied.

    Raises:
        FileNotFoundError: when a local folder or file does not exist.
        ConnectionError: when the name is no local folder and the hub cannot be reached or does not have it.
        ValueError: for an unknown dtype, a temperature that is not positive, or weights that cannot be read.
    """
    if dtype not in _DTYPES:
        raise ValueError(f"dtype is {dtype!r}: choose one of {', '.join(_DTYPES)}")
    name = os.fspath(name_or_path)
    source, options = _locate(name)
    options |= {"revision": revision} if revision else {}
    options["trust_remote_code"] = trust_remote_code
    if not Path(source).exists() and (reason := hub_problem(source, "config.json")):
        raise _unreachable(name, reason)
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
        model = AutoModelForCausalLM.from_pretrained(source, dtype=_DTYPES[dtype], **_weights_options(options))
    except OSError as error:
        raise _load_error(name, source, error) from error
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    model: Any = model.to(device).eval()  # pyright: ignore[reportArgumentType]
    model.requires_grad_(True)
    commit = getattr(model.config, "_commit_hash", None)
    return Policy(model, tokenizer, name, temperature, commit)


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


def _locate(name: str) -> tuple[str, dict[str, Any]]:
    """What to hand to from_pretrained, after looking for local paths first.

    The hub client answers a missing folder with a sentence about repository names, so it is never asked.
    """
    if name == EMBEDDED:
        return str(importlib.resources.files("gradstats") / "data" / "embedded_policy"), {}
    path = Path(name).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise FileNotFoundError(f"the GGUF file {name} does not exist")
        return str(path.parent), {"gguf_file": path.name}
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise FileNotFoundError(f"the model folder {name} holds no config.json: is it a saved transformers model?")
        return str(path), {}
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise FileNotFoundError(f"the model folder {name} does not exist")
    return name, {}


def _weights_options(options: dict[str, Any]) -> dict[str, Any]:
    if "gguf_file" not in options:
        return options
    try:
        import accelerate  # noqa: F401  (transformers needs both to read GGUF)
        import gguf  # noqa: F401
        from transformers import GgufConfig
    except ImportError as error:
        raise ImportError("reading a GGUF file needs gguf and accelerate: pip install 'gradstats[gguf]'") from error
    return options | {"quantization_config": GgufConfig(dequantize=True)}


def _load_error(name: str, source: str, error: OSError) -> OSError:
    reason = " ".join(str(error).split())
    if Path(source).is_dir():
        return OSError(f"the model folder {name} cannot be loaded: {reason}")
    return _unreachable(name, reason)


def _unreachable(name: str, reason: str) -> ConnectionError:
    return ConnectionError(
        f"the policy {name!r} is neither a local folder nor to be had from the Hugging Face hub from here: download it "
        f"where there is a connection (hf download {name} --local-dir FOLDER) and pass that folder instead; "
        f"{reason}"
    )
