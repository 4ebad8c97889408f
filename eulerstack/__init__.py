"""Make for LLM architectures."""

__version__ = "0.2.0"
