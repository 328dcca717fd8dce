"""To other programs and from them: Hugging Face folders, ONNX files, weights of GPT-2, LLaMA and OPT."""
