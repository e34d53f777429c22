"""The loop: strategy, optimizer, schedule, checkpoints, resume."""
