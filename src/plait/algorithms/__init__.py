"""Search algorithms over objectives: evolution, NSGA-II and III, random search, and training-free proxies."""
