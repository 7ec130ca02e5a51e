#!/bin/bash
# One run over several machines of a cluster: sbatch examples/slurm.sh run.toml [more options of privsgp train]
# One torchrun per machine, one process per core group; --max-restarts brings all back to the last common checkpoint.
#SBATCH --job-name=privsgp
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=04:00:00
#SBATCH --signal=TERM@120
set -euo pipefail

processes=4                                        # on each machine; on GPU machines: one per GPU
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export OMP_NUM_THREADS=$((SLURM_CPUS_PER_TASK / processes))
# gloo neither encrypts nor authenticates: name the interface of the cluster's own, trusted network.
export GLOO_SOCKET_IFNAME=${GLOO_SOCKET_IFNAME:-ib0}
export NCCL_SOCKET_IFNAME=$GLOO_SOCKET_IFNAME

# --node-rank fixes which machine holds which nodes: they must be the same after a restart.
srun --kill-on-bad-exit=0 bash -c '
  torchrun --nnodes "$SLURM_NNODES" --node-rank "$SLURM_NODEID" --nproc-per-node '"$processes"' \
    --master-addr '"$head"' --master-port $((20000 + SLURM_JOB_ID % 20000)) --max-restarts 3 \
    -m privsgp train "$@"' privsgp "$@"
