#!/bin/bash
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
# A recipe, or a program that knows only JAX, as one process on each node:
#
#   sbatch recipes/cluster/slurm.sh recipes/images.py
#   JAXCOMM_EVERY_COLLECTIVE=1 sbatch recipes/cluster/slurm.sh recipes/cluster/train.py
#
# When a process fails, srun ends the others, and all are started again, three times at most. A recipe goes on from its
# last checkpoint below `runs`, which all nodes must share.
set -u
export JAX_PLATFORMS=cpu
for start in {0..3}; do
  srun --kill-on-bad-exit=1 python "$@" && exit
  echo "start $start ended with exit status $?"
done
exit 1
