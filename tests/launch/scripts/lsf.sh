#!/bin/bash
#BSUB -J wlm
#BSUB -oo /dev/null
#BSUB -n 8
#BSUB -R "span[ptile=4] affinity[core(1)]"
#BSUB -W 1:30
#BSUB -r
#BSUB -Q "75"
# wlm on 8 rank(s)
# Written by dist-mp submit. A signal before the time limit goes on to every rank. The ranks save their state and end
# with status 75, the job goes back into the queue, and its next start resumes.

warned= asked= signalled= child=
trap 'warned=yes signalled=yes; [ -z "$child" ] || kill -USR1 "$child" 2>/dev/null' USR1
trap 'asked=yes signalled=yes; [ -z "$child" ] || kill -TERM "$child" 2>/dev/null' TERM

cd '/home/ann/language models' || exit 2
folder=/home/ann/runs/wlm-20260101-120000
settings=()
job_id=$LSB_JOBID
exec >>"$folder/job.log" 2>&1


echo "$(date -u +%Y-%m-%dT%H:%M:%SZ) $job_id $(hostname)" >>"$folder/job-starts"
starts=$(wc -l <"$folder/job-starts")
echo running >"$folder/job-state"
echo "dist-mp: job $job_id, start $starts, $(date)"
# No signal of this scheduler reaches the script alone before the time limit, so a timer sends it.
( trap 'kill $!; exit' TERM; sleep 5280 & wait $!; kill -USR1 $$ ) &
timer=$!
trap 'kill "$timer" 2>/dev/null' EXIT

/home/ann/env/bin/python -m dist_mp run -n 8 /home/ann/runs/wlm-20260101-120000/job.yaml "${settings[@]}" --into "$folder" &
child=$!
while true; do
    signalled=
    wait "$child"
    status=$?
    [ -n "$signalled" ] || break # a signal to this script cuts wait short; the launcher may still run
done
[ "$status" -ge 0 ] || status=255 # bash has lost it: script and launcher were ended at once

reason='the time limit is near'
# 75: saved. 138: the signal came before a rank was ready for it, so there was nothing new to save.
if [ -n "$warned" ] && [ -z "$asked" ] && [[ $status =~ ^(75|138)$ ]]; then
    if [ "$starts" -le 100 ]; then
        echo "dist-mp: $reason and the state is saved: job $job_id goes back into the queue"
        echo requeued >"$folder/job-state"
        exit 75 # -Q brings a job with this status back into the queue
    else
        echo "dist-mp: $reason and the state is saved; after 100 requeues the job stays out"
    fi
fi
# A status that would bring the job back is not meant to, here: it was asked to end, or has come back too often.
[ "$status" -ne 75 ] || status=143
echo "ended $status" >"$folder/job-state"
echo "dist-mp: job $job_id ended with status $status, $(date)"
exit "$status"
