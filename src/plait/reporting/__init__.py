"""Reports: figures and self-contained HTML pages from plain data, without torch or a network."""
