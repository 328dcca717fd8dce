"""The verbs, one function each: arguments in, a frozen result out. The command line only parses and prints."""
