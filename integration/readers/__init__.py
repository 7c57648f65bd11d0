"""A second implementation of the format, written from ``docs/format/`` alone.

No module here imports the project's own code: where one of them stops or guesses, the page is to be
mended, not the module.
"""
