"""Commits of a policy and of a data set on the hub, from which a run samples."""

from __future__ import annotations

from gradstats.config.experiment import Experiment
from gradstats.policy.checkpoint import adapter_base, is_adapter
from gradstats.policy.checkpoint import is_on_hub as policy_on_hub
from gradstats.prompts.load import is_on_hub as prompts_on_hub
from gradstats.system.environment import commit_of, hub_problem


def resolve_revisions(experiment: Experiment) -> dict[str, str | None]:
    """Return the commits of a run's policy and data set on the hub, which the run uses from then on."""
    policy, prompts = experiment.policy, experiment.prompts
    asked = {}
    if policy_on_hub(policy.name):
        weights = adapter_base(policy.name) if is_adapter(policy.name) else policy.name
        asked["policy"] = (weights, "config.json", "model", policy.revision)
    if prompts_on_hub(prompts.source):
        asked["prompts"] = (prompts.source, "README.md", "dataset", prompts.settings.get("revision"))
    missing = {kind: reason for kind, repository in asked.items() if (reason := hub_problem(*repository))}
    if missing:
        raise ConnectionError(_what_to_download(asked, missing))
    return {kind: commit_of(*repository) for kind, repository in asked.items()}


def _what_to_download(asked: dict[str, tuple[str, str, str, str | None]], missing: dict[str, str]) -> str:
    downloads, settings = [], []
    for kind in missing:
        name, _, repo_type, revision = asked[kind]
        folder = f"{'models' if kind == 'policy' else 'data'}/{name.rpartition('/')[2]}"
        words = ["hf download", name, *(["--repo-type dataset"] if repo_type == "dataset" else [])]
        words += [f"--revision {revision}"] if revision else []
        downloads.append(f"`{' '.join([*words, '--local-dir', folder])}`")
        settings.append(f"{'policy.name' if kind == 'policy' else 'prompts.source'}={folder}")
    return (
        f"the Hugging Face hub cannot be reached from here ({next(iter(missing.values()))}): where there is a "
        f"connection run {' and '.join(downloads)}, copy the downloaded folders to the same places here, and run again "
        f"with --set {' '.join(settings)}"
    )
