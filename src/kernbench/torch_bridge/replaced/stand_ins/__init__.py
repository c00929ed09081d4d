"""Stand-ins for packages: a folder each, and what lets programs find them (ADR-0148)."""
