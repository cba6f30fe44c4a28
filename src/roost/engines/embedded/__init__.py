"""The embedded engine: continuous batching on the policy's own module."""

from roost.engines.embedded.engine import EmbeddedEngine, GenerationProgress
from roost.engines.embedded.stopping import stop_token_ids
from roost.engines.embedded.support import check_supported

__all__ = ["EmbeddedEngine", "GenerationProgress", "check_supported", "stop_token_ids"]
