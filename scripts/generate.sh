#!/usr/bin/env bash
# Generates the stubs in sdk/agent_reach/v1 from the contracts, and config/policies.schema.json from the shape of
# policies.yaml. With --check: changes nothing, fails if they are not what comes out.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH"

check=false
[ "${1:-}" = --check ] && check=true

output="$(mktemp -d)"
trap 'rm -rf "$output"' EXIT
python -m grpc_tools.protoc --proto_path=protos --proto_path=build/googleapis \
    --python_out="$output" --grpc_python_out="$output" --mypy_out="$output" --mypy_grpc_out="$output" \
    protos/agent_reach/v1/*.proto 2> >(grep -v '^Writing mypy to ' >&2)

# A contract without a service needs no stub of one.
for proto in protos/agent_reach/v1/*.proto; do
    grep -q '^service ' "$proto" || rm -f "$output/agent_reach/v1/$(basename "$proto" .proto)"_pb2_grpc.py*
done

python -m services.catalog.schema > "$output/policies.schema.json"

stubs=sdk/agent_reach/v1
if $check; then
    diff -r --exclude=__pycache__ --exclude=__init__.py "$output/agent_reach/v1" "$stubs" ||
        { echo "error: $stubs is not what the contracts give. Run: make gen" >&2; exit 1; }
    diff "$output/policies.schema.json" config/policies.schema.json ||
        { echo "error: config/policies.schema.json is not what services/catalog gives. Run: make gen" >&2; exit 1; }
else
    rm -f "$stubs"/*_pb2*.py*
    cp "$output"/agent_reach/v1/* "$stubs"/
    cp "$output/policies.schema.json" config/
fi
