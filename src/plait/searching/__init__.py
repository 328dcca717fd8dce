"""A search from the user's request to the record of its Pareto front, validated by measurement."""
