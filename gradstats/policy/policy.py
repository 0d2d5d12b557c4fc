"""Policies: a model with its tokenizer, loaded from a folder, a file or the hub, and the threads it runs with."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from gradstats.config.options import LEAST_TEMPERATURE, MOST_TEMPERATURE, how_to_set, of_type
from gradstats.policy.checkpoint import (
    EMBEDDED,
    adapter_base,
    adapter_folder,
    check_vocabulary,
    dequantised,
    is_adapter,
    known_as,
    load_adapter,
    load_checkpoint,
    load_error,
    locate,
    refuse_other_parameters,
    refuse_pickled,
    tokenizer_digest,
    unreachable,
    weights_digest,
    weights_file,
)
from gradstats.policy.model import DTYPES, CausalModel, class_name, dtype_name, unwrapped
from gradstats.policy.sharding import (
    is_sharded,
    n_ranks,
    own_device,
    reshard,
    shard,
    sharded_loading,
    shards_while_loading,
)
from gradstats.system.chat_template import refuse_endless_template
from gradstats.system.environment import commit_of, hub_problem


@dataclass(frozen=True)
class Policy:
    r"""A causal language model whose log-probabilities are those of its tempered distribution.

    :math:`\log\pi(y_t \mid x, y_{<t}) = \log\mathrm{softmax}(z_t / \tau)_{y_t}` with logits :math:`z_t` and
    temperature :math:`\tau`, as trainers compute it.

    Attributes:
        model: the model, in evaluation mode.
        tokenizer: its tokenizer; may be None where rollouts already contain token ids.
        name: the source from which it was loaded.
        temperature: :math:`\tau`, from 1e-4 to 1e4, of the distribution that is differentiated (and, by default,
            sampled from).
        revision: the hub commit of the weights, where there is one.
        adapter: the source of the peft adapter on top of the weights, where there is one.
        base: the model under the adapter, where ``name`` is the adapter's.
        digests: SHA-256 of the files of "weights" and "adapter" and of the "tokenizer", as far as they are local; empty
            for a model that was made in Python.
    """

    model: CausalModel
    tokenizer: Any = None
    name: str = "model"
    temperature: float = 1.0
    revision: str | None = None
    adapter: str | None = None
    base: str | None = None
    digests: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.model, torch.nn.Module):
            object.__setattr__(self, "model", unwrapped(self.model))
        _refuse_extreme(self.temperature)

    def __repr__(self) -> str:
        """Return the policy in a line; the layers are those of ``model``."""
        reshard(self.model)
        n = sum(parameter.numel() for parameter in self.model.parameters())
        dtype = str(self.dtype).removeprefix("torch.")
        return (
            f"<Policy {self.name!r}: {class_name(self.model)}, {n:,} parameters, {dtype} on {self.device}, "
            f"temperature {self.temperature:g}>"
        )

    @property
    def device(self) -> torch.device:
        """The device of the model's parameters."""
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
        template_options: Mapping[str, object] | None = None,
    ) -> list[int]:
        """Return the token ids of a prompt in the chat template, up to the start of the completion.

        Text that the template adds after the user's message belongs to the prompt, such as the ``<think>`` of
        R1-style templates. A tokenizer without a chat template encodes the plain text.

        Args:
            prompt: the user's message.
            system_prompt: a system message to put first.
            template_options: further variables of the chat template, such as ``enable_thinking``.

        Returns:
            The token ids.

        Raises:
            ValueError: when there is no tokenizer, there are a system prompt or options but no chat template, the
                template does not use an option, or the template fails.
        """
        if self.tokenizer is None:
            raise ValueError("this policy has no tokenizer: load it with load_policy, or pass rollouts with token ids")
        if not self.tokenizer.chat_template:
            if system_prompt is not None or template_options:
                raise ValueError(f"the tokenizer of {self.name} has no chat template for a system prompt or options")
            return list(self.tokenizer(prompt)["input_ids"])
        templates = self.tokenizer.chat_template
        text = " ".join(templates.values()) if isinstance(templates, dict) else templates
        for option in template_options or {}:  # one that is never used would be recorded and have no effect
            if not re.search(rf"\b{re.escape(option)}\b", text):
                raise ValueError(
                    f"the chat template of {self.name} does not use the template option {option!r}: leave it out, or "
                    "check its spelling in the model's documentation"
                )
        messages = [{"role": "system", "content": system_prompt}] if system_prompt is not None else []
        messages.append({"role": "user", "content": prompt})
        try:
            refuse_endless_template(self.tokenizer, messages, template_options or {})
            return list(
                self.tokenizer.apply_chat_template(
                    messages,
                    add_generation_prompt=True,
                    tokenize=True,
                    return_dict=False,
                    **dict(template_options or {}),
                )
            )
        except Exception as error:  # a template can raise any error
            raise ValueError(
                f"the chat template of {self.name} failed on the prompt {prompt[:60]!r}: {error}"
            ) from error

    def describe(self) -> dict[str, object]:
        """Return the description of the policy that a manifest records."""
        reshard(self.model)
        return {
            "name": self.name,
            "revision": self.revision,
            "adapter": self.adapter,
            "base": self.base,
            "architecture": class_name(self.model),
            "n_parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "dtype": dtype_name(self.dtype),
            "device": str(self.device),
            "temperature": self.temperature,
            "digests": dict(self.digests),
        }


def _refuse_extreme(temperature: float) -> None:
    if not LEAST_TEMPERATURE <= temperature <= MOST_TEMPERATURE:
        raise ValueError(
            f"temperature is {temperature}: the policy's temperature must be from {LEAST_TEMPERATURE:g} to "
            f"{MOST_TEMPERATURE:g}, where its log-probabilities are finite and differ"
        )


def refuse_unusable(device: str) -> None:
    """Refuse a device that torch does not know or has not got, or without float64, in which norms are summed (MPS)."""
    try:
        if not torch.empty(1, device=device, dtype=torch.float64).is_meta:
            return
        reason = "it holds no numbers"
    except (RuntimeError, AssertionError, ImportError, NotImplementedError, TypeError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0].removesuffix(".")
    here = ["auto", "cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
    raise ValueError(f"device is {device!r}, which cannot be used here ({reason}): choose {', '.join(here)}")


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
    sharded: bool = False,
    progress: bool = True,
) -> Policy:
    """Load a causal language model of ``transformers`` with its tokenizer.

    Args:
        name_or_path: "embedded", a local folder, a ``.gguf`` file or a hub id. "embedded" is the small arithmetic
            reasoner that ships with this package; the weights of a ``.gguf`` file are dequantised (extra ``gguf``); a
            folder or an id with a peft adapter loads the adapter on top of the base that it names.
        dtype: type of the weights and gradients: "float32", "float64", "bfloat16" or "float16". Gradients in bfloat16
            deviate by several per cent.
        temperature: temperature of the distribution whose log-probability is differentiated.
        device: "auto" (CUDA where there is one), "cpu" or "cuda"; or another torch device with float64 (not MPS).
        revision: commit, tag or branch on the hub; resolved to a commit, which ``policy.revision`` records. Of
            "embedded", a checkpoint of its training run, such as "step-0500".
        adapter: a peft adapter to apply to the model: a folder or a hub id (extra ``peft``), with ``@revision`` for
            a revision other than the newest. Its parameters are differentiated and those of the base are not; a
            tokenizer in its folder is used.
        trust_remote_code: run model code that comes with the weights.
        allow_pickle: read pickled weights, which may run code, where there are no safetensors.
        sharded: divide the weights over the ranks of the process group (FSDP2), each of which has to make this call:
            for a model that is larger than one GPU. Adapters and ``.gguf`` files are first read whole by each rank.
        progress: let transformers and the hub client show their own progress bars while they download.

    Returns:
        The policy, in evaluation mode. The model's ``generation_config`` is not applied.

    Raises:
        FileNotFoundError: when a local folder or file does not exist.
        ConnectionError: when the name is not a local folder and the hub cannot be reached or does not have it.
        ValueError: for an unknown dtype or device, a temperature outside its range, weights that cannot be read or are
            pickled, model code that is not allowed, a tokenizer that does not belong to the model, an adapter that
            does not fit, or ``sharded`` without a process group.
        ImportError: when an extra is missing.

    Example:
        >>> import gradstats as gs
        >>> policy = gs.load_policy("embedded", temperature=0.6)
        >>> policy.name, policy.temperature, policy.dtype
        ('embedded', 0.6, torch.float32)
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype!r}: choose one of {', '.join(DTYPES)}")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    sharded = sharded and n_ranks() > 1
    device = own_device(device) if sharded else device
    _refuse_extreme(temperature)
    refuse_unusable(device)
    name, base = os.fspath(name_or_path), None
    adapter = None if adapter is None else os.fspath(adapter)
    if adapter is None and is_adapter(name):
        adapter, base = name, adapter_base(name)
    folder = None if adapter is None else adapter_folder(adapter, allow_pickle)
    source, options = locate(base or name)
    local = Path(source).is_dir()
    if not local:
        if reason := hub_problem(source, "config.json", revision=revision):
            raise unreachable(source, reason)
        revision = commit_of(source, "config.json", revision=revision) or revision
        options |= {"revision": revision} if revision else {}
    if "gguf_file" not in options and not allow_pickle and local:
        refuse_pickled(name, Path(source))
    tokenizer_folder = folder if folder is not None and (folder / "tokenizer_config.json").is_file() else None
    embedded = (base or name) == EMBEDDED
    whole = adapter is not None or "gguf_file" in options or (embedded and revision is not None)
    divided = sharded and not whole and shards_while_loading(device)
    try:
        with _bars(shown=progress and not local):
            tokenizer, model = _load(source, options, tokenizer_folder, dtype, trust_remote_code, allow_pickle, divided)
    except Exception as error:  # readers of weights, tokenizers and GGUF raise errors of any type for a damaged file
        if trust_remote_code and not isinstance(error, (OSError, ValueError)):
            raise  # what the model's own code raised
        raise load_error(name, source, error) from error
    if revision is not None and embedded:
        load_checkpoint(model, revision)
    if getattr(model, "_hf_peft_config_loaded", False):
        raise ValueError(
            f"{source} is an adapter: name its base as policy, and {how_to_set('policy.adapter', str(source))}"
        )
    model.requires_grad_(True)
    if adapter is not None and folder is not None:
        load_adapter(model, adapter, folder)
        cast("torch.nn.Module", model).to(DTYPES[dtype])  # peft keeps an adapter in the dtype in which it was saved
    check_vocabulary(name, tokenizer, model)
    if sharded and not is_sharded(model):
        shard(model, device)
    cast("torch.nn.Module", model).to(device).eval()
    commit = getattr(model.config, "_commit_hash", None) or (revision if embedded or not local else None)
    digests = {"tokenizer": tokenizer_digest(tokenizer)}
    weights = weights_file(source, options, revision if embedded else None) if local else None
    for part, place in (("weights", weights), ("adapter", folder)):
        if place is not None and (found := weights_digest(place)) is not None:
            digests[part] = found
    return Policy(model, tokenizer, name, temperature, commit, adapter, base, digests)


def _load(
    source: str,
    options: Mapping[str, str],
    tokenizer_folder: Path | None,
    dtype: str,
    trust_remote_code: bool,
    allow_pickle: bool,
    divided: bool,
) -> tuple[PreTrainedTokenizerBase, CausalModel]:
    """Return the tokenizer and the model of a source, by ``from_pretrained``."""
    common: dict[str, Any] = {**options, "trust_remote_code": trust_remote_code}
    of_weights: dict[str, Any] = {}
    if "gguf_file" in options:
        of_weights = dequantised()
    elif not allow_pickle:
        of_weights = {"use_safetensors": True}
    if divided:
        of_weights |= sharded_loading(source, common)
    if tokenizer_folder is not None:
        tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder, trust_remote_code=trust_remote_code)
    else:
        tokenizer = AutoTokenizer.from_pretrained(source, **common)
    # Parameters of another shape are reported like missing ones, to be refused by name. transformers does not declare
    # that it returns a pair here.
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        source, dtype=DTYPES[dtype], output_loading_info=True, ignore_mismatched_sizes=True, **common, **of_weights
    )
    model, report = loaded
    refuse_other_parameters(source, report)
    return tokenizer, cast("CausalModel", model)


@contextmanager
def _bars(*, shown: bool) -> Iterator[None]:
    """Keep transformers, and the hub client that it uses, from drawing progress bars, if none are to be shown."""
    if shown or not transformers_logging.is_progress_bar_enabled():
        yield
        return
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.enable_progress_bar()


def as_policy(policy_or_model: object) -> Policy:
    """Return a policy unchanged, and wrap a transformers model as a policy of temperature 1 without a tokenizer."""
    if isinstance(policy_or_model, Policy):
        return policy_or_model
    if not isinstance(policy_or_model, torch.nn.Module):
        raise TypeError(
            f"policy is {of_type(policy_or_model)}: pass a Policy from load_policy, or a transformers model"
        )
    model = cast("CausalModel", unwrapped(policy_or_model))
    return Policy(model, None, known_as(model))


_SMALL = 10_000_000


@contextmanager
def suitable_threads(policy: Policy) -> Iterator[None]:
    """Run a small model on the CPU with one thread while the context is open.

    Its matrices are too small to be split: threads spend their time waiting for each other, and slow the run down
    several times where another process uses a core. Models above ten million parameters keep torch's setting.
    """
    kept = torch.get_num_threads()
    small = sum(parameter.numel() for parameter in policy.model.parameters()) < _SMALL
    if small and policy.device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(kept)
