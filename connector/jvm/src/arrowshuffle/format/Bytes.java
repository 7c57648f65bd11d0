package arrowshuffle.format;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;
import java.util.zip.CRC32;

/** Numbers in bytes, little-endian. */
final class Bytes {
  private static final VarHandle SHORT = view(short[].class);
  private static final VarHandle INT = view(int[].class);
  private static final VarHandle LONG = view(long[].class);

  private Bytes() {}

  private static VarHandle view(Class<?> type) {
    return MethodHandles.byteArrayViewVarHandle(type, ByteOrder.LITTLE_ENDIAN);
  }

  static short int16(byte[] bytes, int at) {
    return (short) SHORT.get(bytes, at);
  }

  static int int32(byte[] bytes, int at) {
    return (int) INT.get(bytes, at);
  }

  static long int64(byte[] bytes, int at) {
    return (long) LONG.get(bytes, at);
  }

  /** An unsigned number of 1, 2, 4 or 8 bytes, the last one modulo 2^64. */
  static long unsigned(byte[] bytes, int at, int width) {
    return switch (width) {
      case 1 -> bytes[at] & 0xff;
      case 2 -> int16(bytes, at) & 0xffff;
      case 4 -> int32(bytes, at) & 0xffffffffL;
      default -> int64(bytes, at);
    };
  }

  /** A signed number of 1, 2, 4 or 8 bytes. */
  static long signed(byte[] bytes, int at, int width) {
    return switch (width) {
      case 1 -> bytes[at];
      case 2 -> int16(bytes, at);
      case 4 -> int32(bytes, at);
      default -> int64(bytes, at);
    };
  }

  /** Whether a bit is 1, the least significant first. */
  static boolean bit(byte[] bytes, int at, int i) {
    return (bytes[at + (i >> 3)] >> (i & 7) & 1) != 0;
  }

  /** Up to a multiple of 8. */
  static long padded(long length) {
    return length + 7 & ~7L;
  }

  /** CRC-32 of some bytes. */
  static long crc32(byte[] bytes, int at, int length) {
    CRC32 sum = new CRC32();
    sum.update(bytes, at, length);
    return sum.getValue();
  }
}
