"""The command ``arrow-shuffle``."""
