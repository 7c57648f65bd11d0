"""Files and objects: local directories, object stores, scratch space; all input and output."""
