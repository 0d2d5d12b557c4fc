"""Train the embedded policy: a Qwen2 model of a million parameters that works out word problems step by step.

The model imitates the traces of `embedded_traces`; `evaluate_embedded_policy` measures what it has learned.
The schedule counts steps, never time, and every batch is a function of the seed and the step: the same seed
gives the same weights with the same versions and number of threads, interrupted or not. Beside the policy, the run
leaves four checkpoints and the second moments of its gradients; the model card says how they are stored.

What keeps the gradients of completions even, as they are in a language model of usual size: attention that is not
sharper than reading needs (`limit_attention`), traces that misread now and then, so that every reading is slightly
uncertain, and noise on the weights (`noisy_weights`), which makes sharp reading costly.
"""

import argparse
import json
import math
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from embedded_traces import PIECE, Habits, write_trace
from evaluate_embedded_policy import evaluate
from muon import Muon
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from safetensors import safe_open
from safetensors.torch import save_file
from tokenizers import pre_tokenizers
from transformers import AddedToken, Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from gradstats.prompts.embedded import MAX_STEPS, generate_problems, parse_problem

PAD, END, USER, ASSISTANT = SPECIAL_TOKENS = ["<|pad|>", "<|end|>", "<|user|>", "<|assistant|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}<|user|>{{ message['content'] }}"
    "{% elif message['role'] == 'assistant' %}<|assistant|>{{ message['content'] }}<|end|>"
    "{% else %}{{ raise_exception('The embedded policy knows the roles user and assistant only.') }}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
BLOCK = 32  # batches drawn together, so that each can hold traces of similar length
CHECKPOINTS = (1000, 2000, 3500)  # steps, and one shortly before the end
# Habits to begin with: in the last part no check is misjudged; before, checks are, and before that the person is also
# called by name; before that all wordings are equally likely and nothing is misread, so that reading is learned first;
# and at first nothing is muddled or repeated.
CARELESS = Habits(misjudged=Habits.misread)
NAMING = replace(CARELESS, name=0.5)
EVEN = replace(NAMING, rough=(0.1, 0.3, 0.75), favourite=0.0, misread=(0.0, 0.0, 0.0), misjudged=(0.0, 0.0, 0.0))
CLEAR = replace(EVEN, moods=(0.6, 0.4, 0.0), restate=0.0)
STEPS_BEFORE_END = 8  # of the last checkpoint, that of a sampler which lags behind


@dataclass(frozen=True)
class Recipe:
    """What determines the weights, apart from the machine."""

    seed: int = 0
    steps: int = 5500
    warmup: int = 40  # steps
    restarts: tuple[int, ...] = (2000, 3500, 5000)  # steps at which the learning rate begins again, at half its peak
    batch_size: int = 16
    learning_rate: float = 1e-2  # peak, Muon, for the layers' matrices
    other_learning_rate: float = 3e-3  # peak, AdamW, for embeddings, biases and norms
    last_share: float = 0.05  # of the peak, where the decay ends: the last steps still move the weights
    betas: tuple[float, float] = (0.9, 0.99)
    eps: float = 1e-8
    weight_decay: float = 0.01
    clip: float = 3.0  # of the gradient's norm
    noise: float = 0.04  # of layers' and embeddings' weights: standard deviation, reached from 0 between `even` and
    # the first restart
    last_noise: float = 0.02  # the same, from the last restart on
    reach: float = 0.05  # of attention: the most that `limit_attention` allows, `limited` steps after the last restart
    limited: int = 100  # steps
    embedding_size: float = 0.3  # standard deviation of the initial embeddings
    curriculum: int = 512  # training steps over which problems grow from 2 changes to the most
    even: int = 832  # training steps in which all wordings are equally likely
    wide: int = 3520  # training steps in which problems have up to the most changes, and traces the person's name
    most_changes: int = 6


def words() -> list[str]:
    """The pieces of problems and traces that are longer than a character: one token each."""
    rng = np.random.default_rng(0)
    pieces: set[str] = set()
    for problem in generate_problems(3000, rng=rng, split="train", steps=(2, MAX_STEPS), falling=True):
        trace, _ = write_trace(parse_problem(problem.prompt), rng, NAMING)
        pieces.update(PIECE.findall(problem.prompt), PIECE.findall(trace))
    return sorted(piece for piece in pieces | {f" {digit}" for digit in range(10)} if len(piece) > 1)


def build_tokenizer() -> Qwen2Tokenizer:
    """Bytes, one per token, and the words of problems and traces: any text survives encoding and decoding."""
    tokens = [*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Qwen2Tokenizer(
        vocab={token: index for index, token in enumerate(tokens)},
        merges=[],
        unk_token=None,  # pyright: ignore[reportArgumentType] (bytes leave nothing unknown)
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[USER, ASSISTANT],
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=1024,
    )
    added: list[str | AddedToken] = [AddedToken(word, special=False, normalized=False) for word in words()]
    tokenizer.add_tokens(added)
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def build_model(tokenizer: Qwen2Tokenizer, recipe: Recipe) -> Qwen2ForCausalLM:
    torch.manual_seed(recipe.seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=144,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=6,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        initializer_range=0.04,
        use_cache=True,
        bos_token_id=None,
        eos_token_id=SPECIAL_TOKENS.index(END),
        pad_token_id=SPECIAL_TOKENS.index(PAD),
    )
    config.training_recipe = asdict(recipe) | {"habits": asdict(Habits())}
    model = Qwen2ForCausalLM(config)
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(recipe.embedding_size / config.initializer_range)
    return model


def batches(tokenizer: Qwen2Tokenizer, recipe: Recipe, first_step: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield (tokens, targets) of every step from `first_step` on; targets are -100 outside completions."""
    for block in range(first_step // BLOCK, math.ceil(recipe.steps / BLOCK)):
        rng = np.random.default_rng([recipe.seed, block])
        first, count = block * BLOCK, BLOCK * recipe.batch_size
        if first < recipe.curriculum:
            most = 2 + int(first / recipe.curriculum * (recipe.most_changes - 1))
            habits, steps, falling = CLEAR, (2, most), False
        elif first < recipe.wide:
            habits, steps, falling = EVEN if first < recipe.even else NAMING, (2, recipe.most_changes), True
        else:
            habits, steps, falling = CARELESS if first < recipe.restarts[-1] else Habits(), None, None
        problems = generate_problems(count, rng=rng, split="train", steps=steps, falling=falling)
        rows = []
        for problem in problems:
            messages = [{"role": "user", "content": problem.prompt}]
            text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
            trace, answered = write_trace(parse_problem(problem.prompt), rng, habits)
            completion = tokenizer.encode(trace + END * answered, add_special_tokens=False)
            rows.append((tokenizer.encode(str(text), add_special_tokens=False), completion))
        rows.sort(key=lambda row: len(row[0]) + len(row[1]))
        for index, chunk in enumerate(rng.permutation(BLOCK)):
            if not first_step <= block * BLOCK + index < recipe.steps:
                continue
            members = rows[chunk * recipe.batch_size : (chunk + 1) * recipe.batch_size]
            width = max(len(prompt) + len(completion) for prompt, completion in members)
            # padding on the right is never seen: attention is causal
            tokens = torch.zeros((len(members), width), dtype=torch.long)
            targets = torch.full((len(members), width), -100)
            for row, (prompt, completion) in enumerate(members):
                end = len(prompt) + len(completion)
                tokens[row, :end] = torch.tensor(prompt + completion)
                targets[row, len(prompt) : end] = torch.tensor(completion)
            yield tokens, targets


def build_optimizers(model: Qwen2ForCausalLM, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, which learns to look changes up several times sooner than AdamW alone."""
    named = dict(model.named_parameters())
    in_layers = {name: parameter.ndim == 2 and "layers" in name for name, parameter in named.items()}
    matrices = [parameter for name, parameter in named.items() if in_layers[name]]
    others = [parameter for name, parameter in named.items() if not in_layers[name]]
    muon = Muon(matrices, lr=recipe.learning_rate, weight_decay=recipe.weight_decay)
    adamw = torch.optim.AdamW(
        others, lr=recipe.other_learning_rate, betas=recipe.betas, eps=recipe.eps, weight_decay=recipe.weight_decay
    )
    for optimizer in (muon, adamw):
        for group in optimizer.param_groups:
            group["peak"] = group["lr"]
    return [muon, adamw]


def schedule(step: int, recipe: Recipe) -> float:
    """Learning rate as a share of its peak: warm-up, a cosine down to `last_share`, again from half the peak."""
    begin, end = next(round_ for round_ in pairwise([0, *recipe.restarts, recipe.steps]) if step < round_[1])
    cosine = 0.5 * (1 + math.cos(math.pi * ((step - begin) / (end - begin))))
    decay = recipe.last_share + ((0.5 if begin else 1.0) - recipe.last_share) * cosine
    return min(1.0, (step + 1) / recipe.warmup) * decay


@contextmanager
def noisy_weights(model: Qwen2ForCausalLM, recipe: Recipe, step: int) -> Iterator[None]:
    """Move the weights of layers and embeddings by Gaussian noise for one forward and backward pass.

    Noise of standard deviation σ adds about σ²/2 times the trace of the Fisher information to the expected loss, which
    is the mean squared norm of a token's score: the few tokens with enormous gradients cost most.
    """
    size = recipe.noise * min(1.0, (step - recipe.even) / (recipe.restarts[0] - recipe.even))
    if step >= recipe.restarts[-1]:
        size = recipe.last_noise
    if size <= 0:
        yield
        return
    named = {name: weight.data for name, weight in model.named_parameters()}
    moved = {name: weight for name, weight in named.items() if name not in ("model.norm.weight", "lm_head.weight")}
    kept = {name: weight.clone() for name, weight in moved.items()}
    generator = torch.Generator().manual_seed(recipe.seed * 2**32 + step)
    for weight in moved.values():
        weight.add_(torch.randn(weight.shape, generator=generator), alpha=size)
    yield
    for name, weight in moved.items():
        weight.copy_(kept[name])


@torch.no_grad()
def limit_attention(model: Qwen2ForCausalLM, recipe: Recipe, step: int) -> None:
    """Scale down the queries and keys of every head whose weights have grown too large, in the last part of training.

    What is limited is the root mean square of a head's query weights, and of its key weights, times the gain of the
    norm before them. The limit falls by equal factors from five times `reach`, about what they have grown to, to
    `reach`. Muon lets these weights grow until attention logits reach several hundred, which no reading needs: there
    one hesitation between two places of the story has a gradient as large as that of hundreds of completions. MuonClip
    does the same by the largest logit; source: Kimi K2 (2025), https://arxiv.org/abs/2507.20534.
    """
    since = step - recipe.restarts[-1]
    if since < 0:
        return
    limit = recipe.reach * 5 ** max(0.0, 1 - (since + 1) / recipe.limited)
    heads = model.config.num_attention_heads
    for at in range(model.config.num_hidden_layers):
        layer = f"model.layers.{at}"
        gain = model.get_parameter(f"{layer}.input_layernorm.weight")
        for projection in (f"{layer}.self_attn.q_proj", f"{layer}.self_attn.k_proj"):
            weight, bias = (model.get_parameter(f"{projection}.{name}") for name in ("weight", "bias"))
            of_heads = (weight * gain).unflatten(0, (heads, -1))
            factor = (limit / of_heads.square().mean((1, 2)).sqrt()).clamp(max=1.0)
            factor = factor.repeat_interleave(len(weight) // heads)
            weight.mul_(factor[:, None])
            bias.mul_(factor)


def train(output: Path, recipe: Recipe, state_every: int) -> None:
    """Train from the last saved state, if there is one, to the end, and save the policy into `output`.

    Ctrl-C lets the step under way finish, since half an optimizer step cannot be resumed.
    """
    interrupted = False

    def interrupt(*_: object) -> None:
        nonlocal interrupted
        interrupted = True

    signal.signal(signal.SIGINT, interrupt)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer, recipe)
    optimizers = build_optimizers(model, recipe)
    moments = {name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()}
    state = output.with_name(output.name + "-state.safetensors")
    step = load_state(state, model, optimizers, moments, recipe) if state.exists() else 0
    recorded = {*CHECKPOINTS, recipe.steps - STEPS_BEFORE_END}
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()]
    with Progress(*columns) as progress:
        task = progress.add_task("training", total=recipe.steps, completed=step)
        model.train()
        for tokens, targets in batches(tokenizer, recipe, step):
            for group in (group for optimizer in optimizers for group in optimizer.param_groups):
                group["lr"] = group["peak"] * schedule(step, recipe)
            model.zero_grad()
            with noisy_weights(model, recipe, step):
                logits = model(input_ids=tokens, use_cache=False).logits[:, :-1]
                loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets[:, 1:].flatten())
                loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
            for name, parameter in model.named_parameters():
                assert parameter.grad is not None
                moments[name].lerp_(parameter.grad**2, 1 - recipe.betas[1])
            for optimizer in optimizers:
                optimizer.step()
            limit_attention(model, recipe, step)
            step += 1
            progress.update(task, advance=1, description=f"training, loss {loss.item():.3f}")
            if step in recorded:
                save_weights(output / "checkpoints" / f"step-{step:04d}.safetensors", model, step)
            if step % state_every == 0 or step == recipe.steps or interrupted:
                save_state(state, model, optimizers, moments, recipe, step)
            if interrupted:
                sys.exit(f"Interrupted after step {step} of {recipe.steps}: run the same command to resume.")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    save_policy(output, model, tokenizer)
    save_second_moments(output / "second_moments.safetensors", moments, recipe)


def save_state(
    path: Path,
    model: Qwen2ForCausalLM,
    optimizers: list[torch.optim.Optimizer],
    moments: dict[str, torch.Tensor],
    recipe: Recipe,
    step: int,
) -> None:
    """Write what resuming needs: weights, optimizer states and second moments."""
    tensors = {}
    for name, parameter in model.named_parameters():
        tensors |= {f"{name}/weight": parameter.detach(), f"{name}/moment": moments[name]}
        for optimizer in optimizers:
            tensors |= {f"{name}/{key}": value for key, value in optimizer.state.get(parameter, {}).items()}
    write_tensors(path, tensors, {"step": str(step), "recipe": json.dumps(asdict(recipe))})


def load_state(
    path: Path,
    model: Qwen2ForCausalLM,
    optimizers: list[torch.optim.Optimizer],
    moments: dict[str, torch.Tensor],
    recipe: Recipe,
) -> int:
    """Restore weights, optimizer states and second moments; return the number of steps done."""
    with safe_open(path, "pt") as stored:
        metadata = stored.metadata()
        for setting, value in json.loads(json.dumps(asdict(recipe))).items():
            found = json.loads(metadata["recipe"])[setting]
            if found != value:
                raise SystemExit(
                    f"{path} was made with {setting}={found}, this run asks for {value}: "
                    "give the same settings, another --output, or remove the file."
                )
        parameters = dict(model.named_parameters())
        for entry in stored.keys():  # noqa: SIM118 (safe_open is not a mapping)
            name, _, key = entry.rpartition("/")
            if key == "weight":
                parameters[name].data.copy_(stored.get_tensor(entry))
                continue
            if key == "moment":
                moments[name].copy_(stored.get_tensor(entry))
                continue
            for optimizer in optimizers:
                owned = [parameter for group in optimizer.param_groups for parameter in group["params"]]
                if any(parameters[name] is parameter for parameter in owned):
                    optimizer.state[parameters[name]][key] = stored.get_tensor(entry)
        return int(metadata["step"])


def save_weights(path: Path, model: Qwen2ForCausalLM, step: int) -> None:
    """Write a checkpoint of the run, rounded to bfloat16."""
    weights = {name: parameter.detach().to(torch.bfloat16) for name, parameter in model.named_parameters()}
    write_tensors(path, weights, {"step": str(step)})


def save_second_moments(path: Path, moments: dict[str, torch.Tensor], recipe: Recipe) -> None:
    """Write the running mean of squared gradients after the last step, rounded to bfloat16."""
    tensors = {name: moment.to(torch.bfloat16) for name, moment in moments.items()}
    write_tensors(path, tensors, {"step": str(recipe.steps), "beta2": str(recipe.betas[1]), "eps": str(recipe.eps)})


def write_tensors(path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> None:
    """Write to a temporary name, then rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    save_file(tensors, temporary, metadata=metadata)
    os.replace(temporary, path)


def save_policy(folder: Path, model: Qwen2ForCausalLM, tokenizer: Qwen2Tokenizer) -> None:
    """Write the files that `from_pretrained` reads; an interrupted save never leaves half a model."""
    temporary = folder.with_name(folder.name + ".tmp")
    model.save_pretrained(temporary)
    tokenizer.save_pretrained(temporary, save_jinja_files=False)
    folder.mkdir(parents=True, exist_ok=True)
    for file in sorted(temporary.iterdir()):
        file.chmod(0o644)
        os.replace(file, folder / file.name)
    temporary.rmdir()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train, save and evaluate the embedded policy. Run it again to resume.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    output = Path("runs/embedded_policy")
    parser.add_argument("--output", type=Path, default=output, help="folder of the trained policy")
    parser.add_argument("--seed", type=int, default=Recipe.seed, help="seed of weights and training problems")
    parser.add_argument("--steps", type=int, default=Recipe.steps, help="number of optimizer steps")
    parser.add_argument("--batch-size", type=int, default=Recipe.batch_size, help="traces a step")
    parser.add_argument("--threads", type=int, default=1, help="torch threads; the weights depend on it")
    parser.add_argument("--state-every", type=int, default=100, help="steps between states that a run resumes from")
    parser.add_argument("--evaluate-only", action="store_true", help="measure --output and write its card")
    parser.add_argument("--eval-prompts", type=int, default=500, help="held-out problems")
    parser.add_argument("--eval-group-size", type=int, default=8, help="completions per problem")
    parser.add_argument("--max-new-tokens", type=int, default=400, help="cap of a sampled completion")
    parser.add_argument("--eval-seed", type=int, default=1, help="seed of held-out problems and of sampling")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    if not arguments.evaluate_only:
        recipe = Recipe(seed=arguments.seed, steps=arguments.steps, batch_size=arguments.batch_size)
        train(arguments.output, recipe, arguments.state_every)
    elif not (arguments.output / "model.safetensors").exists():
        sys.exit(f"--output {arguments.output} holds no policy: train one first, without --evaluate-only.")
    measured = evaluate(
        arguments.output,
        arguments.eval_prompts,
        arguments.eval_group_size,
        arguments.max_new_tokens,
        arguments.eval_seed,
    )
    print(json.dumps(measured, indent=1))


if __name__ == "__main__":
    main()
