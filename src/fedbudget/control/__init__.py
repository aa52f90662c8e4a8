"""Controllers: what decides each client's knobs, round by round."""
