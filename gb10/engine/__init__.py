"""Talking to the engine over its OpenAI-compatible API, and judging what it answers."""
