package arrowshuffle.spark;

import java.util.BitSet;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.read.HasPartitionKey;
import org.apache.spark.sql.connector.read.InputPartition;

/** What one task reads: a range of subpartitions, of all files or of every so many-th. */
class RangePartition implements InputPartition {
  private static final long serialVersionUID = 1;

  /** The first subpartition. */
  final int first;

  /** The subpartition behind the last. */
  final int end;

  /** Those of the range that are read; null: all. */
  final BitSet among;

  /** Which of the files are read: those whose number is this, modulo {@link #fileStep}. */
  final int firstFile;

  /** 1: all files are read. */
  final int fileStep;

  RangePartition(int first, int end, BitSet among, int firstFile, int fileStep) {
    this.first = first;
    this.end = end;
    this.among = among;
    this.firstFile = firstFile;
    this.fileStep = fileStep;
  }

  /** One of the ranges that a scan reports as its partitioning. */
  static final class Keyed extends RangePartition implements HasPartitionKey {
    private static final long serialVersionUID = 1;

    private final int range;

    Keyed(int range, int first, int end, BitSet among) {
      super(first, end, among, 0, 1);
      this.range = range;
    }

    @Override
    public InternalRow partitionKey() {
      return new GenericInternalRow(new Object[] {range});
    }
  }
}
