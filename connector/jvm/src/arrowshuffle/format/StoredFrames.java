package arrowshuffle.format;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;

/** The frames of a chunk that have wanted columns, as they are stored. */
final class StoredFrames {
  private static final int MOST_BYTES = Integer.MAX_VALUE - 8;

  final Selection.Chunk chunk;

  /** Where they are: those that lie one behind the other in one range. */
  final List<Range> ranges = new ArrayList<>();

  /** The range of each frame of the chunk; null: it is not wanted. */
  private final Range[] rangeOf;

  /** Where it begins in that. */
  private final int[] at;

  /** Bytes of a data file. */
  static final class Range {
    final long offset;
    int length;
    byte[] bytes;

    Range(long offset) {
      this.offset = offset;
    }
  }

  /** Those of a chunk with some of its columns, by their positions; -1 is none. */
  StoredFrames(Selection.Chunk chunk, int[] columns) throws IOException {
    this.chunk = chunk;
    IndexBlock block = chunk.block;
    int c = chunk.number;
    int numFrames = block.frames[c + 1] - block.frames[c];
    rangeOf = new Range[numFrames];
    at = new int[numFrames];
    boolean[] isWanted = new boolean[numFrames];
    for (int column : columns) {
      if (column >= 0) {
        isWanted[block.columnFrame(c, column)] = true;
      }
    }
    long place = block.chunkOffset[c];
    Range range = null;
    for (int k = 0; k < numFrames; k++) {
      long length = block.frameLength(block.frames[c] + k);
      range = isWanted[k] && range == null ? new Range(place) : isWanted[k] ? range : null;
      if (range != null) {
        if (range.length == 0) {
          ranges.add(range);
        }
        if (range.length + length > MOST_BYTES) {
          throw tooLarge(chunk);
        }
        rangeOf[k] = range;
        at[k] = range.length;
        range.length += (int) length;
      }
      place += length;
    }
  }

  /** The error of a chunk, of one row, that fits into no array. */
  static IOException tooLarge(Selection.Chunk chunk) {
    return new IOException(chunk.block.where + ", " + chunk
        + ": a row of more than 2 GiB, which this reader cannot hold; read it with Python");
  }

  /** Bytes of all ranges. */
  long numBytes() {
    return ranges.stream().mapToLong(range -> range.length).sum();
  }

  /** Whether a frame of the chunk is wanted. */
  boolean has(int frame) {
    return rangeOf[frame] != null;
  }

  /** What has the bytes of a frame, once they were read. */
  byte[] bytes(int frame) {
    return rangeOf[frame].bytes;
  }

  /** Where a frame begins in these. */
  int at(int frame) {
    return at[frame];
  }

  /** How long it is. */
  int length(int frame) {
    return (int) chunk.block.frameLength(chunk.block.frames[chunk.number] + frame);
  }

  /** CRC that it must have. */
  long crc32(int frame) {
    return chunk.block.frameCrc32(chunk.block.frames[chunk.number] + frame);
  }
}
