"""The mixer contract as a tool: what every mixer of the table is tested for, run on any mixer, a user's too."""

from plait.check.clauses import CLAUSES, Clause, Verdict, run_clauses

__all__ = ["CLAUSES", "Clause", "Verdict", "run_clauses"]
