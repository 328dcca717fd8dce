"""The command line: argument parsing and printing only, one small file per verb."""
