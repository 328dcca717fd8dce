"""plait's verbs as Python functions that return frozen results. The command line only parses arguments and prints."""
