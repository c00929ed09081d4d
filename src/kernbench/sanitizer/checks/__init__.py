"""The checks of the sanitizer: a module for each kind of mistake."""
