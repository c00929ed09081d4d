"""A run as a page: one HTML file that needs no network, with its pictures (ADR-0158)."""

from kernbench.page.document import dump_page
