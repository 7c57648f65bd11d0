package arrowshuffle.format;

import static arrowshuffle.format.Checks.check;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.Comparator;
import java.util.List;

/**
 * The chunks of some blocks of a file that have wanted rows, and which these are. Where the blocks
 * are all of the file, it is known too whether every row is there once.
 */
final class Selection {
  private static final int RUN = 3;

  private final Subpartitions wanted;
  private final PartitionedFile file;
  private final RowMask mask;
  private final String where;

  /** From row, to row, and subpartition of each run, one behind the other. */
  private int[] runs = new int[64];

  private int numRuns;
  private final List<Chunk> chunks = new ArrayList<>();

  /** A chunk, and its runs from firstRun to endRun. */
  static final class Chunk {
    final IndexBlock block;
    final int number;
    final int region;
    final int firstRun;
    int endRun;

    Chunk(IndexBlock block, int number, int region, int firstRun) {
      this.block = block;
      this.number = number;
      this.region = region;
      this.firstRun = firstRun;
      this.endRun = firstRun;
    }

    @Override
    public String toString() {
      return "region " + region + ", chunk at byte " + block.chunkOffset[number];
    }
  }

  private record Part(IndexBlock block, int number) {
    int region() {
      return block.region[number];
    }

    long firstRow() {
      return block.firstRow[number];
    }

    long endRow() {
      return block.firstRow[number] + block.numRows[number];
    }

    boolean isBroadcast() {
      return block.isBroadcast[number];
    }
  }

  /** Chooses the wanted rows of blocks, without those that a mask took. */
  Selection(List<IndexBlock> blocks, boolean areAll, Subpartitions wanted, PartitionedFile file,
      RowMask mask, String where) throws CorruptShuffleException {
    this.wanted = wanted;
    this.file = file;
    this.mask = mask;
    this.where = where;
    List<Part> parts = new ArrayList<>();
    for (IndexBlock block : blocks) {
      for (int p = 0; p < block.numParts; p++) {
        parts.add(new Part(block, p));
      }
    }
    parts.sort(Comparator.comparingInt(Part::region).thenComparingLong(Part::firstRow));
    checkPlaces(parts);
    if (areAll) {
      checkWhole(parts);
    }
    for (Part part : parts) {
      choose(part.block, part.number);
    }
  }

  /** Chunks with wanted rows, in the order of the file. */
  List<Chunk> chunks() {
    return chunks;
  }

  int from(int run) {
    return runs[RUN * run];
  }

  int to(int run) {
    return runs[RUN * run + 1];
  }

  int subpartition(int run) {
    return runs[RUN * run + 2];
  }

  // Checks

  /** Parts and chunks of what was read must not overlap; a chunk at a border is in two blocks. */
  private void checkPlaces(List<Part> parts) throws CorruptShuffleException {
    IndexBlock block = null;
    int last = -1;
    Part before = null;
    for (Part part : parts) {
      boolean isSame = before != null && before.region() == part.region();
      check(!isSame
              || before.endRow() <= part.firstRow() && !part.isBroadcast() && !before.isBroadcast(),
          part.block.where, "parts of region " + part.region() + " that overlap");
      check(part.region() < file.numRegions(), part.block.where,
          "region " + part.region() + ", where the log has " + file.numRegions());
      for (int c = part.block.chunks[part.number]; c < part.block.chunks[part.number + 1]; c++) {
        boolean isAtBorder = isSame && part.block.chunkRow[c] == block.chunkRow[last];
        boolean isSound = last < 0 || isAtBorder && part.block.isAlike(c, block, last)
            || !isAtBorder && part.block.chunkOffset[c] >= block.chunkEnd[last]
                && (!isSame
                    || part.block.chunkRow[c] >= block.chunkRow[last] + block.chunkRows[last]);
        check(isSound, part.block.where, "chunks that overlap, or that blocks describe otherwise");
        block = part.block;
        last = c;
        isSame = true;
      }
      before = part;
    }
  }

  /** Every row of each region must be there once, in subpartitions that wrap at most once. */
  private void checkWhole(List<Part> parts) throws CorruptShuffleException {
    long rows = 0;
    long broadcast = 0;
    int region = -1;
    for (int from = 0, to = 0; from < parts.size(); from = to) {
      region++;
      Part first = parts.get(from);
      long row = 0;
      long chunkRow = 0;
      int falls = 0;
      check(first.region() == region, where, "has no region " + region);
      for (; to < parts.size() && parts.get(to).region() == region; to++) {
        Part part = parts.get(to);
        check(part.firstRow() == row, part.block.where,
            "region " + region + " lacks row " + row + ", or has it twice");
        boolean falling =
            to > from && !part.isBroadcast() && firstOf(part) < lastOf(parts.get(to - 1));
        falls += falling ? 1 : 0;
        check(!falling || part.block.chunkRow[part.block.chunks[part.number]] == row, where,
            "a chunk of both sides of the wrap of region " + region);
        row = part.endRow();
        for (int c = part.block.chunks[part.number]; c < part.block.chunks[part.number + 1]; c++) {
          if (part.block.chunkRow[c] + part.block.chunkRows[c] != chunkRow) {
            check(part.block.chunkRow[c] == chunkRow, where,
                "row " + chunkRow + " of region " + region + " is in no chunk, or in two");
            chunkRow += part.block.chunkRows[c];
          }
        }
      }
      boolean isOnce = falls == 0 || falls == 1 && lastOf(parts.get(to - 1)) <= firstOf(first);
      check(isOnce && chunkRow == row, where,
          "region " + region + " wraps twice, or chunks lack rows");
      BitSet gone = mask.ofRegion(region);
      check(gone == null || gone.length() <= row, where,
          "a mask of a row that region " + region + " has not");
      rows += row;
      broadcast += first.isBroadcast() ? row - mask.count(region) : 0;
    }
    check(region + 1 == file.numRegions() && rows == file.storedRows()
            && broadcast == file.numBroadcastRows(),
        where,
        "has " + rows + " rows in " + (region + 1) + " regions, " + broadcast
            + " of them broadcast and left; the log differs");
  }

  private static int firstOf(Part part) {
    return part.block.subpartition[part.block.listed[part.number]];
  }

  private static int lastOf(Part part) {
    return part.block.subpartition[part.block.listed[part.number + 1] - 1];
  }

  // Rows

  private void choose(IndexBlock block, int p) {
    int chunk = block.chunks[p];
    long row = block.firstRow[p];
    if (block.isBroadcast[p]) {
      add(block, p, chunk, row, row + block.numRows[p], -1);
      return;
    }
    int n = wanted.n();
    for (int i = block.listed[p]; i < block.listed[p + 1]; i++) {
      long end = row + block.subpartitionRows[i];
      int stored = block.subpartition[i];
      if (wanted.has(stored)) {
        chunk = add(block, p, chunk, row, end, stored < n ? stored : stored % n);
      }
      row = end;
    }
  }

  /** Adds rows of a part, the first of which is in a chunk or behind it; returns the last one's. */
  private int add(IndexBlock block, int p, int chunk, long from, long to, int subpartition) {
    int c = chunk;
    while (block.chunkRow[c] + block.chunkRows[c] <= from) {
      c++;
    }
    BitSet gone = mask.ofRegion(block.region[p]);
    for (long at = from; at < to; c++) {
      long begin = block.chunkRow[c];
      long end = Math.min(to, begin + block.chunkRows[c]);
      if (gone == null) {
        addRun(block, p, c, (int) (at - begin), (int) (end - begin), subpartition);
      } else {
        for (int left = gone.nextClearBit((int) at); left < end;) {
          int next = gone.nextSetBit(left);
          int stop = next < 0 || next > end ? (int) end : next;
          addRun(block, p, c, (int) (left - begin), (int) (stop - begin), subpartition);
          left = gone.nextClearBit(stop);
        }
      }
      at = end;
    }
    return c - 1;
  }

  private void addRun(IndexBlock block, int p, int c, int from, int to, int subpartition) {
    Chunk last = chunks.isEmpty() ? null : chunks.get(chunks.size() - 1);
    if (last == null || last.region != block.region[p]
        || last.block.chunkRow[last.number] != block.chunkRow[c]) {
      last = new Chunk(block, c, block.region[p], numRuns);
      chunks.add(last);
    }
    int before = RUN * (numRuns - 1);
    if (last.endRun > last.firstRun && runs[before + 1] == from
        && runs[before + 2] == subpartition) {
      runs[before + 1] = to;
      return;
    }
    if (runs.length < RUN * (numRuns + 1)) {
      runs = Arrays.copyOf(runs, 2 * runs.length);
    }
    runs[RUN * numRuns] = from;
    runs[RUN * numRuns + 1] = to;
    runs[RUN * numRuns + 2] = subpartition;
    last.endRun = ++numRuns;
  }
}
