#!/bin/sh
# Run the plug-in's tests on every supported Triton release, or on those named: 3.9 3.8 ...
cd "$(dirname "$0")/.." || exit 1
exec "${PYTHON:-python3}" tests/triton_backend/versions.py "$@"
