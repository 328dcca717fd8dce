"""The parts that mixers and models share: norms, rotary positions, embeddings and softmaxes."""
