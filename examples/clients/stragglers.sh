#!/usr/bin/env bash
# Ask a server who holds a job up: stragglers.sh HOST:PORT TRACE…   (a trace of each rank, with different file names)
# grpcurl learns the API from the server (reflection). Wants grpcurl, jq, base64; the traces in memory, one by one.
set -euo pipefail
server=$1
shift
call() { grpcurl -plaintext -max-msg-sz 16777216 "$@"; }
api=augment.v1.AugmentService

# 1. The traces.
for trace in "$@"; do
    {
        jq -n --arg name "$(basename "$trace")" '{start: {file_name: $name}}'
        split -b 1M --filter='base64 -w0; echo' "$trace" | jq -cR '{chunk: .}'
        echo '{"chunk": "", "finish": true}'
    } | call -d @ "$server" $api/UploadTrace
done | jq -s '{spec: {job: {inputs: [.[].upload | {upload: .name}], augment: {metrics_only: true}}}}' |
    # 2. One job of all.
    call -d @ "$server" $api/CreateJob | jq -r .job.name | {
    read -r job
    # 3. Its end.
    call -d "{\"name\": \"$job\"}" "$server" $api/WatchJob |
        jq -r '.job | "\(.state) \(.progress.stage // "") \(.progress.doneCount // 0) of \(.progress.totalCount // 0)"' >&2
    # 4. The verdict, and a row for each rank that came late: JSON text, of which 64-bit integers keep every digit.
    call -d "{\"name\": \"$job\", \"analyses\": [\"stragglers\"]}" "$server" $api/GetMetrics |
        jq -r '(.verdict // [])[], (.metrics.jsonRows // [])[]'
}
