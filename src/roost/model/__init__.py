"""The policy and how its attention and output head are reached, whatever its architecture."""
