"""What a run is: typed, documented at each field, and free of torch."""

from roost.config.schema import (
    CorrectionConfig,
    DataConfig,
    EvalConfig,
    LoraConfig,
    LossConfig,
    ModelConfig,
    OutputConfig,
    PlanConfig,
    RewardsConfig,
    RewardSpec,
    RolloutConfig,
    RunConfig,
    Section,
    TrainConfig,
)

__all__ = [
    "CorrectionConfig",
    "DataConfig",
    "EvalConfig",
    "LoraConfig",
    "LossConfig",
    "ModelConfig",
    "OutputConfig",
    "PlanConfig",
    "RewardSpec",
    "RewardsConfig",
    "RolloutConfig",
    "RunConfig",
    "Section",
    "TrainConfig",
]
