"""The jar of the reader in Spark's JVM: it is that of the sources, and a compiler is found."""

import re
import zipfile

import pytest

from arrow_format import __version__
from connector.jvm_reader import JAR, own_version
from integration.programs import compiler
from integration.programs.compiler import CompilerError, find_compiler
from integration.programs.jar import SERVICES, SOURCES, build, compile_classes, contents, jar_of
from tests.check_dist import MOST_JAR_BYTES
from tests.support.store_server import skip_but_in_ci

CLASSES = {"a/B.class": b"code of B", "a/A.class": b"code of A", "META.class": b""}
FORMAT = sorted((SOURCES / "arrowshuffle" / "format").glob("*.java"))
OUTSIDE = re.compile(r"\b(org\.apache\.(?:spark|hadoop)|arrowshuffle\.spark)\b")
WARNED = "import java.util.List; class A { List<String> a(Object o) { return (List<String>) o; } }"


@pytest.fixture(scope="module")
def javac():
    try:
        return find_compiler()
    except CompilerError as error:
        skip_but_in_ci(str(error))


@pytest.mark.spark
def test_the_jar_is_that_of_the_sources(javac):
    """Against each Spark that is supported: `make older` runs this one on the others."""
    committed = JAR.read_bytes()
    built = contents(build())
    assert [name for name, _ in built] == [name for name, _ in contents(committed)], "make jar"
    assert built == contents(committed), "the jar is not that of the sources: make jar"
    assert len(committed) < MOST_JAR_BYTES


@pytest.mark.spark
def test_a_warning_of_the_compiler_is_an_error(javac, tmp_path):
    (tmp_path / "A.java").write_text(WARNED)
    with pytest.raises(CompilerError, match="unchecked cast"):
        compile_classes(javac, tmp_path)


def test_equal_classes_make_equal_bytes():
    assert jar_of(CLASSES, "1.0") == jar_of(dict(sorted(CLASSES.items())), "1.0")


def test_entries_have_one_order_and_one_date(tmp_path):
    (tmp_path / "jar").write_bytes(jar_of(CLASSES, "1.0"))
    with zipfile.ZipFile(tmp_path / "jar") as jar:
        entries = jar.infolist()
    services = [f"META-INF/services/{name}" for name in SERVICES]
    assert [entry.filename for entry in entries] == [
        "META-INF/MANIFEST.MF", *services, "META.class", "a/A.class", "a/B.class"
    ]  # fmt: skip
    assert {entry.date_time for entry in entries} == {(1980, 1, 1, 0, 0, 0)}


def test_the_version_names_the_package_and_the_classes():
    def version_of(classes):
        manifest = dict(contents(jar_of(classes, "1.0")))["META-INF/MANIFEST.MF"].decode()
        return re.search(r"Implementation-Version: (\S+)\r\n", manifest)[1]

    assert re.fullmatch(r"1\.0\+[0-9a-f]{12}", version_of(CLASSES))
    assert version_of(CLASSES) != version_of(CLASSES | {"META.class": b"x"})


def test_the_jar_is_of_this_version():
    assert own_version().partition("+")[0] == __version__, "make jar"


def test_classes_that_spark_looks_for_are_there():
    names = {name for name, _ in contents(JAR.read_bytes())}
    wanted = {f"{one.replace('.', '/')}.class" for found in SERVICES.values() for one in found}
    assert wanted <= names


@pytest.mark.parametrize("path", FORMAT, ids=lambda path: path.stem)
def test_the_format_knows_neither_spark_nor_hadoop(path):
    assert OUTSIDE.findall(path.read_text(encoding="utf-8")) == []


@pytest.fixture
def places(tmp_path, monkeypatch):
    """Make JDKs of majors under a directory that stands for all places; return where."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(compiler, "INSTALLED", tmp_path / "jvm")

    def make(directory, major):
        program = tmp_path / directory / "javac"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\necho javac {major}.0.1\n")
        program.chmod(0o755)
        return str(program)

    return make


def test_the_compiler_of_another_jdk_is_passed_over(places, monkeypatch):
    places("bin", 25)
    monkeypatch.setenv("JAVA_HOME", places("home/bin", 21).removesuffix("/bin/javac"))
    found = places("jvm/java-17/bin", 17)
    assert find_compiler() == found


def test_the_compiler_of_java_home_is_first(places, monkeypatch):
    places("bin", 17)
    found = places("home/bin", 17)
    monkeypatch.setenv("JAVA_HOME", found.removesuffix("/bin/javac"))
    assert find_compiler() == found


def test_without_a_compiler_the_message_says_how_to_get_one(places, capsys):
    assert compiler.main() == 1
    said = capsys.readouterr().err
    assert "there is none: install one" in said
    assert "openjdk-17-jdk-headless" in said


def test_without_the_right_compiler_the_message_names_the_others(places):
    other = places("bin", 25)
    with pytest.raises(CompilerError, match=re.escape(f"there is {other} of 25")):
        find_compiler()
