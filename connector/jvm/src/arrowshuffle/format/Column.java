package arrowshuffle.format;

import java.math.BigInteger;
import java.util.Arrays;
import org.apache.arrow.vector.types.pojo.ArrowType;

/**
 * Values of a column, or of what is inside of one: packed, or as Arrow has them. It was checked
 * when it was made: who reads values from {@link #bytes} as the fields say reads within them.
 */
public final class Column {
  /** The width of values as Arrow has them; of booleans a bitmap. */
  public static final int PLAIN = 255;

  private static final double[] POWERS_OF_10 = {
      1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15};

  /** As the file has it: values of a wider type of the version are widened by who reads them. */
  public final ArrowType type;

  /** How many values there are. */
  public final int count;

  /** What all positions are of. */
  public final byte[] bytes;

  /** Position of a bitmap, 1 for a value that is there; -1: all are, or the type is null. */
  public final int validity;

  /**
   * Bytes of each number at {@link #values}: 1, 2, 4 or 8, unsigned and little-endian; or {@link
   * #PLAIN}. Meaningless of types with {@link #ends} and nested ones.
   */
  public final int width;

  /** Position of the numbers or values; of the first byte of texts and binaries. */
  public final int values;

  /** What is added to each number, modulo 2^64; as many low bits count as the type has. */
  public final long base;

  /** Of doubles that are numbers: the value is the sum as a double, divided by 10^digits. */
  public final int digits;

  /**
   * Of texts, binaries, lists and maps: value i is from ends[i] to ends[i + 1], in bytes behind
   * {@link #values} or values of {@link #children}. Longer than needed; null of other types.
   */
  public final int[] ends;

  /** Of lists their items, of maps keys and values, of structs their fields; else empty. */
  public final Column[] children;

  /** Bytes of a value of a fixed width as Arrow has it; 0 of booleans and others. */
  public final int bytesEach;

  private final Layout layout;

  Column(Layout layout, int count, byte[] bytes, int validity, int width, int values, long base,
      int digits, int[] ends, Column... children) {
    this.layout = layout;
    this.type = layout.type;
    this.bytesEach = layout.kind == Layout.Kind.FIXED_LIST ? 0 : layout.width;
    this.count = count;
    this.bytes = bytes;
    this.validity = validity;
    this.width = width;
    this.values = values;
    this.base = base;
    this.digits = digits;
    this.ends = ends;
    this.children = children;
  }

  /** Whether a value is null. */
  public boolean isNull(int i) {
    return validity < 0 ? layout.kind == Layout.Kind.NULL : !Bytes.bit(bytes, validity, i);
  }

  /**
   * A boolean (0 or 1), integer, date, time, timestamp, duration, or decimal without its scale; of
   * what has more than 64 bits, which only {@link #PLAIN} decimals do, the low ones. Unsigned
   * integers of 64 bits are modulo 2^64.
   */
  public long getLong(int i) {
    if (width == PLAIN) {
      if (layout.kind == Layout.Kind.BOOLEAN) {
        return Bytes.bit(bytes, values, i) ? 1 : 0;
      }
      return cut(Bytes.signed(bytes, values + i * bytesEach, Math.min(bytesEach, 8)));
    }
    return cut(base + Bytes.unsigned(bytes, values + i * width, width));
  }

  /** The low bits that the type has, with their sign. */
  private long cut(long number) {
    boolean unsigned = layout.unsigned;
    return switch (bytesEach) {
      case 1 -> unsigned ? number & 0xff : (byte) number;
      case 2 -> unsigned ? number & 0xffff : (short) number;
      case 4 -> unsigned ? number & 0xffffffffL : (int) number;
      default -> number;
    };
  }

  /** A float of 16, 32 or 64 bits. */
  public double getDouble(int i) {
    if (width != PLAIN) {
      long number = base + Bytes.unsigned(bytes, values + i * width, width);
      return number / POWERS_OF_10[digits];
    }
    return switch (bytesEach) {
      case 2 -> half(Bytes.int16(bytes, values + 2 * i));
      case 4 -> Float.intBitsToFloat(Bytes.int32(bytes, values + 4 * i));
      default -> Double.longBitsToDouble(Bytes.int64(bytes, values + 8 * i));
    };
  }

  /** A float of 16 bits. */
  static float half(short bits) {
    int exponent = bits >> 10 & 0x1f;
    int fraction = bits & 0x3ff;
    float size = exponent == 0 ? fraction * 0x1p-24f
        : exponent < 0x1f      ? (fraction + 0x400) * (float) Math.scalb(1.0, exponent - 25)
                               : Float.intBitsToFloat(0x7f800000 | fraction << 13);
    return bits < 0 ? -size : size;
  }

  /** A decimal of any size without its scale, or an integer, unsigned ones of 64 bits too. */
  public BigInteger getBigInteger(int i) {
    if (width == PLAIN && bytesEach > 8) {
      byte[] octets = new byte[bytesEach];
      for (int k = 0; k < bytesEach; k++) {
        octets[k] = bytes[values + (i + 1) * bytesEach - 1 - k];
      }
      return new BigInteger(octets);
    }
    BigInteger value = BigInteger.valueOf(getLong(i));
    boolean isNegative = value.signum() < 0 && layout.unsigned;
    return isNegative ? value.add(BigInteger.ONE.shiftLeft(64)) : value;
  }

  /** A text or binary, or the bytes that Arrow has of a {@link #PLAIN} value; of a boolean one. */
  public byte[] getBytes(int i) {
    if (layout.kind == Layout.Kind.BOOLEAN) {
      return new byte[] {(byte) getLong(i)};
    }
    int from = ends == null ? i * bytesEach : ends[i];
    int to = ends == null ? from + bytesEach : ends[i + 1];
    return Arrays.copyOfRange(bytes, values + from, values + to);
  }
}
