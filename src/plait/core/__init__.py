"""The machinery every part shares: errors, tables of named things, settings, units, progress, files.

It imports nothing of plait's and no torch."""
