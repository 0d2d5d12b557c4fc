"""A copy of a policy after a few steps of AdamW on completions that it drew."""

import numpy as np
import pytest
import torch

import gradstats as gs


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Six groups of four completions, on file; rewards of their own, so that advantages of one group are zero."""
    problems = gs.load_prompts("embedded", n=6, rng=0)
    rollouts = gs.sample(gs.load_policy("embedded"), problems, group_size=4, max_new_tokens=12, rng=0, progress=False)
    frame = rollouts.frame.assign(reward=np.random.default_rng(0).integers(0, 2, 24).astype(float))
    frame.loc[frame.prompt_id == frame.prompt_id[0], "reward"] = 1.0
    path = tmp_path_factory.mktemp("drawn") / "rollouts.parquet"
    gs.Rollouts(frame, rollouts.metadata).to_parquet(path)
    return path


def logprob(model, row):
    """Log-probabilities of a completion's tokens, from logits of the whole sequence."""
    tokens = torch.as_tensor([*row.prompt_tokens, *row.completion_tokens])
    logprobs = model(tokens[None]).logits[0].log_softmax(dim=-1)
    start = len(row.prompt_tokens)
    return torch.stack([logprobs[place - 1, tokens[place]] for place in range(start, len(tokens))])


@pytest.mark.parametrize("clip", [None, 0.2])
def test_each_step_is_adams_on_a_mini_batch_of_whole_prompts(script, drawn, tmp_path, clip):
    rate = 1e-2  # so that the ratios of the second step differ from 1
    script.main("embedded", drawn, tmp_path / "updated", steps=2, epochs=2, learning_rate=rate, clip=clip)
    updated = gs.load_policy(tmp_path / "updated").model
    found = dict(updated.named_parameters())
    moments = gs.AdamMetric.read(tmp_path / "updated", updated).second_moments

    policy, frame = gs.load_policy("embedded"), gs.read_rollouts(drawn).frame
    model, parameters = policy.model, dict(policy.model.named_parameters())
    first = {name: torch.zeros_like(value) for name, value in parameters.items()}
    second = {name: torch.zeros_like(value) for name, value in parameters.items()}
    smallest = {name: torch.full_like(value, torch.inf) for name, value in parameters.items()}
    names = list(dict.fromkeys(frame.prompt_id))
    ratios, stopped = [], []
    for step, batch in enumerate(2 * (names[:3], names[3:]), start=1):
        objective = torch.zeros(())
        for name in batch:
            group = frame[frame.prompt_id == name]
            for place, row in enumerate(group.itertuples()):
                others = np.delete(group.reward.to_numpy(), place)
                ratio = (logprob(model, row) - torch.as_tensor(row.sampler_logprobs, dtype=torch.float32)).exp()
                ratios.append(ratio.detach().numpy())
                advantage = row.reward - others.mean()
                if clip is not None:  # a ratio that has gone where its advantage sends it stops
                    gone = ratio.detach() > 1 + clip if advantage > 0 else ratio.detach() < 1 - clip
                    stopped.append(float(gone.float().mean()) if advantage else 0.0)
                    ratio = torch.where(gone, 0.0, ratio)
                objective = objective + advantage * ratio.sum() / 12
        gradients = torch.autograd.grad(-objective, list(parameters.values()))
        with torch.no_grad():
            for (name, value), gradient in zip(parameters.items(), gradients, strict=True):
                first[name] = 0.9 * first[name] + 0.1 * gradient
                second[name] = 0.999 * second[name] + 0.001 * gradient.square()
                smallest[name] = torch.minimum(smallest[name], gradient.abs())
                mean, square = first[name] / (1 - 0.9**step), second[name] / (1 - 0.999**step)
                value -= rate * mean / (square.sqrt() + 1e-8)
    assert np.ptp(np.concatenate(ratios[:12])) < 1e-3 < 0.1 < np.ptp(np.concatenate(ratios[12:24]))
    assert clip is None or 0.05 < np.mean(stopped[12:]) < 0.9
    # A step has the size of the rate where the gradient is as small as its rounding, too.
    resolved = {name: values > 1e-3 for name, values in smallest.items()}
    assert np.mean([torch.mean(one.float()) for one in resolved.values()]) > 0.05
    for name, value in parameters.items():
        torch.testing.assert_close(found[name][resolved[name]], value[resolved[name]], rtol=0, atol=rate / 20)
        wanted = second[name] / (1 - 0.999**4)
        torch.testing.assert_close(moments[name], wanted, rtol=1e-2, atol=1e-2 * float(wanted.max()))


def test_what_it_cannot_follow_is_refused(script, drawn, tmp_path):
    there, out, table = tmp_path / "there", tmp_path / "out", gs.read_rollouts(drawn)
    there.mkdir()
    earlier = gs.load_policy("embedded", revision="step-1000")
    earlier.model.save_pretrained(tmp_path / "earlier")
    earlier.tokenizer.save_pretrained(tmp_path / "earlier")
    table.select(range(1, 24)).to_parquet(tmp_path / "uneven.parquet")
    gs.Rollouts(table.frame.drop(columns="sampler_logprobs")).to_parquet(tmp_path / "bare.parquet")
    for policy, rollouts, folder, asked, message in (
        ("embedded", drawn, there, {}, "there exists: remove it, or choose another folder"),
        ("embedded", drawn, out, {"steps": 7}, "--steps is 7, and .* holds 6 prompts"),
        ("embedded", drawn, out, {"clip": 2.0}, "--clip is 2: it lies between 0 and 1"),
        ("embedded", drawn, out, {"epochs": 0}, "--epochs is 0"),
        (str(tmp_path / "earlier"), drawn, out, {}, "earlier did not draw"),
        ("embedded", tmp_path / "uneven.parquet", out, {}, "groups of several sizes"),
        ("embedded", tmp_path / "bare.parquet", out, {}, "holds no log-probabilities of its sampler"),
    ):
        with pytest.raises(SystemExit, match=message):
            script.main(policy, rollouts, folder, **asked)
    assert not out.exists()
