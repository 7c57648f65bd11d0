package arrowshuffle.format;

import static arrowshuffle.format.Checks.check;
import static arrowshuffle.format.Checks.malformed;

import com.github.luben.zstd.Zstd;
import com.github.luben.zstd.ZstdDecompressCtx;
import com.github.luben.zstd.ZstdException;

/** zstd frames of log and index: each states what it becomes. */
final class ZstdFrames {
  private static final long MOST_BYTES = 64 << 20;
  private static final long MOST_RATIO = 1000;

  private ZstdFrames() {}

  /**
   * Whether some bytes end with the frame that they begin with. The oldest zstd-jni cannot tell.
   */
  private static boolean isOne(byte[] bytes, int at, int length) {
    int descriptor = bytes[at + 4];
    boolean isSingle = (descriptor & 1 << 5) != 0;
    int sizeFlag = descriptor >> 6 & 3;
    int sizeBytes = sizeFlag > 0 ? 1 << sizeFlag : isSingle ? 1 : 0;
    int dictionaryBytes = new int[] {0, 1, 2, 4}[descriptor & 3];
    int checksumBytes = descriptor & 1 << 2;
    long place = at + 5L + (isSingle ? 0 : 1) + dictionaryBytes + sizeBytes;
    long end = at + (long) length;
    boolean isLast = false;
    while (!isLast && place + 3 <= end) {
      int block = Bytes.int16(bytes, (int) place) & 0xffff | (bytes[(int) place + 2] & 0xff) << 16;
      boolean isRepeated = (block >> 1 & 3) == 1; // one byte, so many times
      place += 3 + (isRepeated ? 1 : block >> 3);
      isLast = (block & 1) != 0;
    }
    return isLast && place + checksumBytes == end;
  }

  /**
   * The content of exactly one frame.
   *
   * @throws CorruptShuffleException where it is none, states no size or too large a one
   */
  static byte[] content(byte[] bytes, int at, int length, Object where)
      throws CorruptShuffleException {
    long stated = Zstd.getFrameContentSize(bytes, at, length);
    check(stated > 0 && stated <= Math.max(MOST_BYTES, MOST_RATIO * length)
            && stated < Integer.MAX_VALUE - 8,
        where, length + " bytes that are no frame that states an honest size");
    check(isOne(bytes, at, length), where, "is not one frame");
    byte[] content = new byte[(int) stated];
    try (ZstdDecompressCtx zstd = new ZstdDecompressCtx()) {
      int size = zstd.decompressByteArray(content, 0, content.length, bytes, at, length);
      check(size == stated, where, "becomes " + size + " bytes, and states " + stated);
      return content;
    } catch (ZstdException error) {
      throw malformed(where, error);
    }
  }
}
