"""OpenAI-compatible HTTP in front of a scheduler."""
