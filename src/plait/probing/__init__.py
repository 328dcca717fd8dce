"""The probe: what an architecture can do, measured on synthetic tasks, with intervals and a verdict."""
