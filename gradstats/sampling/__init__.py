"""From prompts to rollouts: one file per sampling engine."""

from gradstats.sampling.plan import SamplingPlan
from gradstats.sampling.sample import sample
from gradstats.sampling.sampler import Completion, Sampler, SamplerSettings

__all__ = ["Completion", "Sampler", "SamplerSettings", "SamplingPlan", "sample"]
