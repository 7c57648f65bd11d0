package arrowshuffle.format;

import java.util.BitSet;

/**
 * Wanted subpartitions of a version of {@code n}: those of a range, or some of them. A file with a
 * multiple of n has a row of subpartition s modulo n in s.
 */
record Subpartitions(int n, int first, int end, BitSet among) {
  /** Whether rows that a file has in a subpartition are wanted. */
  boolean has(int stored) {
    int s = stored < n ? stored : stored % n;
    return s >= first && s < end && (among == null || among.get(s));
  }

  /** Whether any rows of a range of a file's subpartitions are wanted. */
  boolean hasAny(long from, long to) {
    if (to - from >= n) {
      return hasAnyOf(0, n);
    }
    long begin = from / n * n;
    return hasAnyOf(from - begin, Math.min(n, to - begin)) || hasAnyOf(0, to - begin - n);
  }

  private boolean hasAnyOf(long from, long to) {
    int low = (int) Math.max(from, first);
    long high = Math.min(to, end);
    if (low >= high || among == null) {
      return low < high;
    }
    int next = among.nextSetBit(low);
    return next >= 0 && next < high;
  }
}
