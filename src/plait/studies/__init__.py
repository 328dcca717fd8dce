"""Studies that train: which cheap numbers rank models, and where attention should be placed."""
