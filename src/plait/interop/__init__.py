"""Import and export: Hugging Face folders, GGUF and ONNX files, weights of GPT-2, LLaMA, OPT and others."""

from __future__ import annotations

from plait.core.registry import lazy

HOMES = {
    "export_hf": "hf",
    "PlaitConfig": "hf_model",
    "PlaitForCausalLM": "hf_model",
    "PlaitForMaskedLM": "hf_model",
    "export_onnx": "onnx",
}
__getattr__ = lazy(__name__, HOMES)
