#!/bin/bash
#SBATCH --job-name=wlm
#SBATCH --output=/home/ann/runs/wlm-20260101-120000/job-%A_%a.log
#SBATCH --open-mode=append
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --gpus-per-node=4
#SBATCH --time=2-00:00:00
#SBATCH --signal=B:USR1@600
#SBATCH --requeue
#SBATCH --partition=gpu
#SBATCH --account=phys-7
#SBATCH --qos=long
#SBATCH --constraint=a100|h100
#SBATCH --array=1-2%1
#SBATCH --mem=0
#SBATCH --exclusive
# wlm on 8 rank(s)
# Written by dist-mp submit. A signal before the time limit goes on to every rank. The ranks save their state and end
# with status 75, the job goes back into the queue, and its next start resumes.

warned= asked= signalled= child=
trap 'warned=yes signalled=yes; [ -z "$child" ] || kill -USR1 "$child" 2>/dev/null' USR1
trap 'asked=yes signalled=yes; [ -z "$child" ] || kill -TERM "$child" 2>/dev/null' TERM

cd '/home/ann/language models' || exit 2
folder=/home/ann/runs/wlm-20260101-120000
settings=()
index=$SLURM_ARRAY_TASK_ID
case $index in
1) settings=(schedule.base=0.1 'name=it'"'"'s') ;;
2) settings=(schedule.base=0.2 'name=it'"'"'s') ;;
*) echo "dist-mp: this array has no task '$index'" >&2; exit 2 ;;
esac
folder=$folder/task-$index
mkdir -p "$folder" || exit 2
job_id=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
job_id=${job_id:-$SLURM_JOB_ID}

module load openmpi/5.0
export NCCL_DEBUG=WARN
export PMIX_MCA_psec=native

echo "$(date -u +%Y-%m-%dT%H:%M:%SZ) $job_id $(hostname)" >>"$folder/job-starts"
starts=$(wc -l <"$folder/job-starts")
echo running >"$folder/job-state"
echo "dist-mp: job $job_id, start $starts, $(date)"

srun --mpi=pmi2 --ntasks=8 --cpus-per-task=8 --kill-on-bad-exit=1 \
    /home/ann/env/bin/python -m dist_mp train /home/ann/runs/wlm-20260101-120000/job.yaml "${settings[@]}" --into "$folder" &
child=$!
while true; do
    signalled=
    wait "$child"
    status=$?
    [ -n "$signalled" ] || break # a signal to this script cuts wait short; the launcher may still run
done
[ "$status" -ge 0 ] || status=255 # bash has lost it: script and launcher were ended at once

reason='the time limit is near'
# A job that another one takes the place of, and that ends within its grace time, comes back only if it asks to.
if [ -z "$warned" ] && [[ $status =~ ^(75|138|143)$ ]]; then
    facts=$(scontrol show job "$job_id")
    if [[ $facts == *JobState=RUNNING* && $facts =~ PreemptTime=[0-9] ]]; then
        warned=yes asked= reason='another job takes this one'"'"'s place'
    fi
fi
# 75: saved. 138: the signal came before a rank was ready for it, so there was nothing new to save.
# 143: srun ended a rank because another one had ended first with 75.
if [ -n "$warned" ] && [ -z "$asked" ] && [[ $status =~ ^(75|138|143)$ ]]; then
    if [ "$starts" -le 7 ]; then
        echo "dist-mp: $reason and the state is saved: job $job_id goes back into the queue"
        echo requeued >"$folder/job-state"
        scontrol requeue "$job_id" && exit "$status"
    else
        echo "dist-mp: $reason and the state is saved; after 7 requeues the job stays out"
    fi
fi
echo "ended $status" >"$folder/job-state"
echo "dist-mp: job $job_id ended with status $status, $(date)"
exit "$status"
