"""What the devices here are, and how they are at this moment."""

from .observe import NO_GPU_HINT, State, context, cuda, facts, gpus, state

__all__ = ["NO_GPU_HINT", "State", "context", "cuda", "facts", "gpus", "state"]
