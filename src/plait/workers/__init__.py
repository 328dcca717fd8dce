"""Where work runs: processes of this machine, a Ray cluster, Slurm. Who has trainings to make knows none of them."""
