"""Where prompts come from, how they become tokens, and in which order they are trained on."""
