package arrowshuffle.format;

import java.io.Serializable;

/**
 * Bounds of a column of a file as the log has them.
 *
 * @param columnId the id of the column
 * @param min bytes of the lower bound, of the column's type in the file; null where there is none
 * @param max bytes of the upper bound; null where there is none
 * @param nulls how many values are null
 */
public record FileBounds(int columnId, byte[] min, byte[] max, long nulls) implements Serializable {
}
