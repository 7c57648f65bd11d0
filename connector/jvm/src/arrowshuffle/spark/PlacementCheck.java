package arrowshuffle.spark;

import arrowshuffle.format.ChunkRows;
import arrowshuffle.format.CorruptShuffleException;
import arrowshuffle.format.Shape;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;

/**
 * Compares where rows lie with where the hash of their keys places them: by a
 * reported partitioning that does not hold, Spark would lose rows without a word.
 */
final class PlacementCheck {
  private final Shape shape;
  private final List<ColumnVector> keys;
  private final List<DataType> types;
  private int[] hashes = new int[0];
  private int[] subpartitions = new int[0];
  private int begin;
  private int end;

  // What tells a multiple of n without a division: times the inverse of the odd part of n, modulo
  // 2^64, and turned right by its even part, it is at most (2^64 - 1) / n, and no other number is.
  private final long inverse;
  private final int even;
  private final long most;
  private final long positive; // a multiple that makes each difference positive

  private PlacementCheck(Shape shape, List<ColumnVector> keys, List<DataType> types) {
    this.shape = shape;
    this.keys = keys;
    this.types = types;
    long n = shape.numSubpartitions();
    even = Long.numberOfTrailingZeros(n);
    inverse = inverse(n >> even);
    most = Long.divideUnsigned(-1, n);
    positive = n * ((1L << 32) / n + 2);
  }

  /**
   * The number that makes 1 of an odd one, modulo 2^64; each step doubles the bits that are right.
   */
  private static long inverse(long odd) {
    long found = odd;
    for (int bits = 3; bits < Long.SIZE; bits *= 2) {
      found *= 2 - odd * found;
    }
    return found;
  }

  private boolean isMultiple(long difference) {
    long turned = Long.rotateRight((difference + positive) * inverse, even);
    return Long.compareUnsigned(turned, most) <= 0;
  }

  /** The check of batches of these vectors, which have all keys. */
  static PlacementCheck of(Shape shape, StructType columns, ColumnVector[] vectors) {
    List<String> names = Arrays.asList(columns.fieldNames());
    List<ColumnVector> keys = new ArrayList<>();
    List<DataType> types = new ArrayList<>();
    for (String key : shape.keys()) {
      int at = names.indexOf(key);
      keys.add(vectors[at]);
      types.add(SparkTypes.stored(columns.fields()[at].dataType()));
    }
    return new PlacementCheck(shape, keys, types);
  }

  /** Says in which subpartition rows {@code [from, to)} of the batch lie; 0 begins a batch. */
  void add(int from, int to, int subpartition) {
    if (subpartitions.length < to) {
      subpartitions = Arrays.copyOf(subpartitions, Math.max(to, 2 * subpartitions.length));
      hashes = new int[subpartitions.length];
    }
    Arrays.fill(subpartitions, from, to, subpartition);
    begin = from == 0 ? 0 : begin;
    end = to;
  }

  /**
   * Compares the rows that were added since it did so last, all of which are of one chunk.
   *
   * @throws CorruptShuffleException where a row lies elsewhere; it names the file
   */
  void compare(ChunkRows chunk) throws CorruptShuffleException {
    KeyHash.ofRows(keys, types, shape.seed(), begin, end, hashes);
    for (int row = begin; row < end; row++) {
      if (!isMultiple((long) hashes[row] - subpartitions[row])) {
        int placed = Math.floorMod(hashes[row], shape.numSubpartitions());
        throw new CorruptShuffleException(chunk.where() + ": a row lies in subpartition "
            + subpartitions[row] + ", where the hash of its keys " + shape.keys() + " places it in "
            + placed + "; a join by the subpartitions of this file would lose rows");
      }
    }
    begin = end;
  }
}
