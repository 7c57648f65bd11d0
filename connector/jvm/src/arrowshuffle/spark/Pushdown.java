package arrowshuffle.spark;

import arrowshuffle.format.Shape;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.Literal;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.UserDefinedType;
import org.apache.spark.unsafe.types.UTF8String;

/** Makes conditions of Spark's predicates, where these say something about bounds or keys. */
final class Pushdown {
  private final Shape shape;
  private final StructType schema;

  Pushdown(Shape shape, StructType schema) {
    this.shape = shape;
    this.schema = schema;
  }

  /** What a predicate needs at least; empty where that is nothing. */
  Optional<Condition> condition(Predicate predicate) {
    Expression[] of = predicate.children();
    switch (predicate.name()) {
      case "ALWAYS_FALSE":
        return Optional.of(new Condition.Never());
      case "AND":
        return and(Arrays.stream(of).flatMap(child -> inside(child).stream()).toList());
      case "OR":
        List<Condition> any = new ArrayList<>();
        for (Expression child : of) {
          Optional<Condition> condition = inside(child);
          if (condition.isEmpty()) {
            return Optional.empty();
          }
          any.add(condition.get());
        }
        return Optional.of(new Condition.Or(any));
      case "IS_NULL":
        return column(of[0]).map(at -> new Condition.IsNull(at, id(at)));
      case "IS_NOT_NULL":
        return column(of[0]).map(at -> new Condition.IsNotNull(id(at)));
      case "IN":
        return column(of[0])
            .filter(this::compares)
            .flatMap(at -> oneOf(at, Arrays.asList(of).subList(1, of.length)));
      case "=", "<=>", "<", "<=", ">", ">=", "STARTS_WITH":
        return comparison(predicate.name(), of);
      default:
        return Optional.empty();
    }
  }

  private static Optional<Condition> and(List<Condition> all) {
    return all.isEmpty() ? Optional.empty() : Optional.of(new Condition.And(all));
  }

  private Optional<Condition> inside(Expression child) {
    return child instanceof Predicate predicate ? condition(predicate) : Optional.empty();
  }

  /** Position of a column of the version, or what stands for a metadata column. */
  private Optional<Integer> column(Expression expression) {
    if (!(expression instanceof NamedReference name) || name.fieldNames().length != 1) {
      return Optional.empty();
    }
    String column = name.fieldNames()[0];
    int at = Arrays.asList(schema.fieldNames()).indexOf(column);
    if (at >= 0) {
      return Optional.of(at);
    }
    return switch (column) {
      case ShuffleTable.SUBPARTITION -> Optional.of(Condition.SUBPARTITION);
      case ShuffleTable.VERSION -> Optional.of(Condition.VERSION);
      default -> alike(column);
    };
  }

  /** Filters of run time spell a column as the query does. */
  private Optional<Integer> alike(String column) {
    List<String> names = Arrays.asList(schema.fieldNames());
    List<String> alike = names.stream().filter(column::equalsIgnoreCase).toList();
    return alike.size() == 1 ? Optional.of(names.indexOf(alike.get(0))) : Optional.empty();
  }

  private int id(int column) {
    return column < 0 ? column : shape.columnId(column);
  }

  private DataType type(int column) {
    return switch (column) {
      case Condition.SUBPARTITION -> DataTypes.IntegerType;
      case Condition.VERSION -> DataTypes.LongType;
      default -> schema.fields()[column].dataType();
    };
  }

  /** Whether Spark compares values of a column as bounds are: flat ones, without a collation. */
  private boolean compares(int column) {
    DataType type = type(column);
    return !(type instanceof StructType || type instanceof ArrayType || type instanceof MapType
        || type instanceof UserDefinedType<?>
        || type instanceof StringType && !type.equals(DataTypes.StringType));
  }

  private Optional<Condition> oneOf(int column, List<Expression> literals) {
    List<Object> inside = new ArrayList<>();
    List<Object> values = new ArrayList<>();
    for (Expression literal : literals) {
      Optional<Object> found = value(literal, column);
      if (found.isEmpty()) {
        return Optional.empty();
      }
      if (found.get() != NULL) { // nothing equals a null
        inside.add(found.get());
        values.add(comparable(found.get()));
      }
    }
    return Optional.of(new Condition.OneOf(column, id(column), values, inside));
  }

  private Optional<Condition> comparison(String name, Expression[] of) {
    if (!(of[1] instanceof Literal<?>) && of[0] instanceof Literal<?>) {
      String turned = name.replace('<', ' ').replace('>', '<').replace(' ', '>');
      boolean isSymmetric = name.equals("=") || name.equals("<=>");
      return name.equals("STARTS_WITH")
          ? Optional.empty()
          : comparison(isSymmetric ? name : turned, new Expression[] {of[1], of[0]});
    }
    Optional<Integer> column = column(of[0]).filter(this::compares);
    Optional<Object> value = column.flatMap(at -> value(of[1], at));
    if (value.isEmpty()) {
      return Optional.empty();
    }
    int at = column.get();
    if (value.get() == NULL) {
      return Optional.of(
          name.equals("<=>") ? new Condition.IsNull(at, id(at)) : new Condition.Never());
    }
    Object comparable = comparable(value.get());
    return switch (name) {
      case "=", "<=>" -> oneOf(at, List.of(of[1]));
      case "<" -> Optional.of(new Condition.Less(id(at), comparable, false));
      case "<=" -> Optional.of(new Condition.Less(id(at), comparable, true));
      case ">" -> Optional.of(new Condition.Greater(id(at), comparable, false));
      case ">=" -> Optional.of(new Condition.Greater(id(at), comparable, true));
      default ->
        comparable instanceof byte[] prefix ? Optional.of(new Condition.BeginsWith(id(at), prefix))
                                            : Optional.empty();
    };
  }

  /** A literal that is null. */
  private static final Object NULL = new Object();

  /** The value of a literal, as Spark has it inside, of the very type of a column. */
  private Optional<Object> value(Expression expression, int column) {
    if (!(expression instanceof Literal<?> literal)) {
      return Optional.empty();
    }
    if (literal.value() == null) {
      return Optional.of(NULL);
    }
    Object value = literal.value();
    if (value instanceof Decimal decimal && literal.dataType() instanceof DecimalType type) {
      Decimal exact = decimal.clone();
      if (!exact.changePrecision(type.precision(), type.scale())) {
        return Optional.empty();
      }
      value = exact;
    }
    boolean isKnown = value instanceof Number || value instanceof Boolean
        || value instanceof Decimal || value instanceof UTF8String || value instanceof byte[];
    return isKnown && literal.dataType().equals(type(column)) ? Optional.of(value)
                                                              : Optional.empty();
  }

  /** A value as bounds have it. */
  private static Object comparable(Object value) {
    if (value instanceof UTF8String text) {
      return text.getBytes();
    } else if (value instanceof Decimal decimal) {
      return decimal.toJavaBigDecimal().unscaledValue();
    } else if (value instanceof Integer || value instanceof Short || value instanceof Byte) {
      return ((Number) value).longValue();
    }
    return value;
  }
}
