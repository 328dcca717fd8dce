"""What a spec may not exceed. Every bound is checked before the work it bounds, so hostile text is refused at once."""

from __future__ import annotations

MAX_TEXT = 200_000  # characters of a spec, canonical text included
MAX_JSON = 20 * MAX_TEXT  # JSON says the same at greater length; YAML is slow to read and gets MAX_TEXT
MAX_NESTING = 50  # parentheses within parentheses
MAX_LAYERS = 10_000  # after all groups are expanded
MAX_OPTIONS = 64  # a layer
MAX_ITEMS = 64  # numbers in a list value
MAX_NAME = 64  # characters of a name
MAX_NUMBER = 40  # characters of a number, before conversion
MAX_DIGITS = 30  # digits of a whole number, before conversion
MAX_INT = 10**12
