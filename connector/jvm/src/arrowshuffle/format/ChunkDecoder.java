package arrowshuffle.format;

import static arrowshuffle.format.Checks.check;
import static arrowshuffle.format.Checks.malformed;

import com.github.luben.zstd.ZstdDecompressCtx;
import com.github.luben.zstd.ZstdException;
import java.io.IOException;
import java.util.Arrays;
import java.util.zip.CRC32;

/** Decodes wanted columns of one chunk after the other into the same memory. */
final class ChunkDecoder implements AutoCloseable {
  /** Memory is made for so much at least, as chunks grow. */
  private static final int USUAL_BYTES = 8 << 20;

  private final IndexFile index;

  /** Position of each wanted column among those of the file; -1: the file lacks it. */
  private final int[] wanted;

  private final ZstdDecompressCtx zstd = new ZstdDecompressCtx();
  private final CRC32 sum = new CRC32();
  private final Ends ends = new Ends();
  private byte[] content = new byte[0];

  private StoredFrames frames;

  /** Where each column of the chunk begins in the content, if its frame is wanted. */
  private final int[] columnAt;

  /** Where each frame begins, and its length; and whether it was opened. */
  private int[] frameAt = new int[0];

  private long[] frameBytes = new long[0];
  private boolean[] isOpen = new boolean[0];

  private final Column[] columns;

  /** Of a file, of whose columns those at some positions are wanted. */
  ChunkDecoder(IndexFile index, int[] wanted) {
    this.index = index;
    this.wanted = wanted;
    columnAt = new int[index.columns.layouts.length];
    columns = new Column[index.columns.layouts.length];
  }

  /** What is to be fetched of a chunk. */
  StoredFrames wanted(Selection.Chunk chunk) throws IOException {
    return new StoredFrames(chunk, wanted);
  }

  /** Goes on to a chunk, of which what is wanted was fetched. */
  void begin(StoredFrames next) throws IOException {
    frames = next;
    ends.reset();
    Arrays.fill(columns, null);
    IndexBlock block = next.chunk.block;
    int c = next.chunk.number;
    if (block.isMessage[c]) {
      return;
    }
    int numFrames = block.frames[c + 1] - block.frames[c];
    if (isOpen.length < numFrames) {
      frameAt = new int[numFrames];
      frameBytes = new long[numFrames];
      isOpen = new boolean[numFrames];
    }
    Arrays.fill(isOpen, false);
    Arrays.fill(frameBytes, 0);
    for (int m = 0; m < columnAt.length; m++) {
      frameBytes[block.columnFrame(c, m)] += block.rawLength(c, m);
    }
    long size = 0;
    for (int k = 0; k < numFrames; k++) {
      frameAt[k] = (int) size;
      size += frames.has(k) ? frameBytes[k] : 0;
      if (size > Integer.MAX_VALUE - 8) {
        throw StoredFrames.tooLarge(next.chunk);
      }
    }
    int[] at = frameAt.clone();
    for (int m = 0; m < columnAt.length; m++) {
      int k = block.columnFrame(c, m);
      columnAt[m] = at[k];
      at[k] += frames.has(k) ? (int) block.rawLength(c, m) : 0;
    }
    if (content.length < size) {
      content = new byte[(int) Math.max(size, Math.min(2L * content.length, USUAL_BYTES))];
    }
  }

  /** A wanted column of a chunk, by its position among these; null: the file lacks it. */
  Column column(StoredFrames of, int i) throws CorruptShuffleException {
    if (of != frames) {
      throw new IllegalStateException("the next chunk was asked for");
    }
    int m = wanted[i];
    if (m < 0) {
      return null;
    }
    if (columns[m] == null) {
      IndexBlock block = frames.chunk.block;
      int c = frames.chunk.number;
      if (block.isMessage[c]) {
        decodeMessage(block.chunkRows[c]);
      } else {
        int k = block.columnFrame(c, m);
        Place place = new Place(m);
        open(k, place);
        columns[m] = PackedColumn.of(content, columnAt[m], (int) block.rawLength(c, m),
            index.columns.layouts[m], block.chunkRows[c], ends, place);
      }
    }
    return columns[m];
  }

  /** Of a column, for messages. */
  private final class Place {
    private final int column;

    Place(int column) {
      this.column = column;
    }

    @Override
    public String toString() {
      return where() + ", column " + index.columns.fields.get(column).getName();
    }
  }

  private String where() {
    return where(frames.chunk);
  }

  /** File, region and place of a chunk, for messages. */
  String where(Selection.Chunk chunk) {
    return index.nameOf(index.dataPath) + ", " + chunk;
  }

  private void decodeMessage(int rows) throws CorruptShuffleException {
    checkSum(0, where());
    byte[] bytes = frames.bytes(0);
    Column[] found = ArrowMessage.columns(
        bytes, frames.at(0), frames.length(0), index.columns.layouts, ends, where());
    check(found[0].count == rows, where(),
        "a message of " + found[0].count + " rows, expected " + rows);
    System.arraycopy(found, 0, columns, 0, found.length);
  }

  /** Decompresses a frame, unless it was. */
  private void open(int frame, Object place) throws CorruptShuffleException {
    if (isOpen[frame]) {
      return;
    }
    checkSum(frame, place);
    int size = (int) frameBytes[frame];
    try {
      int found = zstd.decompressByteArray(content, frameAt[frame], size, frames.bytes(frame),
          frames.at(frame), frames.length(frame));
      if (found != size) {
        throw Checks.damage(place, "a frame of " + found + " bytes, expected " + size);
      }
    } catch (ZstdException error) {
      throw malformed(place, error);
    }
    isOpen[frame] = true;
  }

  private void checkSum(int frame, Object place) throws CorruptShuffleException {
    sum.reset();
    sum.update(frames.bytes(frame), frames.at(frame), frames.length(frame));
    check(sum.getValue() == frames.crc32(frame), place, "a frame that does not match its checksum");
  }

  @Override
  public void close() {
    zstd.close();
  }
}
