"""What a trained model can do: perplexity, loss along the context, extrapolation, retrieval; tables and pictures."""
