"""Worker pools: trainings run in processes of this machine, on a Ray cluster or as Slurm jobs, behind one interface."""
