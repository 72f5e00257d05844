#!/usr/bin/env bash
# Makes .venv from the locked versions, with both distributions as editable. PYTHON names the interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."

python="${PYTHON:-python3}"
if ! command -v "$python" >/dev/null; then
    echo "error: $python not found. Install Python 3.11 or later, or run: make install PYTHON=/path/to/python3" >&2
    exit 1
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "error: $("$python" --version) is too old, Agent-Reach needs Python 3.11 or later." >&2
    echo "       Run: make install PYTHON=/path/to/python3.11" >&2
    exit 1
fi
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    echo "error: this Python cannot make virtual environments. On Debian and Ubuntu: apt install python3-venv" >&2
    exit 1
fi

echo "Installing into .venv, which takes a minute or two the first time; later nothing, or what changed …"
[ -x .venv/bin/python ] || "$python" -m venv .venv
pip=(.venv/bin/python -m pip --disable-pip-version-check install --quiet)
"${pip[@]}" --no-deps -r requirements/dev.txt
"${pip[@]}" --no-deps --no-build-isolation -e sdk -e .

# The contracts import a few of Google's; buf reads them from here, so that nothing is fetched.
.venv/bin/python - <<'PYTHON'
import pathlib
import shutil

import google.rpc

packaged = pathlib.Path(next(iter(google.rpc.__path__))).parent
for name in ("api/field_behavior.proto", "rpc/status.proto", "rpc/error_details.proto"):
    copy = pathlib.Path("build/googleapis/google", name)
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(packaged / name, copy)
PYTHON
