"""The error of everything that reads and writes checkpoints."""


class CheckpointError(ValueError):
    """A checkpoint that cannot be used, with the reason and what to do."""
