package arrowshuffle.spark;

import java.util.ArrayList;
import java.util.BitSet;
import java.util.List;

/**
 * How a scan is divided into tasks, and whether it reports that each has keys of its own. It
 * follows from the log alone; indexes are read by the tasks.
 *
 * @param ranges the partitioning that it reports; null: none
 * @param why where it reports none, the reason
 * @param partitions what the tasks read; of ranges one for each, those without rows too
 */
record ScanPlan(SubpartitionRanges ranges, String why, List<RangePartition> partitions) {
  /** With less than this, a task takes longer to start than to read. */
  private static final long LEAST_TASK_BYTES = 4L << 20;

  /** With more than this, tasks end too far apart. */
  private static final long MOST_TASK_BYTES = 64L << 20;

  /**
   * Decides.
   *
   * @param numBytes stored bytes of each subpartition
   * @param among subpartitions that are read; null: all
   * @param unplaced why table and columns allow no partitioning to be reported; null: they do
   */
  static ScanPlan of(
      long[] numBytes, int numFiles, BitSet among, String unplaced, ScanSettings settings) {
    int n = numBytes.length;
    SubpartitionRanges ranges = new SubpartitionRanges(n, Math.min(n, settings.numRanges()));
    String why = unplaced != null ? unplaced : why(ranges, numBytes, among, settings);
    if (why != null) {
      return new ScanPlan(null, why, byBytes(numBytes, numFiles, among, settings.cores()));
    }
    return new ScanPlan(ranges, null, keyed(ranges, among));
  }

  /** The same with fewer subpartitions, which a filter of run time left: the ranges stay. */
  ScanPlan restricted(long[] numBytes, int numFiles, BitSet among, ScanSettings settings) {
    return new ScanPlan(ranges, why,
        ranges == null ? byBytes(numBytes, numFiles, among, settings.cores())
                       : keyed(ranges, among));
  }

  private static List<RangePartition> keyed(SubpartitionRanges ranges, BitSet among) {
    List<RangePartition> found = new ArrayList<>();
    for (int range = 0; range < ranges.numRanges(); range++) {
      found.add(
          new RangePartition.Keyed(range, ranges.first(range), ranges.first(range + 1), among));
    }
    return found;
  }

  private static String why(
      SubpartitionRanges ranges, long[] numBytes, BitSet among, ScanSettings settings) {
    if (!settings.isBucketing()) {
      return "spark.sql.sources.v2.bucketing.enabled is false";
    } else if (settings.isPartiallyClustered()) {
      return "spark.sql.sources.v2.bucketing.partiallyClusteredDistribution.enabled is true, with"
          + " which Spark doubles rows";
    } else if (ranges.occupied(among) < 2) {
      return "one range has all that is read";
    }
    long largest = ranges.largest(numBytes);
    if (largest > settings.maxRangeBytes()) {
      return "a range has " + largest + " bytes, more than " + ScanSettings.MAX_RANGE_BYTES + "; "
          + ScanSettings.NUM_RANGES + " = "
          + ranges.noLargerThan(settings.maxRangeBytes(), numBytes).numRanges()
          + " would make smaller ones";
    }
    return null;
  }

  /** Cuts what is read into tasks of about equal bytes: subpartitions, then files of these. */
  private static List<RangePartition> byBytes(
      long[] numBytes, int numFiles, BitSet among, int cores) {
    int n = numBytes.length;
    long total = 0;
    for (int s = 0; s < n; s++) {
      total += among == null || among.get(s) ? numBytes[s] : 0;
    }
    long wanted = Math.min(2L * cores, total / LEAST_TASK_BYTES);
    long tasks = Math.max(1, Math.max(wanted, total / MOST_TASK_BYTES));
    List<RangePartition> found = new ArrayList<>();
    long before = 0;
    int first = 0;
    for (int s = 0; s < n; s++) {
      long own = among == null || among.get(s) ? numBytes[s] : 0;
      long task = share(before, total, tasks);
      before += own;
      boolean isLast = s == n - 1;
      if (isLast || share(before, total, tasks) > task && before < total) {
        addFiles(found, first, s + 1, numFiles, share(own, total, tasks), among);
        first = s + 1;
      }
    }
    return found;
  }

  /** How many of some tasks a part of all bytes is, rounded down. */
  private static long share(long bytes, long total, long tasks) {
    return (long) ((double) bytes / Math.max(total, 1) * tasks);
  }

  /** Where a subpartition weighs more than a task should, its files are divided. */
  private static void addFiles(
      List<RangePartition> into, int first, int end, int numFiles, long tasks, BitSet among) {
    int step = (int) Math.max(1, Math.min(numFiles, tasks));
    for (int file = 0; file < step; file++) {
      into.add(new RangePartition(first, end, among, file, step));
    }
  }
}
