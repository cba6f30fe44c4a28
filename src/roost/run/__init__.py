"""One run, from its checks to its final model: the loop, and what is written to its folder."""
