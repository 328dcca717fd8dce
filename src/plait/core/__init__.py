"""The machinery every part shares: errors, tables of named things, settings, units, progress, files, random streams.

It imports nothing of plait's and no torch."""
