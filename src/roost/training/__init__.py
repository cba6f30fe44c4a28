"""From scored groups to updated weights: packs, packed attention, log-probabilities, optimizer."""
