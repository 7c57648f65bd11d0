package arrowshuffle.spark;

import java.io.Serializable;
import java.util.Arrays;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.catalog.functions.BoundFunction;
import org.apache.spark.sql.connector.catalog.functions.ScalarFunction;
import org.apache.spark.sql.connector.catalog.functions.UnboundFunction;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/**
 * The transform by which a scan reports its partitioning: the number of the range in which rows of
 * some keys are. Its name has n and the number of ranges, so that scans of others never look
 * alike.
 *
 * <p>It is no {@code ReducibleFunction}: Spark's reducers lost rows (SPARK-59121).
 */
final class RangeFunction implements UnboundFunction {
  private static final long serialVersionUID = 1L;
  private static final Pattern NAME =
      Pattern.compile("range_of_(\\d{1,7})_subpartitions_in_(\\d{1,7})");
  /** From which Spark hashes keys. */
  static final int SEED = 42;

  private final SubpartitionRanges ranges;

  RangeFunction(SubpartitionRanges ranges) {
    this.ranges = ranges;
  }

  /** The function of a name; null where it is the name of none. */
  static RangeFunction named(String name) {
    Matcher found = NAME.matcher(name);
    if (!found.matches()) {
      return null;
    }
    int n = Integer.parseInt(found.group(1));
    int k = Integer.parseInt(found.group(2));
    return 0 < k && k <= n ? new RangeFunction(new SubpartitionRanges(n, k)) : null;
  }

  @Override
  public String name() {
    return "range_of_" + ranges.numSubpartitions() + "_subpartitions_in_" + ranges.numRanges();
  }

  @Override
  public String description() {
    return name() + ": the range of subpartitions in which rows of these keys are";
  }

  @Override
  public BoundFunction bind(StructType keys) {
    for (StructField key : keys.fields()) {
      if (!KeyHash.takes(key.dataType())) {
        throw new UnsupportedOperationException(
            name() + " takes no key of type " + key.dataType().catalogString());
      }
    }
    return new Bound(ranges, name(),
        Arrays.stream(keys.fields()).map(StructField::dataType).toArray(DataType[] ::new));
  }

  private static final class Bound implements ScalarFunction<Integer>, Serializable {
    private static final long serialVersionUID = 1;

    private final int numSubpartitions;
    private final int numRanges;
    private final String name;
    private final DataType[] types;

    Bound(SubpartitionRanges ranges, String name, DataType[] types) {
      this.numSubpartitions = ranges.numSubpartitions();
      this.numRanges = ranges.numRanges();
      this.name = name;
      this.types = types;
    }

    @Override
    public DataType[] inputTypes() {
      return types.clone();
    }

    @Override
    public DataType resultType() {
      return DataTypes.IntegerType;
    }

    @Override
    public boolean isResultNullable() {
      return false;
    }

    @Override
    public String name() {
      return name;
    }

    @Override
    public String canonicalName() {
      return Arrays.stream(types)
          .map(DataType::catalogString)
          .collect(Collectors.joining(", ", "arrow_shuffle." + name + "(", ")"));
    }

    @Override
    public Integer produceResult(InternalRow keys) {
      int hash = SEED;
      for (int k = 0; k < types.length; k++) {
        hash = KeyHash.fold(keys.isNullAt(k) ? null : keys.get(k, types[k]), types[k], hash);
      }
      int subpartition = Math.floorMod(hash, numSubpartitions);
      return new SubpartitionRanges(numSubpartitions, numRanges).of(subpartition);
    }
  }
}
