package arrowshuffle.format;

import static arrowshuffle.format.Checks.check;
import static arrowshuffle.format.Checks.damage;
import static arrowshuffle.format.Checks.newer;

import java.io.IOException;
import org.apache.arrow.vector.types.pojo.ArrowType;

/**
 * A block of an index: parts of regions, where their subpartitions are, and the chunks that have
 * them. Lists and chunks of all parts are in one array each.
 */
final class IndexBlock {
  private static final int LARGE = 256;
  private static final int ALIGNMENT = 8;
  private static final long MOST_CHUNK_ROWS = 1 << 25;
  private static final long MOST_CHUNK_BYTES = 8 << 20;
  private static final long MOST_RATIO = 32_768;
  private static final long MOST_REGION_ROWS = 1L << 31;

  private static final Layout UINT8 = Layout.of(new ArrowType.Int(8, false));
  private static final Layout INT32 = Layout.of(new ArrowType.Int(32, true));
  private static final Layout UINT32 = Layout.of(new ArrowType.Int(32, false));
  private static final Layout INT64 = Layout.of(Layout.INT64);
  private static final Layout[] COLUMNS = {INT32, UINT8, INT64, INT64, INT64, Layout.listOf(UINT8),
      Layout.listOf(UINT8), Layout.listOf(UINT32), Layout.listOf(INT64), Layout.listOf(INT64),
      Layout.listOf(UINT8), Layout.listOf(INT32), Layout.listOf(INT32), Layout.listOf(INT64),
      Layout.listOf(INT64), Layout.listOf(UINT32)};

  /** For messages. */
  final String where;

  private final PartitionedFile file;
  private final int numColumns;

  final int numParts;
  final int[] region;
  final boolean[] isBroadcast;

  /** Row of the region at which a part begins. */
  final long[] firstRow;

  final long[] numRows;

  /** Part p lists subpartitions from listed[p] to listed[p + 1], and has chunks likewise. */
  final int[] listed;

  final int[] subpartition;
  final int[] subpartitionRows;
  final int[] chunks;

  final int numChunks;

  /** Row of the region at which a chunk begins. */
  final long[] chunkRow;

  final int[] chunkRows;
  final long[] chunkOffset;
  final long[] chunkEnd;
  final boolean[] isMessage;

  /** Chunk c has frames from frames[c] to frames[c + 1]. */
  final int[] frames;

  private final Column frameLength;
  private final Column frameCrc32;
  private final Column columnFrame;
  private final Column columnRaw;
  private final int firstFrame;
  private final int firstColumn;

  /** Minimum, maximum and nulls of each column with statistics, by chunk; null where not read. */
  Column[] bounds;

  /** Decodes a block, whose CRC was checked. */
  IndexBlock(byte[] frame, IndexFile.Place place, PartitionedFile file, int n, int numColumns,
      String where) throws IOException {
    this.where = where;
    this.file = file;
    this.numColumns = numColumns;
    Column[] of = ArrowMessage.inFrame(frame, COLUMNS, where);
    numParts = of[0].count;
    region = new int[numParts];
    isBroadcast = new boolean[numParts];
    firstRow = new long[numParts];
    numRows = new long[numParts];
    listed = from0(of[6]);
    subpartition = new int[listed[numParts]];
    subpartitionRows = new int[listed[numParts]];
    chunks = from0(of[8]);
    numChunks = chunks[numParts];
    chunkRow = new long[numChunks];
    chunkRows = new int[numChunks];
    chunkOffset = new long[numChunks];
    chunkEnd = new long[numChunks];
    isMessage = new boolean[numChunks];
    frames = new int[numChunks + 1];
    frameLength = of[14].children[0];
    frameCrc32 = of[15].children[0];
    columnFrame = of[12].children[0];
    columnRaw = of[13].children[0];
    firstFrame = of[14].ends[0];
    firstColumn = of[12].ends[0];
    check(firstFrame == of[15].ends[0] && firstColumn == of[13].ends[0], where, "its lists differ");
    for (int p = 0; p < numParts; p++) {
      region[p] = (int) of[0].getLong(p);
      firstRow[p] = of[2].getLong(p);
      numRows[p] = of[3].getLong(p);
      check(region[p] >= 0 && firstRow[p] >= 0 && numRows[p] >= 1 && numRows[p] < MOST_REGION_ROWS
              && firstRow[p] < MOST_REGION_ROWS,
          where, "a part of " + numRows[p] + " rows at " + firstRow[p] + " of region " + region[p]);
      check(p == 0 || region[p] > region[p - 1]
              || region[p] == region[p - 1] && firstRow[p] > firstRow[p - 1],
          where, "its parts do not ascend");
      long kind = of[1].getLong(p);
      if (kind > 1) {
        throw newer(where, "region " + region[p] + " of kind " + kind);
      }
      isBroadcast[p] = kind == 1;
      subpartitions(of, p, place, n);
      chunks(of, p);
    }
  }

  /** Where the list of each part begins among all items. */
  private static int[] from0(Column list) {
    int[] found = new int[list.count + 1];
    for (int i = 0; i < found.length; i++) {
      found[i] = list.ends[i] - list.ends[0];
    }
    return found;
  }

  private static int length(Column list, int p) {
    return list.ends[p + 1] - list.ends[p];
  }

  private String part(int p) {
    return where + ", part at row " + firstRow[p] + " of region " + region[p];
  }

  private void subpartitions(Column[] of, int p, IndexFile.Place place, int n)
      throws CorruptShuffleException {
    Column gaps = of[5].children[0];
    Column rows = of[6].children[0];
    Column large = of[7].children[0];
    int count = length(of[6], p);
    check(length(of[5], p) == count, part(p), "lists of subpartitions and rows that differ");
    int next = of[7].ends[p];
    int end = of[7].ends[p + 1];
    if (isBroadcast[p]) {
      check(count == 0 && next == end, part(p), "subpartitions of broadcast rows");
      check(place.first() == 0 && place.end() == n && file.numSubpartitions() == n
              && file.first() == 0 && file.end() >= n,
          part(p), "broadcast rows of some subpartitions");
      return;
    }
    check(count > 0, part(p), "rows of no subpartition");
    int at = of[5].ends[p];
    int to = listed[p];
    long last = place.first() - 1;
    for (int i = 0; i < count; i++) {
      long gap = gaps.getLong(at + i);
      last += gap == 0 ? large(large, next++, end, p) : gap;
      if (last >= place.end()) {
        throw damage(part(p), "subpartition " + last + ", behind its range");
      }
      subpartition[to + i] = (int) last;
    }
    check(subpartition[to] >= file.first() && last < file.end(), part(p),
        "rows of subpartitions " + subpartition[to] + " to " + last
            + ", outside of those of the log");
    at = of[6].ends[p];
    long sum = 0;
    for (int i = 0; i < count; i++) {
      long each = rows.getLong(at + i);
      each = each == 0 ? large(large, next++, end, p) : each;
      sum += each;
      subpartitionRows[to + i] = (int) each;
    }
    check(sum == numRows[p] && next == end, part(p),
        sum + " rows of subpartitions, expected " + numRows[p] + ", or a large number of nothing");
  }

  private long large(Column numbers, int at, int end, int p) throws CorruptShuffleException {
    check(at < end, part(p), "fewer large numbers than it needs");
    long number = numbers.getLong(at);
    if (number < LARGE) {
      throw damage(part(p), number + " is no large number");
    }
    return number;
  }

  private void chunks(Column[] of, int p) throws IOException {
    String name = part(p);
    int count = length(of[8], p);
    long rowsBefore = of[4].getLong(p);
    check(count > 0 && length(of[9], p) == count && length(of[10], p) == count
            && length(of[11], p) == count,
        name, "lists of chunks that differ");
    check(length(of[12], p) == (long) count * numColumns
            && length(of[13], p) == (long) count * numColumns,
        name, "lists of columns that differ");
    int frame = of[14].ends[p] - firstFrame;
    int frameEnd = of[14].ends[p + 1] - firstFrame;
    check(of[15].ends[p] - firstFrame == frame && of[15].ends[p + 1] - firstFrame == frameEnd, name,
        "lists of frames that differ");
    long row = firstRow[p] - rowsBefore;
    long end = 0;
    for (int i = 0; i < count; i++) {
      int c = chunks[p] + i;
      long rows = of[8].children[0].getLong(of[8].ends[p] + i);
      long gap = of[9].children[0].getLong(of[9].ends[p] + i);
      long encoding = of[10].children[0].getLong(of[10].ends[p] + i);
      long numFrames = of[11].children[0].getLong(of[11].ends[p] + i);
      if (encoding > 1) {
        throw newer(name, "a chunk of encoding " + encoding);
      }
      isMessage[c] = encoding == 0;
      check(rows >= 1 && rows <= MOST_CHUNK_ROWS, name, "a chunk of " + rows + " rows");
      check(gap >= 0 && gap <= file.dataBytes(), name, "a chunk " + gap + " bytes behind another");
      check(numFrames >= 1 && numFrames <= frameEnd - frame, name,
          "a chunk of " + numFrames + " frames");
      chunkRow[c] = row;
      chunkRows[c] = (int) rows;
      chunkOffset[c] = end + gap;
      frames[c] = frame;
      long stored = 0;
      for (int k = 0; k < numFrames; k++, frame++) {
        long length = frameLength(frame);
        stored += length;
        if (length < 1 || length > file.dataBytes() || stored > file.dataBytes()) {
          throw damage(name, "a frame of " + length + " bytes");
        }
      }
      frames[c + 1] = frame;
      end = chunkEnd[c] = chunkOffset[c] + stored;
      check(
          chunkOffset[c] % ALIGNMENT == 0 && chunkOffset[c] >= ALIGNMENT && end <= file.dataBytes(),
          name, "a chunk at byte " + chunkOffset[c] + " of the data file");
      checkColumns(c, (int) numFrames, stored, name);
      row += rows;
    }
    long behind = row - firstRow[p] - numRows[p];
    check(rowsBefore >= 0 && rowsBefore < chunkRows[chunks[p]] && chunkRow[chunks[p]] >= 0
            && behind >= 0 && behind < chunkRows[chunks[p + 1] - 1] && row < MOST_REGION_ROWS,
        name, "rows of chunks that are none of its own");
    check(frame == frameEnd, name, "more frames than its chunks have");
  }

  private void checkColumns(int c, int numFrames, long stored, String name)
      throws CorruptShuffleException {
    boolean[] named = new boolean[numFrames];
    int numNamed = 0;
    long raw = 0;
    for (int m = 0; m < numColumns; m++) {
      long frame = columnFrame.getLong(firstColumn + c * numColumns + m);
      long length = rawLength(c, m);
      boolean isThere = frame >= 0 && frame < numFrames && length >= 0 && length < 1L << 40;
      if (!isThere || isMessage[c] && (numFrames != 1 || length != 0)) {
        throw damage(
            name, "column " + m + " of a chunk in frame " + frame + ", of " + length + " bytes");
      }
      if (!named[(int) frame]) {
        named[(int) frame] = true;
        numNamed++;
      }
      raw += length;
    }
    check(numNamed == numFrames, name, "a frame without columns");
    raw = isMessage[c] ? stored : raw;
    check(chunkRows[c] == 1 || raw <= MOST_CHUNK_BYTES, name, "a chunk of " + raw + " raw bytes");
    check(isMessage[c] || (raw + MOST_RATIO - 1) / MOST_RATIO <= stored, name,
        "a chunk of " + raw + " raw bytes in " + stored);
  }

  /** Bytes of a frame in the data file. */
  long frameLength(int frame) {
    return frameLength.getLong(firstFrame + frame);
  }

  /** CRC of these. */
  long frameCrc32(int frame) {
    return frameCrc32.getLong(firstFrame + frame);
  }

  /** The frame of a column of a chunk, counted within the chunk. */
  int columnFrame(int c, int column) {
    return (int) columnFrame.getLong(firstColumn + c * numColumns + column);
  }

  /** Bytes of a packed column of a chunk. */
  long rawLength(int c, int column) {
    return columnRaw.getLong(firstColumn + c * numColumns + column);
  }

  /** Whether chunk c is chunk d of another block, both at the border of the two. */
  boolean isAlike(int c, IndexBlock other, int d) {
    int numFrames = frames[c + 1] - frames[c];
    boolean alike = chunkRow[c] == other.chunkRow[d] && chunkRows[c] == other.chunkRows[d]
        && chunkOffset[c] == other.chunkOffset[d] && isMessage[c] == other.isMessage[d]
        && numFrames == other.frames[d + 1] - other.frames[d];
    for (int k = 0; alike && k < numFrames; k++) {
      int mine = frames[c] + k;
      int its = other.frames[d] + k;
      alike =
          frameLength(mine) == other.frameLength(its) && frameCrc32(mine) == other.frameCrc32(its);
    }
    for (int m = 0; alike && m < numColumns; m++) {
      alike =
          columnFrame(c, m) == other.columnFrame(d, m) && rawLength(c, m) == other.rawLength(d, m);
    }
    return alike;
  }
}
