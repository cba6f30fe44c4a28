"""Weights from the trainer to an engine with its own, and the proof that they arrived."""
