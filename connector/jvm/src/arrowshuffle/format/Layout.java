package arrowshuffle.format;

import java.util.Arrays;
import java.util.List;
import org.apache.arrow.vector.types.DateUnit;
import org.apache.arrow.vector.types.FloatingPointPrecision;
import org.apache.arrow.vector.types.IntervalUnit;
import org.apache.arrow.vector.types.pojo.ArrowType;
import org.apache.arrow.vector.types.pojo.Field;

/** How values of a type are stored, and what is inside of them: of a column, and below it. */
final class Layout {
  /** Types that are stored alike. */
  enum Kind {
    NULL,
    BOOLEAN,
    /** Integers, dates, times, timestamps, durations, decimals of up to 128 bits. */
    NUMBER,
    /** Floats of 64 bits. */
    DOUBLE,
    /** Other floats, fixed-size binary, decimals of 256 bits, intervals. */
    FIXED,
    /** Text and binary. */
    TEXT,
    LIST,
    MAP,
    STRUCT,
    FIXED_LIST
  }

  static final ArrowType INT64 = new ArrowType.Int(64, true);
  static final ArrowType TEXT = new ArrowType.Utf8();
  static final ArrowType BINARY = new ArrowType.Binary();

  final Kind kind;
  final ArrowType type;

  /**
   * Bytes of a value as Arrow has it, of kinds NUMBER, DOUBLE and FIXED; values of a list of a
   * fixed size.
   */
  final int width;

  /** Whether they are unsigned integers. */
  final boolean unsigned;

  /** Whether values may be null. */
  final boolean nullable;

  /** Items of a list, keys and values of a map, fields of a struct. */
  final Layout[] inside;

  /** It, and all inside: as many as its ids. */
  final int nodes;

  private Layout(Kind kind, ArrowType type, int width, boolean nullable, Layout... inside) {
    this.kind = kind;
    this.type = type;
    this.width = width;
    this.unsigned = type instanceof ArrowType.Int of && !of.getIsSigned();
    this.nullable = nullable;
    this.inside = inside;
    this.nodes = 1 + Arrays.stream(inside).mapToInt(of -> of.nodes).sum();
  }

  // Of sections of the log and of an index, in which nothing is null if it is not said.

  static Layout of(ArrowType type) {
    return flat(type, false);
  }

  static Layout nullable(ArrowType type) {
    return flat(type, true);
  }

  static Layout listOf(Layout item) {
    return new Layout(Kind.LIST, new ArrowType.List(), 0, false, item);
  }

  static Layout structOf(Layout... fields) {
    return new Layout(Kind.STRUCT, new ArrowType.Struct(), 0, false, fields);
  }

  /** Whether chunks may have bounds of a column of this type. */
  boolean hasBounds() {
    return inside.length == 0 && kind != Kind.NULL && !(type instanceof ArrowType.Interval);
  }

  /** Whether values have an order, and may be sort keys. */
  boolean isOrdered() {
    return kind == Kind.STRUCT ? Arrays.stream(inside).allMatch(Layout::isOrdered)
                               : kind == Kind.NULL || hasBounds();
  }

  /** The layout of a column of a schema of stored types; IllegalArgumentException for others. */
  static Layout of(Field field) {
    List<Field> children = field.getChildren();
    ArrowType type = field.getType();
    if (type instanceof ArrowType.Map) {
      return new Layout(Kind.MAP, type, 0, true, all(children.get(0).getChildren(), 2));
    } else if (type instanceof ArrowType.List) {
      return new Layout(Kind.LIST, type, 0, true, all(children, 1));
    } else if (type instanceof ArrowType.FixedSizeList list) {
      return new Layout(Kind.FIXED_LIST, type, list.getListSize(), true, all(children, 1));
    } else if (type instanceof ArrowType.Struct) {
      refuseUnless(children.stream().map(Field::getName).distinct().count() == children.size());
      return new Layout(Kind.STRUCT, type, 0, true, all(children, children.size()));
    }
    refuseUnless(children.isEmpty());
    return flat(type, true);
  }

  private static Layout[] all(List<Field> fields, int expected) {
    refuseUnless(fields.size() == expected);
    return fields.stream().map(Layout::of).toArray(Layout[] ::new);
  }

  private static void refuseUnless(boolean holds) {
    if (!holds) {
      throw new IllegalArgumentException("a nested type that is never stored");
    }
  }

  private static Layout flat(ArrowType type, boolean nullable) {
    if (type instanceof ArrowType.Null) {
      return new Layout(Kind.NULL, type, 0, true);
    } else if (type instanceof ArrowType.Bool) {
      return new Layout(Kind.BOOLEAN, type, 0, nullable);
    } else if (type instanceof ArrowType.Utf8 || type instanceof ArrowType.Binary) {
      return new Layout(Kind.TEXT, type, 0, nullable);
    } else if (type instanceof ArrowType.FloatingPoint of) {
      boolean isDouble = of.getPrecision() == FloatingPointPrecision.DOUBLE;
      int width = isDouble ? 8 : of.getPrecision() == FloatingPointPrecision.SINGLE ? 4 : 2;
      return new Layout(isDouble ? Kind.DOUBLE : Kind.FIXED, type, width, nullable);
    } else if (type instanceof ArrowType.FixedSizeBinary of && of.getByteWidth() >= 0) {
      return new Layout(Kind.FIXED, type, of.getByteWidth(), nullable);
    } else if (type instanceof ArrowType.Interval of
        && of.getUnit() == IntervalUnit.MONTH_DAY_NANO) {
      return new Layout(Kind.FIXED, type, 16, nullable);
    }
    int bits = bitsOf(type);
    return new Layout(bits > 128 ? Kind.FIXED : Kind.NUMBER, type, bits / 8, nullable);
  }

  private static int bitsOf(ArrowType type) {
    if (type instanceof ArrowType.Int of && isOne(of.getBitWidth(), 8, 16, 32, 64)) {
      return of.getBitWidth();
    } else if (type instanceof ArrowType.Decimal of && isOne(of.getBitWidth(), 32, 64, 128, 256)) {
      return of.getBitWidth();
    } else if (type instanceof ArrowType.Date of) {
      return of.getUnit() == DateUnit.DAY ? 32 : 64;
    } else if (type instanceof ArrowType.Time of && isOne(of.getBitWidth(), 32, 64)) {
      return of.getBitWidth();
    } else if (type instanceof ArrowType.Timestamp || type instanceof ArrowType.Duration) {
      return 64;
    }
    throw new IllegalArgumentException("type " + type + ", which is never stored");
  }

  private static boolean isOne(int number, int... allowed) {
    return Arrays.stream(allowed).anyMatch(of -> of == number);
  }
}
