package arrowshuffle.spark;

import arrowshuffle.format.Bound;
import arrowshuffle.format.Bounds;
import arrowshuffle.format.PartitionedFile;
import arrowshuffle.format.Shape;
import arrowshuffle.format.Snapshot;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.List;
import java.util.Objects;
import java.util.Optional;
import java.util.OptionalLong;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsReportPartitioning;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.connector.read.SupportsRuntimeV2Filtering;
import org.apache.spark.sql.connector.read.partitioning.KeyGroupedPartitioning;
import org.apache.spark.sql.connector.read.partitioning.Partitioning;
import org.apache.spark.sql.connector.read.partitioning.UnknownPartitioning;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.FloatType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A read of some columns of a version, with what it reports to the planner. Only a filter of run
 * time changes it: it leaves out subpartitions.
 */
final class ShuffleScan implements Scan, Batch, SupportsReportPartitioning,
                                   SupportsReportStatistics, SupportsRuntimeV2Filtering {
  private static final Logger LOG = LoggerFactory.getLogger(ShuffleScan.class);

  /** Characters of predicates, which may have many literals, in plans and the log. */
  private static final int MOST_SHOWN = 1000;

  private final ShuffleTable table;
  private final ScanSettings settings;
  private final StructType columns;
  private final int[] stored;
  private final List<Condition> conditions;
  private final String pushed;
  private final int limit;
  private final List<PartitionedFile> files;
  private final ScanPlan plan;
  private final BitSet planned;

  private BitSet among;

  /**
   * Makes a scan.
   *
   * @param columns those of the rows, metadata columns too
   * @param stored where each is in the schema of the version; -1: a metadata column
   * @param isFiltered whether there are predicates, pushed or not
   * @param conditions that rows which are left out do not satisfy
   * @param pushed the predicates that these came of, as text
   * @param limit rows after which each task stops; -1: none
   */
  ShuffleScan(ShuffleTable table, ScanSettings settings, StructType columns, int[] stored,
      boolean isFiltered, List<Condition> conditions, String pushed, int limit) {
    this.table = table;
    this.settings = settings;
    this.stored = stored;
    this.conditions = List.copyOf(conditions);
    this.pushed = pushed;
    this.limit = limit;
    BitSet found = null;
    for (Condition condition : conditions) {
      found = KeySelection.both(found, selection().of(condition));
    }
    this.planned = found;
    this.among = found;
    this.files = new ArrayList<>();
    this.columns = selected(columns, isFiltered);
    this.plan = ScanPlan.of(snapshot().numBytes(), files.size(), among, whyUnplaced(), settings);
  }

  private Snapshot snapshot() {
    return table.snapshot();
  }

  private Shape shape() {
    return snapshot().shape();
  }

  private KeySelection selection() {
    return KeySelection.of(shape(), table.schema(), table.isPlaced());
  }

  /**
   * Selects the files that may have rows which are wanted, as far as the log knows, and returns the
   * columns. Of one that has no null in any of these Spark tests no value, in a scan without
   * predicates: where it reuses a broadcast for a filter of run time, it compares plans by what
   * may be null, and has changed that in one of the two alone.
   */
  private StructType selected(StructType read, boolean isFiltered) {
    StructField[] fields = read.fields();
    boolean[] mayBeNull = new boolean[fields.length];
    for (PartitionedFile file : snapshot().files()) {
      Bounds bounds = file.numRows() > 0 ? bounds(file) : null;
      if (bounds == null || !conditions.stream().allMatch(of -> of.mayMatch(bounds))) {
        continue;
      }
      files.add(file);
      for (int i = 0; i < fields.length; i++) {
        Bound bound = stored[i] < 0 ? null : bounds.of(shape().columnId(stored[i]));
        mayBeNull[i] |= bound == null || bound.nulls() > 0;
      }
    }
    StructType found = new StructType();
    for (int i = 0; i < fields.length; i++) {
      boolean nullable = fields[i].nullable() && (isFiltered || mayBeNull[i]);
      found = found.add(
          new StructField(fields[i].name(), fields[i].dataType(), nullable, fields[i].metadata()));
    }
    return found;
  }

  private Bounds bounds(PartitionedFile file) {
    try {
      return new Condition.OfVersion(file.bounds(shape()), file);
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }

  /** Why rows of equal keys are not known to be in one range; null: they are. */
  private String whyUnplaced() {
    List<String> read = Arrays.asList(columns.fieldNames());
    if (!shape().kind().equals("hash")) {
      return "the partitioner is no hash of keys";
    } else if (shape().seed() != RangeFunction.SEED) {
      return "keys are hashed from another seed than Spark's";
    } else if (!table.isPlaced()) {
      return "some rows do not lie where the partitioner places them";
    } else if (shape().keys().size() > 1) {
      return "Spark plans joins by functions of one column, and there are several keys";
    } else if (!read.containsAll(shape().keys())) {
      return "not all keys are read";
    }
    DataType type = columns.fields()[read.indexOf(shape().keys().get(0))].dataType();
    if (type instanceof FloatType || type instanceof DoubleType) {
      return "Spark makes equal zeros and NaN of a key first, and then no longer knows it";
    }
    return KeyHash.takes(type) ? null : "the key is of type " + type.catalogString();
  }

  // What it reports to the planner.

  @Override
  public StructType readSchema() {
    return columns;
  }

  @Override
  public Partitioning outputPartitioning() {
    if (plan.ranges() == null) {
      return new UnknownPartitioning(plan.partitions().size());
    }
    Expression[] keys =
        shape().keys().stream().map(ShuffleScan::reference).toArray(Expression[] ::new);
    Expression range = Expressions.apply(new RangeFunction(plan.ranges()).name(), keys);
    return new KeyGroupedPartitioning(new Expression[] {range}, plan.partitions().size());
  }

  private static NamedReference reference(String column) {
    return Expressions.column("`" + column.replace("`", "``") + "`");
  }

  /**
   * Stored bytes count, as of Spark's own files: thresholds of broadcasts were chosen for these.
   */
  @Override
  public Statistics estimateStatistics() {
    long rows = 0;
    long stored = 0;
    for (int s = 0; s < snapshot().numRows().length; s++) {
      boolean isRead = among == null || among.get(s);
      rows += isRead ? snapshot().numRows()[s] : 0;
      stored += isRead ? snapshot().numBytes()[s] : 0;
    }
    double ofColumns =
        (double) Math.max(1, columns.defaultSize()) / Math.max(1, table.schema().defaultSize());
    long bytes = Math.max(1, (long) (stored * Math.min(1, ofColumns)));
    return new Estimate(OptionalLong.of(bytes), OptionalLong.of(rows));
  }

  private record Estimate(OptionalLong sizeInBytes, OptionalLong numRows) implements Statistics {}

  @Override
  public String description() {
    String where =
        "arrow_shuffle " + table.storage().location() + ", version " + snapshot().version();
    String how = plan.ranges() == null
        ? plan.partitions().size() + " tasks, no partitioning: " + plan.why()
        : plan.ranges().numRanges() + " ranges of " + plan.ranges().numSubpartitions()
            + " subpartitions by " + shape().keys() + shape().afterMerge();
    String which = among == null ? "" : ", subpartitions " + shortened(among);
    String what = pushed.length() > MOST_SHOWN ? pushed.substring(0, MOST_SHOWN) + " ..." : pushed;
    return where + ", " + how + which + (conditions.isEmpty() ? "" : ", pushed " + what);
  }

  private static String shortened(BitSet subpartitions) {
    int count = subpartitions.cardinality();
    return count > 20 ? count + " of them" : subpartitions.toString();
  }

  // Filters of run time.

  @Override
  public NamedReference[] filterAttributes() {
    boolean isOne = table.isPlaced() && shape().kind().equals("hash") && shape().keys().size() == 1;
    if (!isOne || !Arrays.asList(columns.fieldNames()).contains(shape().keys().get(0))) {
      return new NamedReference[0];
    }
    return new NamedReference[] {reference(shape().keys().get(0))};
  }

  /** Leaves out subpartitions; the ranges stay, for the other side of a join has them too. */
  @Override
  public void filter(Predicate[] predicates) {
    Pushdown pushdown = new Pushdown(shape(), table.schema());
    among = planned;
    for (Predicate predicate : predicates) {
      Optional<Condition> condition = pushdown.condition(predicate);
      if (condition.isPresent()) {
        among = KeySelection.both(among, selection().of(condition.get()));
      }
    }
  }

  // Tasks.

  @Override
  public Batch toBatch() {
    LOG.info(description());
    return this;
  }

  @Override
  public InputPartition[] planInputPartitions() {
    ScanPlan now = plan;
    if (!Objects.equals(among, planned)) {
      now = plan.restricted(snapshot().numBytes(), files.size(), among, settings);
    }
    return now.partitions().toArray(InputPartition[] ::new);
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    boolean checks = plan.ranges() != null && settings.checkPlacement();
    return new RowsReader.Factory(
        table.storage(), snapshot(), files, columns, stored, checks, conditions, limit);
  }

  // Equal scans give equal rows: Spark reads them once.

  @Override
  public boolean equals(Object other) {
    return other instanceof ShuffleScan scan
        && table.storage().location().equals(scan.table.storage().location())
        && snapshot().commitId().equals(scan.snapshot().commitId())
        && settings.equals(scan.settings) && columns.equals(scan.columns)
        && pushed.equals(scan.pushed) && limit == scan.limit;
  }

  @Override
  public int hashCode() {
    return Objects.hash(table.storage().location(), snapshot().commitId(), columns, pushed);
  }
}
