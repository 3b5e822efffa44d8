#!/usr/bin/env bash
# Have a server augment a trace, call by call: grpcurl.sh HOST:PORT TRACE [OUT]
# grpcurl learns the API from the server (reflection). Wants grpcurl, jq, base64; the trace in memory, so a small one.
set -euo pipefail
server=$1 trace=$2 out=${3:-.}
call() { grpcurl -plaintext -max-msg-sz 16777216 "$@"; }
api=augment.v1.AugmentService

# 1. The trace, in chunks of 1 MiB: bytes are base64 in JSON. The first message names it, the last one ends it.
upload=$({
    jq -n --arg name "$(basename "$trace")" '{start: {file_name: $name}}'
    split -b 1M --filter='base64 -w0; echo' "$trace" | jq -cR '{chunk: .}'
    echo '{"chunk": "", "finish": true}'
} | call -d @ "$server" $api/UploadTrace | jq -r .upload.name)

# 2. A job. The same request_id again would return the same job.
job=$(jq -n --arg upload "$upload" --arg id "$(date +%s)-$$" \
    '{spec: {augment: {input: {upload: $upload}, formats: ["chrome"]}}, request_id: $id}' |
    call -d @ "$server" $api/CreateJob | jq -r .job.name)

# 3. Follow it to its end.
call -d "{\"name\": \"$job\"}" "$server" $api/WatchJob |
    jq -r '.job | "\(.state) \(.progress.stage // "") \(.error.message // "")"' >&2

# 4. What it made.
call -d "{\"parent\": \"$job\"}" "$server" $api/ListArtifacts | jq -r '.artifacts[] | "\(.name) \(.fileName)"' |
    while read -r name file; do
        [ "$file" != null ] || { echo "no file name: $name" >&2; exit 1; }
        call -d "{\"name\": \"$name\"}" "$server" $api/ReadArtifact </dev/null |
            jq -r '.chunk // empty' | while read -r chunk; do base64 -d <<<"$chunk"; done >"$out/$file"
        echo "$out/$file"
    done
