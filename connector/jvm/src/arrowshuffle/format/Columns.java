package arrowshuffle.format;

import static arrowshuffle.format.Checks.check;
import static arrowshuffle.format.Checks.damage;
import static arrowshuffle.format.Checks.malformed;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.arrow.flatbuf.Message;
import org.apache.arrow.flatbuf.MessageHeader;
import org.apache.arrow.flatbuf.Type;
import org.apache.arrow.vector.types.FloatingPointPrecision;
import org.apache.arrow.vector.types.pojo.ArrowType;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.arrow.vector.types.pojo.FieldType;
import org.apache.arrow.vector.types.pojo.Schema;

/** Columns of a version, or of a file, with their ids. */
final class Columns {
  /** Without metadata, which means nothing. */
  final Schema schema;

  final List<Field> fields;
  final Layout[] layouts;

  /** Of each column its own id, and those of what is inside, depth first. */
  final int[][] ids;

  private final Map<Integer, Integer> positions = new HashMap<>();

  /** Columns of a schema in an Arrow IPC message, and ids of all of them, depth first. */
  Columns(byte[] message, int[] allIds, String where) throws CorruptShuffleException {
    schema = new Schema(fields(message, where + ", schema"));
    fields = schema.getFields();
    check(!fields.isEmpty(), where, "a schema of no column");
    layouts = fields.stream().map(Layout::of).toArray(Layout[] ::new);
    ids = new int[layouts.length][];
    Set<String> names = new HashSet<>();
    int at = 0;
    for (int i = 0; i < layouts.length; i++) {
      check(names.add(fields.get(i).getName()), where, "a column twice: " + fields.get(i));
      int end = at + layouts[i].nodes;
      check(end <= allIds.length, where, "fewer ids than columns");
      ids[i] = Arrays.copyOfRange(allIds, at, end);
      positions.put(ids[i][0], i);
      at = end;
    }
    check(at == allIds.length && Arrays.stream(allIds).allMatch(id -> id > 0)
            && Arrays.stream(allIds).distinct().count() == allIds.length,
        where, "ids of columns " + Arrays.toString(allIds));
  }

  private static List<Field> fields(byte[] bytes, String where) throws CorruptShuffleException {
    try {
      Message message = ArrowMessage.header(bytes, 0, bytes.length, MessageHeader.Schema, where);
      org.apache.arrow.flatbuf.Schema schema =
          (org.apache.arrow.flatbuf.Schema) message.header(new org.apache.arrow.flatbuf.Schema());
      List<Field> found = new ArrayList<>();
      for (int i = 0; i < schema.fieldsLength(); i++) {
        found.add(field(schema.fields(i)));
      }
      found.forEach(Layout::of); // refuses types that are never stored
      return found;
    } catch (RuntimeException error) {
      throw malformed(where, error);
    }
  }

  private static Field field(org.apache.arrow.flatbuf.Field of) {
    ArrowType type;
    if (of.typeType() == Type.Decimal) { // Arrow's own refuses those of fewer bits than 128
      var decimal =
          (org.apache.arrow.flatbuf.Decimal) of.type(new org.apache.arrow.flatbuf.Decimal());
      type = new ArrowType.Decimal(decimal.precision(), decimal.scale(), decimal.bitWidth());
    } else {
      type = ArrowType.getTypeForField(of);
    }
    if (of.dictionary() != null || of.name() == null) {
      throw new IllegalArgumentException("a dictionary, or no name");
    }
    List<Field> children = new ArrayList<>();
    for (int i = 0; i < of.childrenLength(); i++) {
      children.add(field(of.children(i)));
    }
    return new Field(of.name(), new FieldType(of.nullable(), type, null), children);
  }

  /** Position of the column with an id; -1 where there is none. */
  int positionOf(int id) {
    return positions.getOrDefault(id, -1);
  }

  /** Position of the column of a name. */
  int positionOf(String name, String where) throws CorruptShuffleException {
    for (int i = 0; i < layouts.length; i++) {
      if (fields.get(i).getName().equals(name)) {
        return i;
      }
    }
    throw damage(where, "no column has the name " + name);
  }

  /**
   * Positions of the columns of a version among those of a file, by their ids; -1 where it lacks
   * one.
   *
   * @throws CorruptShuffleException where values of one are not read as those of the other
   */
  static int[] positions(Columns version, Columns file, String where)
      throws CorruptShuffleException {
    int[] found = new int[version.layouts.length];
    for (int i = 0; i < found.length; i++) {
      int at = found[i] = file.positionOf(version.ids[i][0]);
      if (at >= 0) {
        Field stored = file.fields.get(at);
        boolean isRead =
            Arrays.equals(version.ids[i], file.ids[at]) && isRead(stored, version.fields.get(i));
        check(isRead, where, "column " + stored + " cannot be read as " + version.fields.get(i));
      }
    }
    return found;
  }

  /** Whether values of a column of a file are read as those of a column of a version. */
  private static boolean isRead(Field stored, Field wanted) {
    ArrowType from = stored.getType();
    ArrowType to = wanted.getType();
    if (from instanceof ArrowType.Int a && to instanceof ArrowType.Int b) {
      return a.getIsSigned() == b.getIsSigned() && a.getBitWidth() <= b.getBitWidth();
    } else if (from instanceof ArrowType.Decimal a && to instanceof ArrowType.Decimal b) {
      return a.getScale() == b.getScale() && a.getPrecision() <= b.getPrecision()
          && a.getBitWidth() <= b.getBitWidth();
    } else if (from instanceof ArrowType.FloatingPoint a
        && to instanceof ArrowType.FloatingPoint b) {
      return a.equals(b)
          || a.getPrecision() == FloatingPointPrecision.SINGLE
          && b.getPrecision() == FloatingPointPrecision.DOUBLE;
    }
    return isAlike(stored, wanted);
  }

  /** Whether types are equal but for nullability, names of items and of time zones. */
  private static boolean isAlike(Field stored, Field wanted) {
    ArrowType from = stored.getType();
    ArrowType to = wanted.getType();
    List<Field> inFrom = stored.getChildren();
    List<Field> inTo = wanted.getChildren();
    boolean areMaps = from instanceof ArrowType.Map && to instanceof ArrowType.Map;
    if (from instanceof ArrowType.Timestamp a && to instanceof ArrowType.Timestamp b) {
      return a.getUnit() == b.getUnit() && (a.getTimezone() == null) == (b.getTimezone() == null);
    } else if (areMaps) { // names of the pair, of keys and of values mean nothing
      inFrom = inFrom.get(0).getChildren();
      inTo = inTo.get(0).getChildren();
    }
    boolean alike = (areMaps || from.equals(to)) && inFrom.size() == inTo.size();
    for (int i = 0; alike && i < inFrom.size(); i++) {
      boolean isNamed = from instanceof ArrowType.Struct;
      alike = isAlike(inFrom.get(i), inTo.get(i))
          && (!isNamed || inFrom.get(i).getName().equals(inTo.get(i).getName()));
    }
    return alike;
  }
}
