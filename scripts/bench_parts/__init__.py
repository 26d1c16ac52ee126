"""Speed as ratios: ours beside the limit and beside others, in one run on one machine. `scripts/bench` runs it."""
