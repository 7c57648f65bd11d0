package arrowshuffle.format;

import java.util.List;

/**
 * One committed version; later commits do not change it.
 *
 * @param version its number
 * @param commitId of its entry
 * @param files in reading order
 * @param numRows rows of each of n subpartitions, broadcast ones in each
 * @param numBytes likewise bytes in data files; their sum is exact, shares are estimates
 */
public record Snapshot(long version, String commitId, Shape shape, List<PartitionedFile> files,
    long[] numRows, long[] numBytes) {}
