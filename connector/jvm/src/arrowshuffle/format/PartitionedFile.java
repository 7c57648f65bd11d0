package arrowshuffle.format;

import java.io.IOException;
import java.io.Serializable;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;

/**
 * A partitioned file, and its map output, as the log has them; see "Entries" of the format.
 *
 * @param version the version that added the map output
 * @param order its place in reading order among those of that version
 * @param lastVersion the version that added its last rows
 * @param path without its suffix, below the root
 * @param root an absolute directory; empty: the shuffle's
 * @param numRows rows that are left
 * @param first the first subpartition of the index that may have rows
 * @param end the subpartition of the index behind the last one that may have rows
 * @param placed whether rows lie where the version's partitioner places them
 */
public record PartitionedFile(long version, long order, long lastVersion, String jobId,
    long mapTask, long attempt, int[] columnIds, String path, String root, long numRows,
    long numRegions, long dataBytes, long rawBytes, long indexBytes, long directoryBytes,
    long directoryCrc32, long numBroadcastRows, long numSubpartitions, long first, long end,
    List<FileBounds> statistics, boolean placed, long maskRows, long maskNumber, long maskOffset,
    long maskLength, long maskCrc32, String maskPath, byte[] mask) implements Serializable {
  /** Rows that the index has, those that are masked among them. */
  public long storedRows() {
    return numRows + maskRows;
  }

  /**
   * What the log knows of the values of all rows, as a version has their types.
   *
   * @throws CorruptShuffleException where a bound is none of the type of its column
   */
  public Bounds bounds(Shape shape) throws IOException {
    Map<Integer, Bound> known = new HashMap<>();
    for (FileBounds of : statistics) {
      int column = shape.columns().positionOf(of.columnId());
      if (column >= 0) {
        String where = path + ": bounds of column " + shape.columns().fields.get(column).getName();
        known.put(of.columnId(),
            BoundValues.bound(
                of.min(), of.max(), of.nulls(), shape.columns().layouts[column], where));
      }
    }
    return new FileRows(
        storedRows(), Arrays.stream(columnIds).boxed().collect(Collectors.toSet()), known);
  }

  /** Rows of a file, or of a chunk, with what is known of some columns. */
  record FileRows(long rows, Set<Integer> ids, Map<Integer, Bound> known) implements Bounds {
    @Override
    public Bound of(int columnId) {
      // Of a column that the file lacks all values are null.
      return ids.contains(columnId) ? known.get(columnId) : new Bound(null, null, rows);
    }
  }
}
