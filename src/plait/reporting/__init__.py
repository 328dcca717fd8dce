"""Reports: drawings and self-contained HTML pages from plain data, without torch and without a network."""
