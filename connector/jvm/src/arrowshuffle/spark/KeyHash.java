package arrowshuffle.spark;

import java.util.Arrays;
import java.util.List;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.ByteType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.DayTimeIntervalType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.FloatType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.ShortType;
import org.apache.spark.sql.types.TimestampNTZType;
import org.apache.spark.sql.types.TimestampType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.hash.Murmur3_x86_32;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Where a partitioner of kind {@code hash} places rows: {@code docs/format/hash.md}, which is
 * Spark's own hash.
 *
 * <p>Of flat keys alone: lists and structs can be keys, too, but no planner joins by them.
 */
final class KeyHash {
  private KeyHash() {}

  /** Whether keys of a type are hashed here: a flat one, of a text only without a collation. */
  static boolean takes(DataType type) {
    return type instanceof BooleanType || isInt(type) || isLong(type) || type instanceof FloatType
        || type instanceof DoubleType || type instanceof DecimalType || type instanceof BinaryType
        || type.equals(DataTypes.StringType);
  }

  private static boolean isInt(DataType type) {
    return type instanceof ByteType || type instanceof ShortType || type instanceof IntegerType
        || type instanceof DateType;
  }

  private static boolean isLong(DataType type) {
    // TIME came with Spark 4.1, so it is known by name here.
    return type instanceof LongType || type instanceof TimestampType
        || type instanceof TimestampNTZType || type instanceof DayTimeIntervalType
        || type.typeName().startsWith("time(");
  }

  /** Folds a value, as Spark has it inside, into the hash so far; null leaves it. */
  static int fold(Object value, DataType type, int hash) {
    if (value == null) {
      return hash;
    }
    if (value instanceof Boolean bool) {
      return Murmur3_x86_32.hashInt(bool ? 1 : 0, hash);
    }
    if (value instanceof Long number) {
      return Murmur3_x86_32.hashLong(number, hash);
    }
    if (value instanceof Float number) {
      return Murmur3_x86_32.hashInt(bits(number), hash);
    }
    if (value instanceof Double number) {
      return Murmur3_x86_32.hashLong(bits(number), hash);
    }
    if (value instanceof Number number) {
      return Murmur3_x86_32.hashInt(number.intValue(), hash);
    }
    if (value instanceof Decimal decimal) {
      if (((DecimalType) type).precision() <= Decimal.MAX_LONG_DIGITS()) {
        return Murmur3_x86_32.hashLong(decimal.toUnscaledLong(), hash);
      }
      return bytes(decimal.toJavaBigDecimal().unscaledValue().toByteArray(), hash);
    }
    if (value instanceof UTF8String text) {
      return Murmur3_x86_32.hashUnsafeBytes(
          text.getBaseObject(), text.getBaseOffset(), text.numBytes(), hash);
    }
    return bytes((byte[]) value, hash);
  }

  private static int bytes(byte[] value, int hash) {
    return Murmur3_x86_32.hashUnsafeBytes(value, Platform.BYTE_ARRAY_OFFSET, value.length, hash);
  }

  private static int bits(float number) {
    return Float.floatToIntBits(number == 0f ? 0f : number);
  }

  private static long bits(double number) {
    return Double.doubleToLongBits(number == 0.0 ? 0.0 : number);
  }

  /** Sets {@code hashes} of rows {@code [from, to)} to those of the key columns. */
  static void ofRows(
      List<ColumnVector> keys, List<DataType> types, int seed, int from, int to, int[] hashes) {
    Arrays.fill(hashes, from, to, seed);
    for (int k = 0; k < keys.size(); k++) {
      fold(keys.get(k), types.get(k), from, to, hashes);
    }
  }

  private static void fold(ColumnVector key, DataType type, int from, int to, int[] hashes) {
    if ((type instanceof LongType || type instanceof TimestampType) && !key.hasNull()) {
      for (int row = from; row < to; row++) {
        hashes[row] = Murmur3_x86_32.hashLong(key.getLong(row), hashes[row]);
      }
    } else if (type instanceof LongType || type instanceof TimestampType) {
      for (int row = from; row < to; row++) {
        if (!key.isNullAt(row)) {
          hashes[row] = Murmur3_x86_32.hashLong(key.getLong(row), hashes[row]);
        }
      }
    } else if (type instanceof IntegerType || type instanceof DateType) {
      for (int row = from; row < to; row++) {
        if (!key.isNullAt(row)) {
          hashes[row] = Murmur3_x86_32.hashInt(key.getInt(row), hashes[row]);
        }
      }
    } else {
      for (int row = from; row < to; row++) {
        if (!key.isNullAt(row)) {
          hashes[row] = fold(value(key, type, row), type, hashes[row]);
        }
      }
    }
  }

  private static Object value(ColumnVector key, DataType type, int row) {
    if (type instanceof BooleanType) {
      return key.getBoolean(row);
    } else if (type instanceof ByteType) {
      return key.getByte(row);
    } else if (type instanceof ShortType) {
      return key.getShort(row);
    } else if (isLong(type)) {
      return key.getLong(row);
    } else if (type instanceof FloatType) {
      return key.getFloat(row);
    } else if (type instanceof DoubleType) {
      return key.getDouble(row);
    } else if (type instanceof DecimalType decimal) {
      return key.getDecimal(row, decimal.precision(), decimal.scale());
    } else if (type instanceof BinaryType) {
      return key.getBinary(row);
    }
    return key.getUTF8String(row);
  }
}
