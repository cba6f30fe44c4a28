"""GRPO's arithmetic: advantages, losses, importance ratios, KL."""
