package arrowshuffle.spark;

import arrowshuffle.format.Bound;
import arrowshuffle.format.Bounds;
import arrowshuffle.format.PartitionedFile;
import arrowshuffle.format.Shape;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.math.BigInteger;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.stream.IntStream;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.aggregate.AggregateFunc;
import org.apache.spark.sql.connector.expressions.aggregate.Aggregation;
import org.apache.spark.sql.connector.expressions.aggregate.Count;
import org.apache.spark.sql.connector.expressions.aggregate.CountStar;
import org.apache.spark.sql.connector.expressions.aggregate.Max;
import org.apache.spark.sql.connector.expressions.aggregate.Min;
import org.apache.spark.sql.connector.read.LocalScan;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.ByteType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.DayTimeIntervalType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.ShortType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.TimestampNTZType;
import org.apache.spark.sql.types.TimestampType;

/**
 * Counts, minima and maxima of a whole version, from the log alone: rows and nulls are exact there,
 * and bounds of numbers and times are values, unless masks took rows.
 *
 * <p>Floats are left to Spark, whose minimum of 0.0 and -0.0 may be either.
 */
final class TotalsAggregate {
  private final ShuffleTable table;
  private final Shape shape;
  private final List<PartitionedFile> files;

  private TotalsAggregate(ShuffleTable table) {
    this.table = table;
    this.shape = table.snapshot().shape();
    this.files = table.snapshot().files().stream().filter(file -> file.storedRows() > 0).toList();
  }

  /** The one row of an aggregation without groups; empty where the log does not say all of it. */
  static Optional<LocalScan> answer(ShuffleTable table, Aggregation asked) {
    if (asked.groupByExpressions().length > 0 || table.hasBroadcastRows()) {
      return Optional.empty();
    }
    TotalsAggregate totals = new TotalsAggregate(table);
    StructType schema = new StructType();
    AggregateFunc[] functions = asked.aggregateExpressions();
    Object[] values = new Object[functions.length];
    for (int i = 0; i < functions.length; i++) {
      Optional<Answer> found = totals.answer(functions[i]);
      if (found.isEmpty()) {
        return Optional.empty();
      }
      values[i] = found.get().value();
      schema = schema.add("aggregate_" + i, found.get().type(), true);
    }
    return Optional.of(new OneRow(schema, new GenericInternalRow(values), table.name()));
  }

  private record Answer(DataType type, Object value) {}

  private record OneRow(StructType readSchema, InternalRow row, String table) implements LocalScan {
    @Override
    public InternalRow[] rows() {
      return new InternalRow[] {row};
    }

    @Override
    public String description() {
      return "the commit log of " + table;
    }
  }

  private Optional<Answer> answer(AggregateFunc function) {
    if (function instanceof CountStar) {
      return Optional.of(new Answer(DataTypes.LongType, numRows()));
    } else if (function instanceof Count count) {
      return count.isDistinct() ? Optional.empty() : column(count.column()).flatMap(this::count);
    } else if (function instanceof Min min) {
      return column(min.column()).flatMap(at -> extreme(at, false));
    } else if (function instanceof Max max) {
      return column(max.column()).flatMap(at -> extreme(at, true));
    }
    return Optional.empty();
  }

  private Optional<Integer> column(Expression expression) {
    if (!(expression instanceof NamedReference name) || name.fieldNames().length != 1) {
      return Optional.empty();
    }
    int at = Arrays.asList(table.schema().fieldNames()).indexOf(name.fieldNames()[0]);
    return at < 0 ? Optional.empty() : Optional.of(at);
  }

  private long numRows() {
    return files.stream().mapToLong(PartitionedFile::numRows).sum();
  }

  /**
   * What the log has of a column of each file; empty where it lacks it of one, or of masked rows.
   */
  private Optional<List<Bound>> bounds(int column) {
    int id = shape.columnId(column);
    List<Bound> found = new java.util.ArrayList<>();
    for (PartitionedFile file : files) {
      if (file.maskRows() > 0) {
        return Optional.empty();
      }
      if (IntStream.of(file.columnIds()).noneMatch(of -> of == id)) {
        found.add(new Bound(null, null, file.numRows())); // it lacks the column: all null
        continue;
      }
      try {
        Bounds bounds = file.bounds(shape);
        Bound bound = bounds.of(id);
        if (bound == null) {
          return Optional.empty();
        }
        found.add(bound);
      } catch (IOException e) {
        throw new UncheckedIOException(e);
      }
    }
    return Optional.of(found);
  }

  private Optional<Answer> count(int column) {
    return bounds(column)
        .map(all -> numRows() - all.stream().mapToLong(Bound::nulls).sum())
        .map(count -> new Answer(DataTypes.LongType, count));
  }

  private Optional<Answer> extreme(int column, boolean isMax) {
    DataType type = table.schema().fields()[column].dataType();
    Optional<List<Bound>> bounds = isExact(type) ? bounds(column) : Optional.empty();
    if (bounds.isEmpty()) {
      return Optional.empty();
    }
    Object most = null;
    for (int i = 0; i < files.size(); i++) {
      Bound bound = bounds.get().get(i);
      Object value = isMax ? bound.max() : bound.min();
      if (value == null) {
        if (bound.nulls() == files.get(i).numRows()) {
          continue;
        }
        return Optional.empty();
      }
      int order = most == null ? 0 : Condition.compare(value, most);
      most = most == null || (isMax ? order > 0 : order < 0) ? value : most;
    }
    return Optional.of(new Answer(type, most == null ? null : inside(most, type)));
  }

  private static boolean isExact(DataType type) {
    return type instanceof BooleanType || type instanceof ByteType || type instanceof ShortType
        || type instanceof IntegerType || type instanceof LongType || type instanceof DateType
        || type instanceof TimestampType || type instanceof TimestampNTZType
        || type instanceof DayTimeIntervalType || type instanceof DecimalType;
  }

  /** A bound's value as Spark has it inside. */
  private static Object inside(Object value, DataType type) {
    if (type instanceof DecimalType decimal) {
      java.math.BigDecimal number = new java.math.BigDecimal(
          value instanceof BigInteger big ? big : BigInteger.valueOf((Long) value),
          decimal.scale());
      return Decimal.apply(number, decimal.precision(), decimal.scale());
    } else if (type instanceof IntegerType || type instanceof DateType) {
      return ((Long) value).intValue();
    } else if (type instanceof ShortType) {
      return ((Long) value).shortValue();
    } else if (type instanceof ByteType) {
      return ((Long) value).byteValue();
    }
    return value;
  }
}
