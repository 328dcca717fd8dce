"""The machinery every part shares: errors, tables of named things, settings, units, progress, files.

It imports no other package of plait and no torch."""
