package arrowshuffle.spark;

import arrowshuffle.format.CommitLog;
import arrowshuffle.format.ShuffleNotFoundException;
import arrowshuffle.format.Storage;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.time.DateTimeException;
import java.time.OffsetDateTime;
import java.time.format.DateTimeFormatter;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.OptionalLong;
import org.apache.hadoop.conf.Configuration;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.analysis.NoSuchFunctionException;
import org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.connector.catalog.FunctionCatalog;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.NamespaceChange;
import org.apache.spark.sql.connector.catalog.SupportsNamespaces;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.catalog.functions.UnboundFunction;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The shuffles below a directory or prefix, the {@code warehouse}, by name: a directory with a
 * commit log is a table, any other a namespace. A name that is a path is the shuffle there.
 *
 * <p>It reads. What changes shuffles is refused, with what does it in Python.
 */
public final class ShuffleCatalog implements TableCatalog, FunctionCatalog, SupportsNamespaces {
  private static final String LOG = "commit_log";

  private String name;
  private String warehouse;
  private Map<String, String> settings = Map.of();

  @Override
  public void initialize(String catalog, CaseInsensitiveStringMap options) {
    name = catalog;
    settings = Map.copyOf(options.asCaseSensitiveMap());
    String given = options.get("warehouse");
    warehouse = given == null ? null : given.replaceAll("(?<=[^/])/+$", "");
  }

  @Override
  public String name() {
    return name;
  }

  private static Configuration configuration() {
    return SparkSession.active().sessionState().newHadoopConf();
  }

  // Places.

  private static boolean isPath(Identifier table) {
    return table.namespace().length == 0 && table.name().contains("/");
  }

  /** Where a table is, if there is one; null: its name is none that a shuffle can have. */
  private String location(Identifier table) {
    if (isPath(table)) {
      return table.name();
    }
    String directory = directory(table.namespace());
    return directory == null || !isName(table.name()) ? null : directory + "/" + table.name();
  }

  private String directory(String[] namespace) {
    boolean isBelow =
        warehouse != null && Arrays.stream(namespace).allMatch(ShuffleCatalog::isName);
    return isBelow ? String.join("/", prepended(namespace)) : null;
  }

  private List<String> prepended(String[] namespace) {
    List<String> parts = new ArrayList<>(List.of(warehouse));
    parts.addAll(Arrays.asList(namespace));
    return parts;
  }

  private static boolean isName(String part) {
    return !part.isEmpty() && !part.contains("/") && !part.equals(".") && !part.equals("..");
  }

  private static Storage storage(String location) {
    return HadoopStorage.of(location, configuration());
  }

  /** Names of what is in a namespace: of tables, or of namespaces. */
  private List<String> names(String[] namespace, boolean ofTables) {
    List<String> found = new ArrayList<>();
    String directory = directory(namespace);
    if (directory == null) {
      return found;
    }
    Storage storage = storage(directory);
    try {
      for (String child : storage.list("")) {
        boolean isTable = storage.exists(child + "/" + LOG);
        boolean isHidden = child.startsWith(".") || child.startsWith("_");
        if (isTable ? ofTables && hasVersion(directory + "/" + child)
                    : !ofTables && !isHidden && isDirectory(storage, child)) {
          found.add(child);
        }
      }
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
    found.sort(null);
    return found;
  }

  private static boolean isDirectory(Storage storage, String child) throws IOException {
    return !storage.list(child).isEmpty();
  }

  /** Whether a shuffle can be read: it was neither released as a whole nor dropped. */
  private static boolean hasVersion(String location) throws IOException {
    try {
      return CommitLog.open(storage(location)).newest().isPresent();
    } catch (ShuffleNotFoundException e) {
      return false;
    }
  }

  // Tables.

  @Override
  public ShuffleTable loadTable(Identifier table) throws NoSuchTableException {
    return load(table, null);
  }

  /** A version is a number, the name of a tag, or a time with a zone. */
  @Override
  public ShuffleTable loadTable(Identifier table, String version) throws NoSuchTableException {
    return load(table, version);
  }

  @Override
  public ShuffleTable loadTable(Identifier table, long microseconds) throws NoSuchTableException {
    String location = required(table);
    CommitLog log = log(table, location);
    try {
      long version = log.versionAt(Math.floorDiv(microseconds, 1000L));
      return table(table, location, log, version, null);
    } catch (IOException e) {
      throw refused(e);
    }
  }

  private ShuffleTable load(Identifier table, String version) throws NoSuchTableException {
    String location = required(table);
    CommitLog log = log(table, location);
    OptionalLong newest = log.newest();
    if (version == null && newest.isEmpty()) {
      throw new NoSuchTableException(table);
    }
    try {
      long number = version == null ? newest.getAsLong() : number(log, version);
      return table(table, location, log, number, version);
    } catch (IOException e) {
      throw refused(e);
    }
  }

  private static CommitLog log(Identifier table, String location) throws NoSuchTableException {
    try {
      CommitLog log = CommitLog.open(storage(location));
      if (log.isEmpty()) {
        throw new NoSuchTableException(table);
      }
      return log;
    } catch (IOException e) {
      throw refused(e);
    }
  }

  private ShuffleTable table(Identifier table, String location, CommitLog log, long version,
      String asked) throws IOException {
    String shown = name + "." + String.join(".", withNamespace(table));
    return new ShuffleTable(shown, storage(location), log.snapshot(version), asked, settings);
  }

  private static List<String> withNamespace(Identifier table) {
    List<String> parts = new ArrayList<>(Arrays.asList(table.namespace()));
    parts.add(table.name());
    return parts;
  }

  private String required(Identifier table) throws NoSuchTableException {
    if (warehouse == null && !isPath(table)) {
      throw new IllegalArgumentException("the catalog " + name
          + " has no warehouse, so it has no tables by name: set spark.sql.catalog." + name
          + ".warehouse, or give a path in backticks");
    }
    String location = location(table);
    if (location == null) {
      throw new NoSuchTableException(table);
    }
    return location;
  }

  /** The table of a path, without a catalog. */
  static ShuffleTable atPath(String path, String version) {
    ShuffleCatalog catalog = new ShuffleCatalog();
    catalog.initialize(ShuffleSource.NAME, CaseInsensitiveStringMap.empty());
    Identifier table = Identifier.of(new String[0], path);
    try {
      return catalog.load(table, version);
    } catch (NoSuchTableException e) {
      throw new IllegalArgumentException("there is no shuffle at " + path, e);
    }
  }

  private static long number(CommitLog log, String version) throws IOException {
    Long tagged = log.tags().get(version);
    if (tagged != null) {
      return tagged;
    } else if (version.matches("\\d{1,18}")) {
      return Long.parseLong(version);
    }
    try {
      String iso = version.trim().replaceFirst("(?<=\\d) +(?=\\d)", "T");
      OffsetDateTime time = DateTimeFormatter.ISO_OFFSET_DATE_TIME.parse(iso, OffsetDateTime::from);
      return log.versionAt(time.toInstant().toEpochMilli());
    } catch (DateTimeException e) {
      throw new IllegalArgumentException("there is no version " + version
              + ": it must be a number, the name of a tag, or a time with a zone, such as"
              + " 2026-11-20 12:00+01:00",
          e);
    }
  }

  /** Spark shows the message of such an error to who asked, in Python too. */
  private static RuntimeException refused(IOException error) {
    return error instanceof ShuffleNotFoundException
        ? new IllegalArgumentException(error.getMessage(), error)
        : new UncheckedIOException(error.getMessage(), error);
  }

  @Override
  public Identifier[] listTables(String[] namespace) throws NoSuchNamespaceException {
    require(namespace);
    return names(namespace, true)
        .stream()
        .map(table -> Identifier.of(namespace, table))
        .toArray(Identifier[] ::new);
  }

  /** Without looking: what a load finds is what counts. */
  @Override
  public void invalidateTable(Identifier table) {}

  private static UnsupportedOperationException inPython(String what, String call) {
    return new UnsupportedOperationException(
        "SQL does not " + what + " shuffles: in Python, " + call + " does");
  }

  private String shown(Identifier table) {
    String location = location(table);
    return location == null ? table.name() : location;
  }

  @Override
  @SuppressWarnings("deprecation")
  public ShuffleTable createTable(
      Identifier table, StructType schema, Transform[] partitions, Map<String, String> properties) {
    throw inPython(
        "write", "arrow_shuffle.write_shuffle(df, \"" + shown(table) + "\", keys=[...])");
  }

  @Override
  public ShuffleTable alterTable(Identifier table, TableChange... changes) {
    String opened = "arrow_shuffle.open_shuffle(\"" + shown(table) + "\")";
    if (changes.length > 0 && changes[0] instanceof TableChange.RenameColumn) {
      throw inPython("rename columns of", opened + ".rename_columns({...})");
    } else if (changes.length > 0 && changes[0] instanceof TableChange.DeleteColumn) {
      throw inPython("drop columns of", opened + ".drop_columns(...)");
    }
    throw inPython("change",
        opened + ".append(df, options=arrow_shuffle.WriteOptions(schema_evolution=True))");
  }

  @Override
  public boolean dropTable(Identifier table) {
    throw inPython("drop", "arrow_shuffle.drop_shuffle(\"" + shown(table) + "\")");
  }

  @Override
  public void renameTable(Identifier from, Identifier to) {
    throw new UnsupportedOperationException(
        "shuffles are not renamed: move the directory " + shown(from) + " while nothing writes it");
  }

  // Functions.

  @Override
  public Identifier[] listFunctions(String[] namespace) {
    return new Identifier[0];
  }

  @Override
  public UnboundFunction loadFunction(Identifier function) throws NoSuchFunctionException {
    RangeFunction found =
        function.namespace().length == 0 ? RangeFunction.named(function.name()) : null;
    if (found == null) {
      throw new NoSuchFunctionException(function);
    }
    return found;
  }

  // Namespaces.

  private void require(String[] namespace) throws NoSuchNamespaceException {
    if (!namespaceExists(namespace)) {
      throw new NoSuchNamespaceException(namespace);
    }
  }

  @Override
  public boolean namespaceExists(String[] namespace) {
    if (namespace.length == 0) {
      return true;
    }
    String directory = directory(namespace);
    try {
      return directory != null && !storage(directory).exists(LOG)
          && !storage(directory).list("").isEmpty();
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }

  @Override
  public String[][] listNamespaces() throws NoSuchNamespaceException {
    return listNamespaces(new String[0]);
  }

  @Override
  public String[][] listNamespaces(String[] namespace) throws NoSuchNamespaceException {
    require(namespace);
    return names(namespace, false)
        .stream()
        .map(child -> {
          String[] full = Arrays.copyOf(namespace, namespace.length + 1);
          full[namespace.length] = child;
          return full;
        })
        .toArray(String[][] ::new);
  }

  @Override
  public Map<String, String> loadNamespaceMetadata(String[] namespace)
      throws NoSuchNamespaceException {
    require(namespace);
    String directory = directory(namespace);
    return directory == null ? Map.of() : Map.of("location", directory);
  }

  @Override
  public void createNamespace(String[] namespace, Map<String, String> metadata) {
    throw new UnsupportedOperationException(
        "a namespace is a directory of the warehouse: the first shuffle that is written into it"
        + " makes it");
  }

  @Override
  public void alterNamespace(String[] namespace, NamespaceChange... changes) {
    throw new UnsupportedOperationException("a namespace is a directory, and has no properties");
  }

  @Override
  public boolean dropNamespace(String[] namespace, boolean cascade) {
    throw new UnsupportedOperationException(
        "a namespace is a directory of the warehouse: drop its shuffles with"
        + " arrow_shuffle.drop_shuffle");
  }
}
