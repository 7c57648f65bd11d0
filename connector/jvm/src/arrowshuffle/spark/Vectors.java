package arrowshuffle.spark;

import arrowshuffle.format.Column;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;
import java.util.Arrays;
import org.apache.arrow.vector.types.FloatingPointPrecision;
import org.apache.arrow.vector.types.pojo.ArrowType;
import org.apache.spark.sql.execution.vectorized.WritableColumnVector;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.ByteType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.FloatType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.NullType;
import org.apache.spark.sql.types.ShortType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.VariantType;

/**
 * Copies values of stored columns into Spark's vectors, widened to the type of the version. One
 * thread.
 *
 * <p>Numbers are taken apart into an array first, since loops over one array are what the compiler
 * of the JVM vectorizes.
 */
final class Vectors {
  private static final VarHandle SHORTS = of(short[].class);
  private static final VarHandle INTS = of(int[].class);
  private static final VarHandle LONGS = of(long[].class);
  private static final VarHandle FLOATS = of(float[].class);
  private static final double[] POWERS_OF_TEN = {
      1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15};

  private long size;
  private long[] numbers = new long[0];
  private final byte[] bigEndian = new byte[16];

  private static VarHandle of(Class<?> array) {
    return MethodHandles.byteArrayViewVarHandle(array, ByteOrder.LITTLE_ENDIAN);
  }

  /** Returns about how many bytes of texts and of items of lists were copied so far. */
  long size() {
    return size;
  }

  /**
   * Copies rows {@code [from, to)} of a column to rows of a vector from {@code at} on.
   *
   * @param column null: all values are null
   * @param type the vector's, without user-defined types
   */
  void copy(Column column, int from, int to, WritableColumnVector into, int at, DataType type) {
    into.reserve(at + to - from); // what is inside of lists may be more than rows, at each depth
    if (column == null || type instanceof NullType) {
      into.putNulls(at, to - from);
      return;
    }
    copyNulls(column, from, to, into, at);
    if (type instanceof StringType || type instanceof BinaryType) {
      copyTexts(column, from, to, into, at);
    } else if (type instanceof ArrayType array) {
      WritableColumnVector items = into.arrayData();
      int begin = extended(items, column.ends[to] - column.ends[from]);
      putPlaces(column, from, to, into, at, begin);
      copy(column.children[0], column.ends[from], column.ends[to], items, begin,
          array.elementType());
    } else if (type instanceof MapType map) {
      int count = column.ends[to] - column.ends[from];
      int begin = extended(into.getChild(0), count);
      extended(into.getChild(1), count);
      putPlaces(column, from, to, into, at, begin);
      int first = column.ends[from];
      int last = column.ends[to];
      copy(column.children[0], first, last, into.getChild(0), begin, map.keyType());
      copy(column.children[1], first, last, into.getChild(1), begin, map.valueType());
    } else if (type instanceof StructType struct) {
      StructField[] fields = struct.fields();
      for (int i = 0; i < fields.length; i++) {
        copy(column.children[i], from, to, into.getChild(i), at, fields[i].dataType());
      }
    } else if (type instanceof VariantType) {
      for (int i = 0; i < 2; i++) { // its value, then its metadata
        copy(column.children[i], from, to, into.getChild(i), at, DataTypes.BinaryType);
      }
    } else if (column.children.length > 0) {
      copyShapes(column, from, to, into, at);
    } else {
      copyNumbers(column, from, to, into, at, type);
    }
  }

  /** Of GEOMETRY and GEOGRAPHY, which came with Spark 4.1: their SRID, then their WKB. */
  private static void copyShapes(
      Column column, int from, int to, WritableColumnVector into, int at) {
    Column srid = column.children[0];
    Column wkb = column.children[1];
    for (int row = from; row < to; row++) {
      int length = wkb.ends[row + 1] - wkb.ends[row];
      byte[] shape = new byte[4 + length];
      INTS.set(shape, 0, (int) srid.getLong(row));
      System.arraycopy(wkb.bytes, wkb.values + wkb.ends[row], shape, 4, length);
      into.putByteArray(at + row - from, shape, 0, shape.length);
    }
  }

  private static void copyNulls(
      Column column, int from, int to, WritableColumnVector into, int at) {
    if (column.validity < 0) {
      return;
    }
    byte[] bytes = column.bytes;
    int row = from;
    while (row < to) {
      int bits = bytes[column.validity + (row >> 3)];
      int end = Math.min(to, (row | 7) + 1);
      if (bits != -1) {
        for (int r = row; r < end; r++) {
          if ((bits >> (r & 7) & 1) == 0) {
            into.putNull(at + r - from);
          }
        }
      }
      row = end;
    }
  }

  private void copyTexts(Column column, int from, int to, WritableColumnVector into, int at) {
    int[] ends = column.ends;
    WritableColumnVector data = into.arrayData();
    int begin = data.getElementsAppended();
    int length = ends[to] - ends[from];
    data.appendBytes(length, column.bytes, column.values + ends[from]);
    size += length;
    putPlaces(column, from, to, into, at, begin);
  }

  private static void putPlaces(
      Column column, int from, int to, WritableColumnVector into, int at, int begin) {
    int[] ends = column.ends;
    int moved = begin - ends[from];
    for (int row = from; row < to; row++) {
      into.putArray(at + row - from, ends[row] + moved, ends[row + 1] - ends[row]);
    }
  }

  /** Says that items follow at the end of a vector, and returns where they begin. */
  private int extended(WritableColumnVector items, int count) {
    int begin = items.getElementsAppended();
    items.addElementsAppended(count);
    size += (long) Long.BYTES * count;
    return begin;
  }

  private void copyNumbers(
      Column column, int from, int to, WritableColumnVector into, int at, DataType type) {
    int count = to - from;
    if (type instanceof BooleanType) {
      for (int row = from; row < to; row++) {
        int bits = column.bytes[column.values + (row >> 3)];
        into.putBoolean(at + row - from, (bits >> (row & 7) & 1) != 0);
      }
    } else if (type instanceof DoubleType) {
      copyDoubles(column, from, to, into, at);
    } else if (type instanceof FloatType) {
      into.putFloatsLittleEndian(at, count, column.bytes, column.values + 4 * from);
    } else if (type instanceof DecimalType decimal) {
      copyDecimals(column, from, to, into, at, decimal.precision());
    } else if (type instanceof IntegerType || type instanceof DateType) {
      long[] found = numbers(column, from, to);
      for (int i = 0; i < count; i++) {
        into.putInt(at + i, (int) found[i]);
      }
    } else if (type instanceof ByteType) {
      long[] found = numbers(column, from, to);
      for (int i = 0; i < count; i++) {
        into.putByte(at + i, (byte) found[i]);
      }
    } else if (type instanceof ShortType) {
      long[] found = numbers(column, from, to);
      for (int i = 0; i < count; i++) {
        into.putShort(at + i, (short) found[i]);
      }
    } else { // BIGINT, times, and intervals of days
      into.putLongs(at, count, numbers(column, from, to), 0);
    }
  }

  private void copyDoubles(Column column, int from, int to, WritableColumnVector into, int at) {
    int count = to - from;
    if (column.width != Column.PLAIN) {
      long[] found = numbers(column, from, to);
      double power = POWERS_OF_TEN[column.digits];
      for (int i = 0; i < count; i++) {
        into.putDouble(at + i, found[i] / power);
      }
    } else if (((ArrowType.FloatingPoint) column.type).getPrecision()
        == FloatingPointPrecision.DOUBLE) {
      into.putDoublesLittleEndian(at, count, column.bytes, column.values + 8 * from);
    } else {
      for (int i = 0; i < count; i++) {
        into.putDouble(at + i, (float) FLOATS.get(column.bytes, column.values + 4 * (from + i)));
      }
    }
  }

  private void copyDecimals(
      Column column, int from, int to, WritableColumnVector into, int at, int precision) {
    int count = to - from;
    boolean isLarge = column.width == Column.PLAIN && bitWidth(column.type) == 128;
    if (precision > Decimal.MAX_LONG_DIGITS() && isLarge) {
      for (int i = 0; i < count; i++) {
        int last = column.values + 16 * (from + i) + 15;
        for (int b = 0; b < 16; b++) {
          bigEndian[b] = column.bytes[last - b];
        }
        into.putByteArray(at + i, bigEndian, 0, 16);
      }
      return;
    }
    long[] found = numbers(column, from, to);
    if (precision <= Decimal.MAX_INT_DIGITS()) {
      for (int i = 0; i < count; i++) {
        into.putInt(at + i, (int) found[i]);
      }
    } else if (precision <= Decimal.MAX_LONG_DIGITS()) {
      into.putLongs(at, count, found, 0);
    } else {
      for (int i = 0; i < count; i++) {
        for (int b = 0; b < 8; b++) {
          bigEndian[b] = (byte) (found[i] >> 56 - 8 * b);
        }
        into.putByteArray(at + i, bigEndian, 0, 8);
      }
    }
  }

  /** Returns an array that begins with the numbers of rows; it is taken again by the next call. */
  private long[] numbers(Column column, int from, int to) {
    int count = to - from;
    if (numbers.length < count) {
      numbers = new long[Math.max(count, 1024)];
    }
    long[] found = numbers;
    byte[] bytes = column.bytes;
    int bits = bitWidth(column.type);
    if (column.width == Column.PLAIN) {
      int size = bits / 8;
      int begin = column.values + size * from;
      for (int i = 0; i < count; i++) {
        int place = begin + size * i;
        found[i] = switch (size) {
          case 1 -> bytes[place];
          case 2 -> (short) SHORTS.get(bytes, place);
          case 4 -> (int) INTS.get(bytes, place);
          default -> (long) LONGS.get(bytes, place); // of 128 bits, those that fit: the low ones
        };
      }
      return found;
    }
    long base = column.base;
    int begin = column.values + column.width * from;
    switch (column.width) {
      case 1:
        for (int i = 0; i < count; i++) {
          found[i] = base + (bytes[begin + i] & 0xFF);
        }
        break;
      case 2:
        for (int i = 0; i < count; i++) {
          found[i] = base + ((short) SHORTS.get(bytes, begin + 2 * i) & 0xFFFF);
        }
        break;
      case 4:
        for (int i = 0; i < count; i++) {
          found[i] = base + ((int) INTS.get(bytes, begin + 4 * i) & 0xFFFFFFFFL);
        }
        break;
      default:
        for (int i = 0; i < count; i++) {
          found[i] = base + (long) LONGS.get(bytes, begin + 8 * i);
        }
    }
    if (bits < 64) { // a value is the low bits of the sum, and may become a wider one
      int high = 64 - bits;
      for (int i = 0; i < count; i++) {
        found[i] = found[i] << high >> high;
      }
    }
    return found;
  }

  private static int bitWidth(ArrowType type) {
    if (type instanceof ArrowType.Int number) {
      return number.getBitWidth();
    } else if (type instanceof ArrowType.Decimal decimal) {
      return decimal.getBitWidth();
    }
    return type instanceof ArrowType.Date ? 32 : 64;
  }
}
