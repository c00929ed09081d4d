"""A part of flash_attn, for simulated devices."""
