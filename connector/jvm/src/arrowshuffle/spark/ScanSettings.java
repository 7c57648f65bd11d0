package arrowshuffle.spark;

import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * What the session and the catalog say of scans.
 *
 * @param cores how many tasks run at once
 * @param numRanges into how many ranges n is divided, at most; of all scans of a session
 * @param maxRangeBytes stored bytes of a range above which no partitioning is reported
 * @param checkPlacement whether the keys of rows are hashed where partitioning was reported
 * @param isBucketing whether Spark plans joins by reported partitionings
 * @param isPartiallyClustered whether Spark may give one range to several tasks, which doubles rows
 *     (SPARK-58996, SPARK-53074, SPARK-55848)
 */
record ScanSettings(int cores, int numRanges, long maxRangeBytes, boolean checkPlacement,
    boolean isBucketing, boolean isPartiallyClustered) {
  static final String NUM_RANGES = "num-ranges";
  static final String MAX_RANGE_BYTES = "max-range-bytes";
  static final String CHECK_PLACEMENT = "check-placement";

  /** The commit that the version must be, which {@code to_spark} of Python says. */
  static final String PIN = "pin";

  private static final int RANGES_A_CORE = 2;
  private static final long GIBIBYTE = 1L << 30;
  private static final String BUCKETING = "spark.sql.sources.v2.bucketing.";

  /** The settings of a query: its options, else those of the catalog, else the defaults. */
  static ScanSettings of(CaseInsensitiveStringMap options) {
    SparkSession session = SparkSession.active();
    int cores = Math.max(1, session.sparkContext().defaultParallelism());
    return new ScanSettings(cores,
        (int) positive(options, NUM_RANGES, (long) RANGES_A_CORE * cores, 1_000_000),
        positive(options, MAX_RANGE_BYTES, GIBIBYTE, Long.MAX_VALUE),
        options.getBoolean(CHECK_PLACEMENT, true), isSet(session, BUCKETING + "enabled"),
        isSet(session, BUCKETING + "partiallyClusteredDistribution.enabled"));
  }

  private static boolean isSet(SparkSession session, String name) {
    return Boolean.parseBoolean(session.conf().get(name)); // else the default of this Spark
  }

  private static long positive(
      CaseInsensitiveStringMap options, String name, long otherwise, long most) {
    String text = options.get(name);
    if (text == null) {
      return otherwise;
    }
    try {
      long number = Long.parseLong(text.trim());
      if (0 < number && number <= most) {
        return number;
      }
    } catch (NumberFormatException e) {
      // Said below.
    }
    throw new IllegalArgumentException(
        name + " is " + text + ": it must be a whole number from 1 to " + most);
  }
}
