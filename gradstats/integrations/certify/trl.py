"""GRPOTrainer of TRL as what is certified: its own generation step, with a stub for the model, and its own loss."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradstats.integrations.certify.batches import Completions
from gradstats.integrations.certify.invariances import Subject
from gradstats.integrations.certify.labels import known

_LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "cispo ε_high=5", "sapo", "luspo", "vespo")
_SCALES, _LEVELS = ("group", "batch", "none"), ("token", "sequence")
_MODES = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")
_PADDING, _END, _WORD, _FIRST_ROW = 0, 1, 2, 3  # token ids; a prompt is the number of its row
_MAX_LENGTH = 3
_N_ROWS = 64  # at most
#: What labels are tried with beside their defaults: TRL's own values.
_PARAMETERS = {
    "eps": (1e-4,), "scope": ("batch",), "convention": ("trl",), "eps_low": (0.2,), "eps_high": (0.2, 5.0),
    "cap": (3.0,), "high": (3.0,), "low": (1e-12,), "max_tokens": (float(_MAX_LENGTH),), "rescale": (False,),
}  # fmt: skip


class _Processes:
    """An accelerator of processes that run one after the other: a first round records what they gather."""

    def __init__(self, number: int, of_one: Any) -> None:
        self.num_processes, self.process_index, self._of_one = number, 0, of_one
        self._seen: list[list[Tensor]] = [[] for _ in range(number)]
        self._place: int | None = None

    def gather(self, value: Tensor) -> Tensor:
        """Return the values of all processes once they are known."""
        if self._place is None:
            self._seen[self.process_index].append(value)
            return value.reshape(-1) if value.ndim == 0 else value
        self._place += 1
        return torch.cat([of_process[self._place - 1].reshape(-1) for of_process in self._seen])

    def begin(self, process: int, known: bool) -> None:
        """Begin with a process, whose calls of ``gather`` are counted from the first."""
        self.process_index, self._place = process, 0 if known else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of_one, name)


@dataclass(frozen=True, kw_only=True)
class _Grpo(Subject):
    """One setting of GRPOTrainer."""

    trainer: Any
    given: dict[str, Any]  # attributes of the trainer
    from_vllm: bool = False  # the older sampler is the engine, and the policy has made no step; else it is the policy's
    generated: weakref.WeakKeyDictionary[Completions, dict[str, Any]] = field(default_factory=weakref.WeakKeyDictionary)

    def advantages(self, batch: Completions) -> Tensor:
        """Return those of the trainer's generation step."""
        return self._generation(batch)["advantages"]

    def weights(self, batch: Completions, advantages: Tensor, steps: int = 1, processes: int = 1) -> Tensor:
        """Differentiate the trainer's loss of each accumulation step, which divides by their number itself."""
        logprobs = batch.logprobs.clone().requires_grad_()
        if steps == processes == 1:
            parts = [self._generation(batch)]
            with self._ready(batch, logprobs):
                total = self._gradient(parts, advantages, logprobs)
        else:
            total = self._split(batch, advantages, logprobs, steps, processes)
        return -total / processes

    def _gradient(self, parts: list[dict[str, Any]], advantages: Tensor, logprobs: Tensor) -> Tensor:
        total = torch.zeros_like(logprobs)
        for inputs in parts:
            rows = inputs["prompt_ids"][:, -1] - _FIRST_ROW
            loss = self.trainer._compute_loss(self.trainer.model, inputs | {"advantages": advantages[rows]})
            total += torch.autograd.grad(loss, logprobs)[0]
        return total

    def _split(self, batch: Completions, advantages: Tensor, logprobs: Tensor, steps: int, processes: int) -> Tensor:
        """Return the sum over processes of what each accumulates, as its ``_prepare_inputs`` splits a batch."""
        trainer, total = self.trainer, torch.zeros_like(logprobs)
        single = trainer.accelerator
        trainer.accelerator = _Processes(processes, single)
        shares = np.array_split(np.arange(len(batch.rewards)), processes)
        try:
            for known, (process, rows) in product((False, True), enumerate(shares)):
                trainer.accelerator.begin(process, known)
                with torch.random.fork_rng(devices=[]), self._ready(batch, logprobs, rows, steps):
                    torch.manual_seed(0)  # a trainer shuffles the rows
                    parts = []
                    for trainer._step in range(steps):
                        parts.append(trainer._prepare_inputs(_prompts(rows)))
                    if known:
                        trainer.accelerator.begin(process, known=False)
                        total += self._gradient(parts, advantages, logprobs)
        finally:
            trainer.accelerator = single
        return total

    def _generation(self, batch: Completions) -> dict[str, Any]:
        """Return the output of the generation step, computed once for each batch and trainer's setting of it."""
        if batch not in self.generated:
            with self._ready(batch, batch.logprobs):
                prompts = _prompts(np.arange(len(batch.rewards)))
                self.generated[batch] = self.trainer._generate_and_score_completions(prompts)
        return self.generated[batch]

    @contextmanager
    def _ready(
        self, batch: Completions, logprobs: Tensor, rows: np.ndarray | None = None, steps: int = 1
    ) -> Iterator[None]:
        """Set what the trainer knows of a batch: nothing is generated, and no model is run."""
        trainer, older = self.trainer, self.sampler != "on-policy"
        for name, value in self.given.items():
            setattr(trainer, name, value)
        trainer.args.use_bias_correction_kl = self.setting.get("kl") != "k3"
        sizes = np.unique(batch.groups, return_counts=True)[1]
        trainer.num_generations = int(sizes[0]) if len(set(sizes.tolist())) == 1 else 1
        trainer.args.steps_per_generation = trainer.args.gradient_accumulation_steps = steps
        trainer.current_gradient_accumulation_steps = steps
        # A batch that is used twice keeps the log-probabilities that it was drawn with.
        trainer.num_iterations = 2 if older and not self.from_vllm else 1
        trainer.pad_to_multiple_of = batch.tokens.shape[1]
        trainer.mask_truncated_completions = bool((batch.tokens.any(dim=1) & ~batch.mask.any(dim=1)).any())
        trainer._buffered_inputs = None
        lengths = [int(row.nonzero().max()) + 1 for row in batch.tokens]
        chosen = range(len(lengths)) if rows is None else rows
        masked = ~batch.mask.any(dim=1)
        ids = [[_WORD] * (lengths[row] - 1) + [_WORD if masked[row] else _END] for row in chosen]
        holes = ((batch.tokens ^ batch.mask).any(dim=1) & ~masked).any()
        tools = [batch.mask[row, : lengths[row]].int().tolist() for row in chosen] if holes else None
        drawn = [batch.old_logprobs[row, : lengths[row]].tolist() for row in chosen] if self.from_vllm else None

        def generate(prompts: list[str]) -> tuple[Any, ...]:
            numbers = [[int(prompt) + _FIRST_ROW] for prompt in prompts]
            return numbers, ids, tools, ["" for _ in prompts], drawn, {}, None, None

        def forward(model: object, input_ids: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor, None]:
            place = input_ids[:, -batch.tokens.shape[1] - 1] - _FIRST_ROW
            if model is trainer.ref_model:
                return batch.ref_logprobs[place], batch.entropy[place], None
            before = older and not self.from_vllm and not torch.is_grad_enabled()
            return (batch.old_logprobs if before else logprobs)[place], batch.entropy[place], None

        trainer._generate, trainer._get_per_token_logps_and_entropies = generate, forward
        trainer._calculate_rewards = lambda *_: batch.rewards[:, None]
        dtype = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)
            trainer._metrics["train"].clear()


def _prompts(rows: np.ndarray) -> list[dict[str, str]]:
    return [{"prompt": str(row)} for row in rows]


def _trainer() -> Any:
    """Return a GRPOTrainer of a model with a few parameters, which is never run."""
    import datasets
    import tokenizers
    import transformers
    import trl

    words = {str(number): number for number in range(_FIRST_ROW + _N_ROWS)}
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token=str(_WORD)))
    sizes: dict[str, Any] = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    trainer = trl.GRPOTrainer(
        model=transformers.Qwen2ForCausalLM(
            transformers.Qwen2Config(vocab_size=len(words), num_key_value_heads=1, **sizes)
        ),
        args=trl.GRPOConfig(
            output_dir=tempfile.gettempdir(), report_to=[], use_cpu=True, bf16=False, num_generations=2,
            per_device_train_batch_size=2, max_completion_length=_MAX_LENGTH, save_strategy="no", beta=0.0,
            gradient_checkpointing=False,
        ),
        processing_class=transformers.PreTrainedTokenizerFast(
            tokenizer_object=plain, pad_token=str(_PADDING), eos_token=str(_END)
        ),
        reward_funcs=lambda completions, **_: [0.0 for _ in completions],
        train_dataset=datasets.Dataset.from_dict({"prompt": ["0", "1"]}),
    )  # fmt: skip
    assert trainer.model is not None
    trainer.model.train()
    trainer.vllm_importance_sampling_correction = True
    trainer.ref_model = object()
    return trainer


def trl_subjects() -> list[Subject]:
    """Return every ``loss_type`` × ``scale_rewards`` × importance sampling of GRPOTrainer, and its KL terms."""
    trainer, found = _trainer(), []
    clips = {"cispo ε_high=5": 5.0}
    caches: dict[tuple[str, str, str], weakref.WeakKeyDictionary[Completions, dict[str, Any]]] = {}

    def label(loss: str, scale: str, level: str, mode: str, beta: float, kl: str) -> str:
        """Return the label of a setting in TRL's words; "" where no recipe stands for it."""
        given: dict[str, object] = {"scale_rewards": scale} if scale != "group" else {}
        given |= {"importance_sampling_level": level} if level != "token" else {}
        given |= {"epsilon_high": clips[loss]} if loss in clips else {}
        given |= {"max_completion_length": _MAX_LENGTH} if loss == "dr_grpo" else {}
        if mode == "off":
            given |= {"vllm_importance_sampling_correction": False}
        else:
            given |= {"vllm_importance_sampling_mode": mode}
        given |= {"beta": beta} if kl else {}
        given |= {"use_bias_correction_kl": False} if kl == "k3" else {}
        return known(f"trl:{loss.split()[0]}", given)

    def add(loss: str, scale: str, level: str, mode: str, sampler: str, beta: float = 0.0, kl: str = "") -> None:
        given = {
            "loss_type": loss.split()[0], "scale_rewards": scale, "importance_sampling_level": level, "beta": beta,
            "use_vllm": mode != "off", "vllm_importance_sampling_mode": mode,
            "epsilon_high": clips.get(loss, trainer.epsilon_low),
        }  # fmt: skip
        setting = {"loss_type": loss, "scale_rewards": scale, "importance_sampling_level": level, "mode": mode}
        generated = caches.setdefault((scale, mode, sampler), weakref.WeakKeyDictionary())
        if kl:
            generated, setting = weakref.WeakKeyDictionary(), setting | {"kl": kl}
        found.append(
            _Grpo(
                setting=setting, sampler=sampler, parameters=_PARAMETERS, contiguous=True, trainer=trainer, given=given,
                code=("trl",),
                from_vllm=mode != "off", generated=generated, has_kl=bool(kl),
                expected=label(loss, scale, level, mode, beta, kl),
            )
        )  # fmt: skip

    for sampler, loss, scale, level in product(("on-policy", "older"), _LOSSES, _SCALES, _LEVELS):
        add(loss, scale, level, "off", sampler)
    for loss, scale, level, mode in product(_LOSSES, _SCALES, _LEVELS, _MODES):
        if loss == "vespo" and mode.startswith("sequence"):  # TRL refuses them together
            continue
        add(loss, scale, level, mode, "older")
    for sampler, level, kl in product(("on-policy", "older"), _LEVELS, ("ρ·k3", "k3")):
        add("grpo", "none", level, "off", sampler, beta=0.1, kl=kl)
    return found
