"""A service: commands of kernbench for programs that ask over MCP or HTTP."""

from kernbench.service.requests import RequestError
from kernbench.service.serving import serve_http, serving
from kernbench.service.tools import build_server

__all__ = ["RequestError", "build_server", "serve_http", "serving"]
