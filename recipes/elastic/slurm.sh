#!/bin/bash
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --no-kill
# A training whose processes may die and rejoin: sbatch slurm.sh train.py 1000
# The batch step hosts JAX's coordination service; each task starts its process again, ten times at most.
set -eu
port=$((20000 + SLURM_JOB_ID % 5000 * 2))
python -m jaxcomm.distributed.launch.coordinator "0.0.0.0:$port" "$SLURM_NTASKS" < /dev/null &
trap "kill $!" EXIT

export JAX_PLATFORMS=cpu
export JAX_COORDINATOR_ADDRESS=$(hostname):$port
export JAX_COORDINATOR_BIND_ADDRESS=127.0.0.1:$((port + 1)) # the idle service of process 0
export JAX_ENABLE_RECOVERABILITY=1
srun --kill-on-bad-exit=0 bash -c '
  trap : TERM # a preempted process leaves after its block, and this shell waits for it
  for start in {0..10}; do
    python "$@" && exit
    echo "process $SLURM_PROCID ended with exit status $?, and is started again"
  done
  exit 1' - "$@"
