package arrowshuffle.format;

import static arrowshuffle.format.Checks.check;

import java.io.IOException;
import java.io.ObjectInputStream;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import org.apache.arrow.vector.types.pojo.Schema;

/** What the rows of a version have in common. */
public final class Shape implements Serializable {
  private static final long serialVersionUID = 1;
  private static final long MOST_SUBPARTITIONS = 1_000_000;

  private static final Map<String, boolean[]> ORDERS =
      Map.of("ascending", new boolean[] {false, true}, "descending", new boolean[] {true, false},
          "ascending nulls last", new boolean[] {false, false}, "descending nulls first",
          new boolean[] {true, true});

  private final byte[] schemaMessage;
  private transient Columns columns;
  private final int[] columnIds;
  private final String sparkSchema;
  private final int numSubpartitions;
  private final long rescaledTo;
  private final String partitioner;
  private final String kind;
  private final List<String> keys;
  private final int seed;
  private final List<SortKey> sortBy;

  /** Parses the shape of a state, and checks it. */
  Shape(Json json, long lastColumnId, String where) throws CorruptShuffleException {
    json.text("shuffle_id"); // must be there
    schemaMessage = json.octets("data_schema");
    long[] ids = json.naturals("column_ids");
    columnIds = new int[ids.length];
    for (int i = 0; i < ids.length; i++) {
      check(ids[i] <= lastColumnId && ids[i] <= Integer.MAX_VALUE, where,
          "a column has the id " + ids[i] + ", above the last that was given");
      columnIds[i] = (int) ids[i];
    }
    columns = new Columns(schemaMessage, columnIds, where);
    sparkSchema = json.textOrNull("spark_schema");
    long n = json.natural("num_subpartitions");
    check(n >= 1 && n <= MOST_SUBPARTITIONS, where, n + " subpartitions");
    numSubpartitions = (int) n;
    rescaledTo = json.has("rescaled_to") ? json.natural("rescaled_to") : n;
    Json described = json.inside("partitioner");
    partitioner = described.toString();
    kind = described.text("kind");
    keys = keys(described);
    seed = kind.equals("hash") ? (int) described.natural("seed") : 0;
    for (String key : keys) {
      columns.positionOf(key, where);
    }
    sortBy = sortKeys(json, where);
    for (SortKey key : sortBy) {
      Layout layout = columns.layouts[columns.positionOf(key.column(), where)];
      check(layout.isOrdered(), where, "rows are sorted by " + key.column());
    }
  }

  private List<String> keys(Json described) throws CorruptShuffleException {
    List<String> found = new ArrayList<>();
    switch (kind) {
      case "hash" -> found.addAll(described.texts("keys"));
      case "range" -> described.rows("keys", 2, 0).forEach(row -> found.add(row.texts()[0]));
      case "column" -> found.add(described.text("column"));
      default -> {
        // Readers need to know no other.
      }
    }
    return List.copyOf(found);
  }

  /** The sort keys of a shape, or of the directory of an index. */
  static List<SortKey> sortKeys(Json json, String where) throws CorruptShuffleException {
    List<SortKey> found = new ArrayList<>();
    for (Json.Row row : json.rows("sort_by", 2, 0)) {
      boolean[] order = ORDERS.get(row.texts()[1]);
      check(order != null, where, "the order " + row.texts()[1]);
      found.add(new SortKey(row.texts()[0], order[0], order[1]));
    }
    return List.copyOf(found);
  }

  private void readObject(ObjectInputStream in) throws IOException, ClassNotFoundException {
    in.defaultReadObject();
    columns = new Columns(schemaMessage, columnIds, "shape of a version");
  }

  /** Columns of the version, without metadata. */
  public Schema schema() {
    return columns.schema;
  }

  /** Ids of columns and of what is inside of them, depth first. */
  public int[] columnIds() {
    return columnIds.clone();
  }

  /** Id of a column of the schema, by its position. */
  public int columnId(int column) {
    return columns.ids[column][0];
  }

  /** Columns with their ids. */
  Columns columns() {
    return columns;
  }

  /** The columns of a file, mostly these. */
  Columns columnsOf(byte[] message, int[] ids, String where) throws CorruptShuffleException {
    boolean areThese = Arrays.equals(message, schemaMessage) && Arrays.equals(ids, columnIds);
    return areThese ? columns : new Columns(message, ids, where);
  }

  /** Spark's JSON of the schema; null where Spark did not write it. */
  public String sparkSchema() {
    return sparkSchema;
  }

  /** Number of subpartitions, n. */
  public int numSubpartitions() {
    return numSubpartitions;
  }

  /** Of new files, and after a merge of all, another number of subpartitions; empty: the same. */
  public String afterMerge() {
    return rescaledTo == numSubpartitions ? "" : ", " + rescaledTo + " after a merge";
  }

  /** The partitioner as JSON. */
  public String partitioner() {
    return partitioner;
  }

  /** Kind of the partitioner: hash, range, column, roundrobin, or any other. */
  public String kind() {
    return kind;
  }

  /** Names of the key columns; none where the partitioner has no keys. */
  public List<String> keys() {
    return keys;
  }

  /** Seed of a partitioner of kind hash; else 0. */
  public int seed() {
    return seed;
  }

  /** How the rows of each region and subpartition are sorted; empty: not at all. */
  public List<SortKey> sortBy() {
    return sortBy;
  }
}
