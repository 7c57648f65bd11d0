package arrowshuffle.format;

import static arrowshuffle.format.Checks.check;

import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import org.apache.arrow.vector.types.FloatingPointPrecision;
import org.apache.arrow.vector.types.pojo.ArrowType;

/** Bounds from the bytes that Arrow has for them, of the type that the file or the version has. */
final class BoundValues {
  private BoundValues() {}

  /** Bounds of a column of a version, in bytes of this type or a narrower one. */
  static Bound bound(byte[] min, byte[] max, long nulls, Layout wanted, Object where)
      throws CorruptShuffleException {
    return new Bound(min == null ? null : value(min, wanted, where),
        max == null ? null : value(max, wanted, where), nulls);
  }

  private static Object value(byte[] bytes, Layout wanted, Object where)
      throws CorruptShuffleException {
    ArrowType type = wanted.type;
    int length = bytes.length;
    if (wanted.kind == Layout.Kind.BOOLEAN) {
      refuseUnless(length == 1 && (bytes[0] & 0xff) <= 1, wanted, where);
      return bytes[0] != 0;
    } else if (wanted.kind == Layout.Kind.TEXT) {
      return bytes;
    }
    boolean isFull = length == wanted.width;
    if (type instanceof ArrowType.FixedSizeBinary) {
      refuseUnless(isFull, wanted, where);
      return bytes;
    }
    ByteBuffer buffer = ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN);
    if (type instanceof ArrowType.FloatingPoint of) {
      boolean isDouble = of.getPrecision() == FloatingPointPrecision.DOUBLE;
      refuseUnless(isFull || isDouble && length == 4, wanted, where);
      if (isDouble) {
        return length == 4 ? (double) buffer.getFloat() : buffer.getDouble();
      }
      return length == 4 ? buffer.getFloat() : Column.half(buffer.getShort());
    }
    boolean isDecimal = type instanceof ArrowType.Decimal;
    int least = isDecimal ? 4 : type instanceof ArrowType.Int ? 1 : wanted.width;
    refuseUnless(
        length >= least && length <= wanted.width && Integer.bitCount(length) == 1, wanted, where);
    byte[] octets = new byte[length];
    for (int i = 0; i < length; i++) {
      octets[i] = bytes[length - 1 - i];
    }
    BigInteger number = wanted.unsigned ? new BigInteger(1, octets) : new BigInteger(octets);
    boolean isLarge = isDecimal || wanted.unsigned&& wanted.width == 8;
    return isLarge ? number : (Object) number.longValueExact();
  }

  private static void refuseUnless(boolean holds, Layout wanted, Object where)
      throws CorruptShuffleException {
    check(holds, where, "a bound that is none of " + wanted.type);
  }
}
