"""A service: commands of kernbench for programs that ask over MCP or HTTP."""
