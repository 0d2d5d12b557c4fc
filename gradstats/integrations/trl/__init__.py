"""Inside TRL's GRPOTrainer and RLOOTrainer: watch the variance while training, and train with another estimator."""

from gradstats.integrations.trl.advantages import use_estimator
from gradstats.integrations.trl.monitor import VarianceMonitor

__all__ = ["VarianceMonitor", "use_estimator"]
