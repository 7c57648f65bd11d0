"""Compiles the program and the reader of the format, and starts it.

``python -m integration.readers.jvm`` reads files whole; with the argument ``pieces`` by several
selections of subpartitions and columns, and it checks bounds of chunks against their rows.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from integration.programs.compiler import find_compiler
from integration.programs.jar import SOURCES, SPARK_JARS, compile_classes

javac = find_compiler()
classes = compile_classes(javac, SOURCES / "arrowshuffle" / "format", Path(__file__).parent)
with tempfile.TemporaryDirectory() as directory:
    for name, code in classes.items():
        path = Path(directory, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(code)
    command = [str(Path(javac).with_name("java")), "-Xmx2g", "-cp", f"{directory}:{SPARK_JARS}"]
    done = subprocess.run([*command, "Kit", *sys.argv[1:]], check=False)
sys.exit(done.returncode)
