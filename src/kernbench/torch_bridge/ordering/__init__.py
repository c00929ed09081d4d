"""Under the sanitizer: in which order a process does what, and what that did to memory."""
