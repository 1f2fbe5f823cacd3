"""Where processes run: worker slots of this machine, or jobs of a Slurm cluster through submitit.

Which commands are started is decided elsewhere (`transfer/sweep`, or a single command with `--launcher slurm`).
"""
