"""Where tokens come from: one file a family of corpora."""
