"""The engines by name."""

from __future__ import annotations

from collections.abc import Callable

from gradstats.gradients.blocks import ParameterSelection
from gradstats.gradients.engines.ghost import ghost_engine
from gradstats.gradients.engines.loop import loop_engine
from gradstats.gradients.engines.reduction import ChunkResult
from gradstats.gradients.engines.vmap import vmap_engine
from gradstats.gradients.objective import Chunk
from gradstats.gradients.sketches import CountSketch
from gradstats.policy.policy import Policy

#: The engines by name, in the order in which ``auto`` tries them.
ENGINES: dict[str, Engine] = {"ghost": ghost_engine, "vmap": vmap_engine, "loop": loop_engine}


Engine = Callable[[Policy, Chunk, ParameterSelection, CountSketch | None], ChunkResult]
