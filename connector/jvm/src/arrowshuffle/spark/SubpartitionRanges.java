package arrowshuffle.spark;

import java.util.BitSet;

/**
 * The one division of n subpartitions into ranges, which follows from n and the number of ranges
 * alone: scans of equal n have equal ranges in a session, whatever they weigh, so that the planner
 * can join them range by range.
 *
 * <p>Range {@code i} of {@code k} is the subpartitions from {@code floor(i * n / k)} to those of
 * the next range, as even as can be.
 *
 * @param numSubpartitions n
 * @param numRanges k, 1 to n
 */
record SubpartitionRanges(int numSubpartitions, int numRanges) {
  SubpartitionRanges {
    if (numRanges < 1 || numRanges > numSubpartitions) {
      throw new IllegalArgumentException(numRanges + " ranges of " + numSubpartitions);
    }
  }

  /** The first subpartition of a range; of the number of ranges: n. */
  int first(int range) {
    return (int) ((long) range * numSubpartitions / numRanges);
  }

  /** The range that a subpartition is in. */
  int of(int subpartition) {
    return (int) ((((long) subpartition + 1) * numRanges - 1) / numSubpartitions);
  }

  /** How many ranges have one of these subpartitions; null: any of them has. */
  int occupied(BitSet among) {
    if (among == null) {
      return numRanges;
    }
    int found = 0;
    for (int s = among.nextSetBit(0); s >= 0; s = among.nextSetBit(first(of(s) + 1))) {
      found++;
    }
    return found;
  }

  /** The largest sum of a range. */
  long largest(long[] ofSubpartitions) {
    long most = 0;
    for (int range = 0; range < numRanges; range++) {
      long sum = 0;
      for (int s = first(range); s < first(range + 1); s++) {
        sum += ofSubpartitions[s];
      }
      most = Math.max(most, sum);
    }
    return most;
  }

  /** As many ranges, doubled until none has a larger sum; n of them where that does not help. */
  SubpartitionRanges noLargerThan(long most, long[] ofSubpartitions) {
    SubpartitionRanges finer = this;
    while (finer.numRanges < numSubpartitions && finer.largest(ofSubpartitions) > most) {
      finer =
          new SubpartitionRanges(numSubpartitions, Math.min(2 * finer.numRanges, numSubpartitions));
    }
    return finer;
  }
}
