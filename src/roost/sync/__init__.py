"""Weights from the trainer to an engine with weights of its own, and the proof that they arrived."""
