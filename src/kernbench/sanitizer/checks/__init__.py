"""The checks of the sanitizer: one module per kind of mistake."""
