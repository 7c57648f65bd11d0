"""Builds the jar of Spark's reader from the Java beside it: equal sources make equal bytes.

``python -m integration.programs.jar`` compiles ``connector/jvm/src`` against the installed PySpark,
and writes ``connector/jvm/arrow_shuffle.jar``, which is committed, so that an installation of this
package needs no compiler. A test builds it again, against each Spark that is supported.
"""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

from arrow_format import __version__
from connector.jvm_reader import JAR
from integration.programs.compiler import JDK, CompilerError, find_compiler

if TYPE_CHECKING:
    from collections.abc import Mapping

SOURCES = JAR.parent / "src"
SERVICES = {
    "org.apache.spark.sql.sources.DataSourceRegister": (
        "arrowshuffle.spark.ReaderProbe",
        "arrowshuffle.spark.ShuffleSource",
    )
}
"""Classes that Spark's JVM finds by an interface."""

SPARK_JARS = str(Path(str(pyspark.__file__)).parent / "jars" / "*")
"""Class path of the PySpark in use."""

LINT = "all,-classfile,-path"
"""Without what jars of Spark say of one another: a class path in a manifest whose jars are not
there, an annotation whose class is not."""

_DATE = (1980, 1, 1, 0, 0, 0)
"""The first that a zip can have."""


def jar_of(classes: Mapping[str, bytes], version: str) -> bytes:
    """Return the bytes of a jar.

    Parameters
    ----------
    classes
        Bytes of class files by their paths in the jar.
    version
        Of the package. The manifest has it with a digest of the classes, by which the package knows
        whether the jar of a session is its own.
    """
    digest = hashlib.sha256()
    for name, code in sorted(classes.items()):
        digest.update(b"%s %d " % (name.encode(), len(code)) + code)
    manifest = (
        "Manifest-Version: 1.0\r\n"
        "Implementation-Title: arrow-shuffle\r\n"
        f"Implementation-Version: {version}+{digest.hexdigest()[:12]}\r\n\r\n"
    )
    services = {
        f"META-INF/services/{name}": "".join(f"{one}\n" for one in found).encode()
        for name, found in SERVICES.items()
    }
    files = {"META-INF/MANIFEST.MF": manifest.encode(), **services}  # Java looks for that first
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, content in [*files.items(), *sorted(classes.items())]:
            entry = zipfile.ZipInfo(name, _DATE)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED, compresslevel=9)
    return made.getvalue()


def contents(jar: bytes) -> list[tuple[str, bytes]]:
    """Return what a jar has, in its order: zlib of another release compresses to other bytes."""
    with zipfile.ZipFile(io.BytesIO(jar)) as archive:
        return [(entry.filename, archive.read(entry)) for entry in archive.infolist()]


def compile_classes(javac: str, *sources: Path) -> dict[str, bytes]:
    """Return the class files of all Java below directories, compiled against the PySpark in use.

    Raises CompilerError with what the compiler says, of warnings too.
    """
    java = sorted(str(path) for directory in sources for path in directory.rglob("*.java"))
    with tempfile.TemporaryDirectory() as directory:
        options = [
            "--release", str(JDK), f"-Xlint:{LINT}", "-Werror", "-proc:none",
            "-encoding", "UTF-8", "-cp", SPARK_JARS, "-d", directory,
        ]  # fmt: skip
        done = subprocess.run([javac, *options, *java], capture_output=True, text=True, check=False)
        if done.returncode:
            msg = f"{javac} against PySpark {pyspark.__version__}:\n{done.stderr or done.stdout}"
            raise CompilerError(msg)
        root = Path(directory)
        return {
            path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*.class")
        }


def build() -> bytes:
    """Return the bytes of the jar of the sources; CompilerError."""
    return jar_of(compile_classes(find_compiler(), SOURCES), __version__)


def main() -> int:
    """Write the jar, where it has changed; return the exit status."""
    try:
        made = build()
    except CompilerError as error:
        print(error, file=sys.stderr)
        return 1
    is_new = not JAR.exists() or contents(JAR.read_bytes()) != contents(made)
    if is_new:
        JAR.write_bytes(made)
    size = JAR.stat().st_size
    print(f"{JAR.name}: {'written' if is_new else 'as it was'}, {size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
