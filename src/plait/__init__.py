"""plait designs language-model architectures by measurement."""

__version__ = "0.1.0"
