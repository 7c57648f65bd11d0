package arrowshuffle.spark;

import arrowshuffle.format.PartitionedFile;
import arrowshuffle.format.Shape;
import arrowshuffle.format.Snapshot;
import arrowshuffle.format.Storage;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Locale;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.MetadataColumn;
import org.apache.spark.sql.connector.catalog.SupportsDeleteV2;
import org.apache.spark.sql.connector.catalog.SupportsMetadataColumns;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** One version of a shuffle, as a table that is read. */
final class ShuffleTable
    implements Table, SupportsRead, SupportsWrite, SupportsDeleteV2, SupportsMetadataColumns {
  /** The metadata column of the subpartition that a row is in. */
  static final String SUBPARTITION = "_subpartition";

  /** The metadata column of the version that added a row; null where a merge joined several. */
  static final String VERSION = "_version";

  /** Options of a read, in lower case. */
  private static final Set<String> OPTIONS = Set.of("path", "paths", ShuffleSource.VERSION,
      lower(ShuffleSource.VERSION_AS_OF), lower(ShuffleSource.TIMESTAMP_AS_OF), ScanSettings.PIN,
      ScanSettings.NUM_RANGES, ScanSettings.MAX_RANGE_BYTES, ScanSettings.CHECK_PLACEMENT);

  private final String name;
  private final Storage storage;
  private final Snapshot snapshot;
  private final StructType schema;
  private final String asked;
  private final Map<String, String> defaults;

  /**
   * Makes the table of a version.
   *
   * @param name as queries call it
   * @param asked the version as it was asked for; null: none was
   * @param defaults settings of the catalog, which options of a query override
   */
  ShuffleTable(
      String name, Storage storage, Snapshot snapshot, String asked, Map<String, String> defaults) {
    this.name = name;
    this.asked = asked;
    this.storage = storage;
    this.snapshot = snapshot;
    this.schema = SparkTypes.schema(snapshot.shape(), storage.location());
    this.defaults = defaults;
  }

  private static String lower(String option) {
    return option.toLowerCase(Locale.ROOT);
  }

  Storage storage() {
    return storage;
  }

  Snapshot snapshot() {
    return snapshot;
  }

  /** Whether every row lies where the partitioner places it, and in one subpartition. */
  boolean isPlaced() {
    return snapshot.files().stream().allMatch(PartitionedFile::placed) && !hasBroadcastRows();
  }

  /** Whether there are rows that every subpartition has. */
  boolean hasBroadcastRows() {
    return snapshot.files().stream().anyMatch(file -> file.numBroadcastRows() > 0);
  }

  @Override
  public String name() {
    return name;
  }

  /** Of Spark before 4.2 the columns are asked for by this method. */
  @Override
  @SuppressWarnings("deprecation")
  public StructType schema() {
    return schema;
  }

  @Override
  public Map<String, String> properties() {
    Shape shape = snapshot.shape();
    Map<String, String> found = new LinkedHashMap<>();
    found.put("provider", ShuffleSource.NAME);
    found.put(TableCatalog.PROP_EXTERNAL, "true"); // nothing of Spark's owns its files
    found.put("location", storage.location());
    found.put("version", Long.toString(snapshot.version()));
    found.put("num_subpartitions", Integer.toString(shape.numSubpartitions()));
    found.put("partitioner", shape.partitioner());
    found.put("num_rows", Long.toString(Arrays.stream(snapshot.numRows()).sum()));
    found.put("num_bytes", Long.toString(Arrays.stream(snapshot.numBytes()).sum()));
    if (!shape.sortBy().isEmpty()) {
      found.put("sort_by", shape.sortBy().toString());
    }
    return found;
  }

  @Override
  public Transform[] partitioning() {
    return new Transform[0];
  }

  @Override
  public Set<TableCapability> capabilities() {
    return Set.of(TableCapability.BATCH_READ,
        TableCapability.BATCH_WRITE, // so that a write is refused with what to do instead
        TableCapability.TRUNCATE, TableCapability.OVERWRITE_BY_FILTER,
        TableCapability.ACCEPT_ANY_SCHEMA);
  }

  @Override
  public MetadataColumn[] metadataColumns() {
    return new MetadataColumn[] {new Described(SUBPARTITION, DataTypes.IntegerType,
                                     "the subpartition, from 0, that the row is in", false),
        new Described(VERSION, DataTypes.LongType,
            "the version that added the row; null where a merge joined rows of several", true)};
  }

  private record Described(String name, DataType dataType, String comment, boolean isNullable)
      implements MetadataColumn {}

  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    check(options);
    Map<String, String> all = new HashMap<>(defaults);
    all.putAll(options.asCaseSensitiveMap());
    return new ShuffleScanBuilder(this, ScanSettings.of(new CaseInsensitiveStringMap(all)));
  }

  private void check(CaseInsensitiveStringMap options) {
    for (String option : options.keySet()) {
      if (!OPTIONS.contains(option) && !option.startsWith("__")) { // Spark's own
        throw new IllegalArgumentException("option " + option + " is not known to this reader: "
            + "there are " + ScanSettings.NUM_RANGES + ", " + ScanSettings.MAX_RANGE_BYTES + ", "
            + ScanSettings.CHECK_PLACEMENT + ", and " + ShuffleSource.VERSION + " of a path");
      }
    }
    String version = options.get(ShuffleSource.VERSION);
    if (version != null && !version.equals(asked)) {
      throw new IllegalArgumentException("option version is of paths alone: in SQL a table has"
          + " VERSION AS OF, in Python the option versionAsOf");
    }
    if (!options.getOrDefault(ScanSettings.PIN, snapshot.commitId()).equals(snapshot.commitId())) {
      throw new IllegalArgumentException(storage.location() + ": version " + snapshot.version()
          + " is another one than the one that was opened; the directory was replaced. Open it"
          + " again");
    }
  }

  /** Refused with what to do instead, as {@link #newWriteBuilder} is. */
  @Override
  public void deleteWhere(Predicate[] predicates) {
    throw new UnsupportedOperationException(
        "SQL does not delete rows of shuffles: in Python, arrow_shuffle.open_shuffle(\""
        + storage.location() + "\").delete({...}) deletes those of keys");
  }

  @Override
  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    throw new UnsupportedOperationException(
        "SQL does not write shuffles: append with arrow_shuffle.open_shuffle(\""
        + storage.location() + "\").append(df), or replace with arrow_shuffle.write_shuffle(df, \""
        + storage.location() + "\", mode=\"overwrite\", ...)");
  }

  // Equal versions are equal tables: Spark finds what was cached of one by it.

  @Override
  public boolean equals(Object other) {
    return other instanceof ShuffleTable table
        && storage.location().equals(table.storage.location())
        && snapshot.commitId().equals(table.snapshot.commitId()) && defaults.equals(table.defaults);
  }

  @Override
  public int hashCode() {
    return Objects.hash(storage.location(), snapshot.commitId());
  }
}
