"""vLLM as the rollout engine, in the trainer's process. Importing this imports no vLLM."""

from roost.engines.vllm.versions import SUPPORTED, check_version, installed_version

__all__ = ["SUPPORTED", "check_version", "installed_version"]
