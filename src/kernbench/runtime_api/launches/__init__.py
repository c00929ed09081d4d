"""From ``kernel[grid](...)`` to a command on a stream."""
