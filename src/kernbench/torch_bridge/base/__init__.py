"""What every part of the bridge uses: patches, refusals, types, versions."""
