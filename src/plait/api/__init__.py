"""The verbs, one function each: arguments in, a frozen result out; the command line parses and prints, these do."""
