package arrowshuffle.spark;

import arrowshuffle.format.Shape;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.arrow.vector.types.FloatingPointPrecision;
import org.apache.arrow.vector.types.TimeUnit;
import org.apache.arrow.vector.types.pojo.ArrowType;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.UserDefinedType;

/** Spark's types of what is stored: those of {@code docs/guide/types.md}. */
final class SparkTypes {
  private SparkTypes() {}

  /**
   * Returns the schema of a version: the one that Spark stored, else that of the stored types.
   *
   * @throws IllegalArgumentException if Spark, or this version of it, lacks a type; it names the
   *     column
   */
  static StructType schema(Shape shape, String where) {
    Map<String, StructField> known = new HashMap<>();
    if (shape.sparkSchema() != null) {
      for (StructField field : ((StructType) DataType.fromJson(shape.sparkSchema())).fields()) {
        known.put(field.name(), field);
      }
    }
    StructType found = new StructType();
    for (Field field : shape.schema().getFields()) {
      StructField stored = known.get(field.getName());
      found = found.add(stored != null ? stored : field(field, where, ""));
    }
    return found;
  }

  private static StructType struct(List<Field> fields, String where, String path) {
    StructType found = new StructType();
    for (Field field : fields) {
      found = found.add(field(field, where, path));
    }
    return found;
  }

  private static StructField field(Field field, String where, String path) {
    DataType type = type(field, where, path + field.getName());
    return new StructField(field.getName(), type, field.isNullable(), Metadata.empty());
  }

  private static DataType type(Field field, String where, String path) {
    ArrowType type = field.getType();
    List<Field> inside = field.getChildren();
    switch (type.getTypeID()) {
      case Null:
        return DataTypes.NullType;
      case Bool:
        return DataTypes.BooleanType;
      case Int:
        ArrowType.Int number = (ArrowType.Int) type;
        if (number.getIsSigned()) {
          switch (number.getBitWidth()) {
            case 8:
              return DataTypes.ByteType;
            case 16:
              return DataTypes.ShortType;
            case 32:
              return DataTypes.IntegerType;
            default:
              return DataTypes.LongType;
          }
        }
        break;
      case FloatingPoint:
        FloatingPointPrecision precision = ((ArrowType.FloatingPoint) type).getPrecision();
        if (precision == FloatingPointPrecision.SINGLE) {
          return DataTypes.FloatType;
        } else if (precision == FloatingPointPrecision.DOUBLE) {
          return DataTypes.DoubleType;
        }
        break;
      case Decimal:
        ArrowType.Decimal decimal = (ArrowType.Decimal) type;
        if (decimal.getBitWidth() == 128 && 0 <= decimal.getScale()
            && decimal.getScale() <= decimal.getPrecision()) {
          return DataTypes.createDecimalType(decimal.getPrecision(), decimal.getScale());
        }
        break;
      case Utf8:
        return DataTypes.StringType;
      case Binary:
        return DataTypes.BinaryType;
      case Date:
        if (((ArrowType.Date) type).getUnit() == org.apache.arrow.vector.types.DateUnit.DAY) {
          return DataTypes.DateType;
        }
        break;
      case Timestamp:
        ArrowType.Timestamp time = (ArrowType.Timestamp) type;
        if (time.getUnit() == TimeUnit.MICROSECOND) {
          return time.getTimezone() == null ? DataTypes.TimestampNTZType : DataTypes.TimestampType;
        }
        break;
      case Duration:
        if (((ArrowType.Duration) type).getUnit() == TimeUnit.MICROSECOND) {
          return DataTypes.createDayTimeIntervalType();
        }
        break;
      case Time:
        if (((ArrowType.Time) type).getUnit() == TimeUnit.NANOSECOND) {
          return time(where, path);
        }
        break;
      case List:
        Field item = inside.get(0);
        return DataTypes.createArrayType(type(item, where, path + ".element"), item.isNullable());
      case Map:
        List<Field> pair = inside.get(0).getChildren();
        return DataTypes.createMapType(type(pair.get(0), where, path + ".key"),
            type(pair.get(1), where, path + ".value"), pair.get(1).isNullable());
      case Struct:
        return struct(inside, where, path + ".");
      default:
    }
    throw lacking(type.toString(), where, path);
  }

  /** TIME came with Spark 4.1, that of nanoseconds with 4.3: an older one refuses the word. */
  private static DataType time(String where, String path) {
    try {
      return DataType.fromJson("\"time(9)\"");
    } catch (RuntimeException e) {
      throw lacking("TIME(9)", where, path);
    }
  }

  private static IllegalArgumentException lacking(String type, String where, String path) {
    return new IllegalArgumentException(where + " has the column " + path + " of type " + type
        + ", which this Spark lacks: read the others in Python, with"
        + " arrow_shuffle.open_shuffle(path).select(...).to_spark(spark)");
  }

  /** Returns the type in which Spark stores values of a type: that inside of user-defined ones. */
  static DataType stored(DataType type) {
    if (type instanceof UserDefinedType<?> ofUser) {
      return stored(ofUser.sqlType());
    } else if (type instanceof ArrayType array) {
      return DataTypes.createArrayType(stored(array.elementType()), array.containsNull());
    } else if (type instanceof MapType map) {
      return DataTypes.createMapType(
          stored(map.keyType()), stored(map.valueType()), map.valueContainsNull());
    } else if (type instanceof StructType struct) {
      StructType found = new StructType();
      for (StructField field : struct.fields()) {
        found = found.add(field.name(), stored(field.dataType()), field.nullable());
      }
      return found;
    }
    return type;
  }
}
