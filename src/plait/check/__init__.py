"""The mixer contract as a tool: what every mixer of the table is tested for, run on any mixer, a user's too."""

from plait.check.clauses import CLAUSES, Clause, Verdict, run_clauses
from plait.check.load import load_mixer

__all__ = ["CLAUSES", "Clause", "Verdict", "load_mixer", "run_clauses"]
