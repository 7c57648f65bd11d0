package arrowshuffle.spark;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import org.apache.spark.sql.connector.expressions.aggregate.Aggregation;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.LocalScan;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownAggregates;
import org.apache.spark.sql.connector.read.SupportsPushDownLimit;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.SupportsPushDownV2Filters;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/**
 * What a query asks of a table, until the scan is made of it.
 *
 * <p>The builder and the scan are two classes: from Spark 4.2 on one class cannot take both filters
 * of the plan and those of run time.
 */
final class ShuffleScanBuilder implements ScanBuilder, SupportsPushDownRequiredColumns,
                                          SupportsPushDownV2Filters, SupportsPushDownLimit,
                                          SupportsPushDownAggregates {
  private final ShuffleTable table;
  private final ScanSettings settings;
  private final Pushdown pushdown;
  private final List<Condition> conditions = new ArrayList<>();

  private StructType columns;
  private Predicate[] pushed = new Predicate[0];
  private boolean isWhole = true;
  private int limit = -1;
  private LocalScan answer;

  ShuffleScanBuilder(ShuffleTable table, ScanSettings settings) {
    this.table = table;
    this.settings = settings;
    this.columns = table.schema();
    this.pushdown = new Pushdown(table.snapshot().shape(), table.schema());
  }

  /** Takes whole columns: what is inside of one is stored together, and Spark takes its part. */
  @Override
  public void pruneColumns(StructType required) {
    List<String> names = Arrays.asList(table.schema().fieldNames());
    columns = new StructType();
    for (StructField field : required.fields()) {
      int at = names.indexOf(field.name());
      columns = columns.add(at < 0 ? field : table.schema().fields()[at]);
    }
  }

  /** Takes what conditions can be made of; Spark compares all rows that are read itself. */
  @Override
  public Predicate[] pushPredicates(Predicate[] predicates) {
    isWhole = predicates.length == 0;
    List<Predicate> taken = new ArrayList<>();
    for (Predicate predicate : predicates) {
      Optional<Condition> condition = pushdown.condition(predicate);
      condition.ifPresent(conditions::add);
      condition.ifPresent(found -> taken.add(predicate));
    }
    pushed = taken.toArray(Predicate[] ::new);
    return predicates;
  }

  @Override
  public Predicate[] pushedPredicates() {
    return pushed.clone();
  }

  @Override
  public boolean pushLimit(int most) {
    limit = most;
    return true;
  }

  /** Each task stops at the limit, so that there may be more rows in all. */
  @Override
  public boolean isPartiallyPushed() {
    return true;
  }

  @Override
  public boolean supportCompletePushDown(Aggregation aggregation) {
    return pushAggregation(aggregation);
  }

  @Override
  public boolean pushAggregation(Aggregation aggregation) {
    answer = isWhole ? TotalsAggregate.answer(table, aggregation).orElse(null) : null;
    return answer != null;
  }

  @Override
  public Scan build() {
    if (answer != null) {
      return answer;
    }
    List<String> names = Arrays.asList(table.schema().fieldNames());
    int[] stored = Arrays.stream(columns.fields())
                       .map(StructField::name)
                       .mapToInt(names::indexOf) // -1: a metadata column
                       .toArray();
    return new ShuffleScan(
        table, settings, columns, stored, !isWhole, conditions, Arrays.toString(pushed), limit);
  }
}
