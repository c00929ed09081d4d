"""What the sanitizer knows: bytes of accesses, lanes, lines, and what comes before what."""
