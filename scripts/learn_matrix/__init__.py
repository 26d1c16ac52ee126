"""The learning matrix: agent x environment x seeds to a criterion, beside a peer. `scripts/learn` runs it."""
