"""What every part of the bridge uses: patches, errors for unsupported features, types, versions."""
