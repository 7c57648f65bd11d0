import arrowshuffle.format.Bound;
import arrowshuffle.format.Column;
import arrowshuffle.format.CorruptShuffleException;
import java.math.BigInteger;
import java.util.Arrays;
import java.util.BitSet;
import java.util.List;
import org.apache.arrow.vector.types.FloatingPointPrecision;
import org.apache.arrow.vector.types.pojo.ArrowType;
import org.apache.arrow.vector.types.pojo.Field;

/** Values of a column of a version, as Arrow has them, to which others are added. */
final class Values {
  final Field field;
  final ArrowType type;
  final Values[] inside;
  private final int width;
  private int count;
  private int nulls;
  private final BitSet there = new BitSet();
  private byte[] data = new byte[64];
  private int size;
  private int[] ends = new int[16];

  Values(Field field) {
    this.field = field;
    type = field.getType();
    inside = field.getChildren().stream().map(Values::new).toArray(Values[] ::new);
    width = widthOf(type);
  }

  private static int widthOf(ArrowType type) {
    if (type instanceof ArrowType.Int of) {
      return of.getBitWidth() / 8;
    } else if (type instanceof ArrowType.Decimal of) {
      return of.getBitWidth() / 8;
    } else if (type instanceof ArrowType.FloatingPoint of) {
      return of.getPrecision() == FloatingPointPrecision.HALF  ? 2
          : of.getPrecision() == FloatingPointPrecision.SINGLE ? 4
                                                               : 8;
    } else if (type instanceof ArrowType.FixedSizeBinary of) {
      return of.getByteWidth();
    } else if (type instanceof ArrowType.Date of) {
      return of.getUnit().getFlatbufID() == 0 ? 4 : 8;
    } else if (type instanceof ArrowType.Time of) {
      return of.getBitWidth() / 8;
    } else if (type instanceof ArrowType.Interval) {
      return 16;
    }
    return type instanceof ArrowType.Timestamp || type instanceof ArrowType.Duration ? 8 : 0;
  }

  int count() {
    return count;
  }

  int nulls() {
    return type instanceof ArrowType.Null ? 0 : nulls;
  }

  boolean isNull(int i) {
    return !there.get(i);
  }

  private boolean isList() {
    return type instanceof ArrowType.List || type instanceof ArrowType.Map;
  }

  private boolean isText() {
    return type instanceof ArrowType.Utf8 || type instanceof ArrowType.Binary;
  }

  /** Adds a value of a column of a file; a column that the file lacks is null. */
  void add(Column from, int i) {
    if (from == null || from.isNull(i)) {
      addNull();
      return;
    }
    if (isList()) {
      Values items = type instanceof ArrowType.Map ? null : inside[0];
      for (int k = from.ends[i]; k < from.ends[i + 1]; k++) {
        if (items != null) {
          items.add(from.children[0], k);
        } else {
          inside[0].inside[0].add(from.children[0], k);
          inside[0].inside[1].add(from.children[1], k);
          inside[0].addThere();
        }
      }
    } else if (type instanceof ArrowType.FixedSizeList list) {
      for (int k = 0; k < list.getListSize(); k++) {
        inside[0].add(from.children[0], i * list.getListSize() + k);
      }
    } else if (type instanceof ArrowType.Struct) {
      for (int k = 0; k < inside.length; k++) {
        inside[k].add(from.children[k], i);
      }
    } else if (isText()) {
      append(from.bytes, from.values + from.ends[i], from.ends[i + 1] - from.ends[i]);
    } else if (from.width == Column.PLAIN && from.bytesEach == width && width > 0) {
      append(from.bytes, from.values + i * width, width);
    } else if (type instanceof ArrowType.FloatingPoint) {
      append(Double.doubleToRawLongBits(from.getDouble(i)));
    } else if (width > 8) {
      append(from.getBigInteger(i));
    } else {
      append(from.getLong(i));
    }
    addThere();
  }

  void addNumber(long number) {
    append(number);
    addThere();
  }

  private void addNull() {
    nulls++;
    if (type instanceof ArrowType.Struct || type instanceof ArrowType.FixedSizeList) {
      int times = type instanceof ArrowType.FixedSizeList list ? list.getListSize() : 1;
      for (Values of : inside) {
        for (int k = 0; k < times; k++) {
          of.addNull();
        }
      }
    } else if (!isList() && !isText()) {
      append(new byte[oneWidth()], 0, oneWidth());
    }
    end();
  }

  /** Adds a value of others of the same type. */
  void add(Values from, int i) {
    if (from.isNull(i)) {
      addNull();
      return;
    }
    int begin = i * oneWidth();
    int end = begin + oneWidth();
    if (isList() || isText()) {
      begin = from.ends[i];
      end = from.ends[i + 1];
    }
    if (type instanceof ArrowType.FixedSizeList list) {
      begin = i * list.getListSize();
      end = begin + list.getListSize();
    } else if (type instanceof ArrowType.Struct) {
      begin = i;
      end = i + 1;
    }
    for (int k = 0; k < inside.length; k++) {
      for (int at = begin; at < end; at++) {
        inside[k].add(from.inside[k], at);
      }
    }
    if (inside.length == 0) {
      append(from.data, begin, end - begin);
    }
    addThere();
  }

  /** Bytes of a value of no list and no text: of a boolean one. */
  private int oneWidth() {
    return type instanceof ArrowType.Bool ? 1 : width;
  }

  private void addThere() {
    there.set(count);
    end();
  }

  private void end() {
    count++;
    if (ends.length <= count) {
      ends = Arrays.copyOf(ends, 2 * ends.length);
    }
    ends[count] = isList() ? inside[0].count : size;
  }

  private void append(byte[] from, int at, int length) {
    if (data.length < size + length) {
      data = Arrays.copyOf(data, Math.max(2 * data.length, size + length));
    }
    System.arraycopy(from, at, data, size, length);
    size += length;
  }

  private void append(long number) {
    byte[] octets = new byte[oneWidth()];
    for (int k = 0; k < octets.length; k++) {
      octets[k] = (byte) (number >> 8 * k);
    }
    append(octets, 0, octets.length);
  }

  private void append(BigInteger number) {
    byte[] big = number.toByteArray();
    byte[] octets = new byte[width];
    Arrays.fill(octets, (byte) (number.signum() < 0 ? -1 : 0));
    for (int k = 0; k < big.length; k++) {
      octets[k] = big[big.length - 1 - k];
    }
    append(octets, 0, width);
  }

  // Order

  /** Compares two values, nulls inside of structs before all others. */
  int compare(int a, int b) {
    if (type instanceof ArrowType.Null) {
      return 0;
    } else if (type instanceof ArrowType.Struct) {
      for (Values of : inside) {
        boolean isNull = of.isNull(a);
        boolean isOther = of.isNull(b);
        int sign = isNull || isOther ? Boolean.compare(isOther, isNull) : of.compare(a, b);
        if (sign != 0) {
          return sign;
        }
      }
      return 0;
    } else if (isText()) {
      return Arrays.compareUnsigned(data, ends[a], ends[a + 1], data, ends[b], ends[b + 1]);
    }
    int w = oneWidth();
    if (type instanceof ArrowType.FixedSizeBinary) {
      return Arrays.compareUnsigned(data, a * w, a * w + w, data, b * w, b * w + w);
    } else if (type instanceof ArrowType.FloatingPoint of) {
      double x = toDouble(a) + 0.0; // -0.0 becomes 0.0
      double y = toDouble(b) + 0.0;
      return Double.compare(x, y);
    }
    return toNumber(a).compareTo(toNumber(b));
  }

  /** Refuses values from one on that are none of a bound; null is no bound. */
  void checkBound(Bound bound, int from, String where) throws CorruptShuffleException {
    for (int i = from; bound != null && i < count; i++) {
      boolean isIn = isNull(i) ? bound.nulls() > 0
                               : (bound.min() == null || compareTo(i, bound.min()) >= 0)
              && (bound.max() == null || compareTo(i, bound.max()) <= 0);
      if (!isIn) {
        throw new CorruptShuffleException(
            where + ", column " + field.getName() + ": a value outside of its bounds, " + bound);
      }
    }
  }

  private int compareTo(int i, Object bound) {
    if (bound instanceof byte[] of) {
      int from = isText() ? ends[i] : i * width;
      int to = isText() ? ends[i + 1] : from + width;
      return Arrays.compareUnsigned(data, from, to, of, 0, of.length);
    } else if (bound instanceof Boolean of) {
      return Boolean.compare(data[i] != 0, of);
    } else if (bound instanceof Double || bound instanceof Float) {
      return Double.compare(toDouble(i) + 0.0, ((Number) bound).doubleValue() + 0.0);
    }
    BigInteger number = bound instanceof BigInteger of ? of : BigInteger.valueOf((Long) bound);
    return toNumber(i).compareTo(number);
  }

  private double toDouble(int i) {
    long bits = toNumber(i).longValue();
    if (width == 2) {
      int exponent = (int) bits >> 10 & 0x1f;
      int fraction = (int) bits & 0x3ff;
      double of = exponent == 0 ? fraction * 0x1p-24
          : exponent < 31       ? Math.scalb(fraction + 1024.0, exponent - 25)
          : fraction == 0       ? Double.POSITIVE_INFINITY
                                : Double.NaN;
      return bits < 0 ? -of : of;
    }
    return width == 4 ? Float.intBitsToFloat((int) bits) : Double.longBitsToDouble(bits);
  }

  private BigInteger toNumber(int i) {
    int w = oneWidth();
    byte[] big = new byte[w];
    for (int k = 0; k < w; k++) {
      big[w - 1 - k] = data[i * w + k];
    }
    boolean isUnsigned = type instanceof ArrowType.Int of && !of.getIsSigned();
    return isUnsigned ? new BigInteger(1, big) : new BigInteger(big);
  }

  // Buffers

  /** Adds the buffers that Arrow has for the values, and for those inside. */
  void buffers(List<byte[]> to) {
    if (type instanceof ArrowType.Null) {
      return;
    }
    to.add(nulls == 0 ? new byte[0] : bits(there));
    if (isList() || isText()) {
      byte[] offsets = new byte[4 * (count + 1)];
      for (int i = 0; i <= count; i++) {
        for (int k = 0; k < 4; k++) {
          offsets[4 * i + k] = (byte) (ends[i] >> 8 * k);
        }
      }
      to.add(offsets);
    }
    if (type instanceof ArrowType.Bool) {
      BitSet values = new BitSet();
      for (int i = 0; i < count; i++) {
        values.set(i, data[i] != 0);
      }
      to.add(bits(values));
    } else if (isText() || width > 0 || type instanceof ArrowType.FixedSizeBinary) {
      to.add(Arrays.copyOf(data, size));
    }
    for (Values of : inside) {
      of.buffers(to);
    }
  }

  private byte[] bits(BitSet of) {
    return Arrays.copyOf(of.toByteArray(), (count + 7) / 8);
  }
}
