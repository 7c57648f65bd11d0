package arrowshuffle.spark;

import arrowshuffle.format.Bound;
import arrowshuffle.format.Bounds;
import arrowshuffle.format.PartitionedFile;
import java.io.Serializable;
import java.math.BigInteger;
import java.util.Arrays;
import java.util.List;
import java.util.function.Predicate;

/**
 * What a query wants of rows, as far as bounds can tell that some have none of it. It is never more
 * than what Spark asks, which compares the rows that are read itself.
 *
 * <p>Values are those of a {@link Bound}, in Spark's order: NaN is the largest number and equals
 * itself, zeros are equal, texts compare by their bytes.
 */
sealed interface Condition extends Serializable {
  /** Whether rows of which this is known may satisfy it; where nothing is known they may. */
  boolean mayMatch(Bounds rows);

  /** All of these. */
  record And(List<Condition> of) implements Condition {
    @Override
    public boolean mayMatch(Bounds rows) {
      return of.stream().allMatch(condition -> condition.mayMatch(rows));
    }
  }

  /** Any of these. */
  record Or(List<Condition> of) implements Condition {
    @Override
    public boolean mayMatch(Bounds rows) {
      return of.stream().anyMatch(condition -> condition.mayMatch(rows));
    }
  }

  /** No row satisfies it. */
  record Never() implements Condition {
    @Override
    public boolean mayMatch(Bounds rows) {
      return false;
    }
  }

  /**
   * A column equals one of some values.
   *
   * @param column the position of the column; {@link #SUBPARTITION} of the metadata column
   * @param values as a Bound has them, to compare with bounds
   * @param inside the same as Spark has them, to be hashed
   */
  record OneOf(int column, int columnId, List<Object> values, List<Object> inside)
      implements Condition {
    @Override
    public boolean mayMatch(Bounds rows) {
      return mayHave(rows, columnId,
          bound
          -> values.stream().anyMatch(value
              -> (bound.min() == null || compare(value, bound.min()) >= 0)
                  && (bound.max() == null || compare(value, bound.max()) <= 0)));
    }
  }

  /** A column is less than a value, or equals it if {@code orEqual}. */
  record Less(int columnId, Object value, boolean orEqual) implements Condition {
    @Override
    public boolean mayMatch(Bounds rows) {
      return mayHave(rows, columnId,
          bound -> bound.min() == null || compare(bound.min(), value) < (orEqual ? 1 : 0));
    }
  }

  /** A column is greater than a value, or equals it if {@code orEqual}. */
  record Greater(int columnId, Object value, boolean orEqual) implements Condition {
    @Override
    public boolean mayMatch(Bounds rows) {
      return mayHave(rows, columnId,
          bound -> bound.max() == null || compare(bound.max(), value) > (orEqual ? -1 : 0));
    }
  }

  /** A text begins with these bytes. */
  record BeginsWith(int columnId, byte[] prefix) implements Condition {
    @Override
    public boolean mayMatch(Bounds rows) {
      return mayHave(rows, columnId,
          bound
          -> (bound.max() == null || compare(bound.max(), prefix) >= 0)
              && (bound.min() == null || compare(cut((byte[]) bound.min()), prefix) <= 0));
    }

    private byte[] cut(byte[] text) {
      return text.length > prefix.length ? Arrays.copyOf(text, prefix.length) : text;
    }
  }

  /** A column is null. */
  record IsNull(int column, int columnId) implements Condition {
    @Override
    public boolean mayMatch(Bounds rows) {
      Bound bound = rows.of(columnId);
      return bound == null || bound.nulls() > 0;
    }
  }

  /** A column is not null. */
  record IsNotNull(int columnId) implements Condition {
    @Override
    public boolean mayMatch(Bounds rows) {
      return mayHave(rows, columnId, bound -> true);
    }
  }

  /** Whether some row may have a value, and one that the bounds of the column leave possible. */
  private static boolean mayHave(Bounds rows, int columnId, Predicate<Bound> possible) {
    Bound bound = rows.of(columnId);
    return bound == null || bound.nulls() < rows.rows() && possible.test(bound);
  }

  /** Stands for the metadata column of the subpartition, as a position and as an id. */
  int SUBPARTITION = -1;

  /** Stands for that of the version. */
  int VERSION = -2;

  /** Bounds of rows of a file, with that of the version that added them. */
  record OfVersion(Bounds stored, PartitionedFile file) implements Bounds {
    @Override
    public long rows() {
      return stored.rows();
    }

    @Override
    public Bound of(int columnId) {
      if (columnId == VERSION) {
        return file.version() == file.lastVersion()
            ? new Bound(file.version(), file.version(), 0)
            : new Bound(null, null, stored.rows()); // joined by a merge: null
      }
      return columnId == SUBPARTITION ? null : stored.of(columnId);
    }
  }

  /** Compares values of one column, of any of the classes that a {@link Bound} names. */
  static int compare(Object a, Object b) {
    if (a instanceof byte[] bytes) {
      return Arrays.compareUnsigned(bytes, (byte[]) b);
    } else if (a instanceof Double || a instanceof Float) {
      return Double.compare(number(a), number(b));
    } else if (a instanceof Boolean bool) {
      return Boolean.compare(bool, (Boolean) b);
    } else if (a instanceof Long first && b instanceof Long second) {
      return Long.compare(first, second);
    }
    return integer(a).compareTo(integer(b));
  }

  private static double number(Object value) {
    double number = ((Number) value).doubleValue();
    return number == 0.0 ? 0.0 : number; // Double.compare has every NaN above all else
  }

  private static BigInteger integer(Object value) {
    return value instanceof BigInteger big ? big : BigInteger.valueOf((Long) value);
  }
}
