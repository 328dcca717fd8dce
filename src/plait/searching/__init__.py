"""One search from what a user asks for to the record of its Pareto front, validated by measurement."""
