package arrowshuffle.spark;

import arrowshuffle.format.Shape;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;

/** Which subpartitions can have rows that satisfy a condition, by the hash of their keys. */
final class KeySelection {
  /** Of more keys than this, not all are hashed: nearly every subpartition would have some. */
  private static final int MOST_KEYS = 100_000;

  private final int numSubpartitions;
  private final int seed;
  private final int[] keys;
  private final DataType[] types;

  private KeySelection(int numSubpartitions, int seed, int[] keys, DataType[] types) {
    this.numSubpartitions = numSubpartitions;
    this.seed = seed;
    this.keys = keys;
    this.types = types;
  }

  /**
   * Returns the selection of a version.
   *
   * @param placed whether every row lies where the partitioner places it; if not, conditions on
   *     keys select nothing
   */
  static KeySelection of(Shape shape, StructType schema, boolean placed) {
    int[] keys = new int[0];
    if (placed && shape.kind().equals("hash")) {
      List<String> names = Arrays.asList(schema.fieldNames());
      keys = shape.keys().stream().mapToInt(names::indexOf).toArray();
    }
    DataType[] types = Arrays.stream(keys)
                           .mapToObj(key -> key < 0 ? null : schema.fields()[key].dataType())
                           .toArray(DataType[] ::new);
    if (Arrays.stream(types).anyMatch(type -> type == null || !KeyHash.takes(type))) {
      keys = new int[0];
    }
    return new KeySelection(shape.numSubpartitions(), shape.seed(), keys, types);
  }

  /** The subpartitions; null where all can. */
  BitSet of(Condition condition) {
    if (condition instanceof Condition.Never) {
      return new BitSet();
    } else if (condition instanceof Condition.Or or) {
      BitSet any = new BitSet();
      for (Condition child : or.of()) {
        BitSet found = of(child);
        if (found == null) {
          return null;
        }
        any.or(found);
      }
      return any;
    }
    List<Condition> all = new ArrayList<>();
    flatten(condition, all);
    BitSet found = byKeys(all);
    for (Condition child : all) {
      BitSet more = child instanceof Condition.Or ? of(child) : bySubpartition(child);
      found = both(found, more);
    }
    return found;
  }

  /** The subpartitions of both; null stands for all. */
  static BitSet both(BitSet first, BitSet second) {
    if (first == null || second == null) {
      return first == null ? second : first;
    }
    BitSet both = (BitSet) first.clone();
    both.and(second);
    return both;
  }

  private static void flatten(Condition condition, List<Condition> into) {
    if (condition instanceof Condition.And and) {
      and.of().forEach(child -> flatten(child, into));
    } else {
      into.add(condition);
    }
  }

  private BitSet bySubpartition(Condition condition) {
    if (condition instanceof Condition.Never) {
      return new BitSet();
    }
    if (!(condition instanceof Condition.OneOf of) || of.column() != Condition.SUBPARTITION) {
      return null;
    }
    BitSet found = new BitSet();
    for (Object value : of.inside()) {
      int subpartition = (Integer) value;
      if (0 <= subpartition && subpartition < numSubpartitions) {
        found.set(subpartition);
      }
    }
    return found;
  }

  private BitSet byKeys(List<Condition> all) {
    if (keys.length == 0) {
      return null;
    }
    Map<Integer, List<Object>> values = new HashMap<>();
    for (Condition condition : all) {
      if (condition instanceof Condition.OneOf of) {
        values.merge(of.column(), of.inside(), (a, b) -> a.size() <= b.size() ? a : b);
      } else if (condition instanceof Condition.IsNull isNull) {
        values.putIfAbsent(isNull.column(), Arrays.asList((Object) null));
      }
    }
    int[] hashes = {seed};
    for (int k = 0; k < keys.length; k++) {
      List<Object> ofKey = values.get(keys[k]);
      if (ofKey == null || (long) hashes.length * ofKey.size() > MOST_KEYS) {
        return null;
      }
      DataType type = types[k];
      int[] before = hashes;
      hashes = ofKey.stream()
                   .flatMapToInt(
                       value -> Arrays.stream(before).map(hash -> KeyHash.fold(value, type, hash)))
                   .toArray();
    }
    BitSet found = new BitSet();
    for (int hash : hashes) {
      found.set(Math.floorMod(hash, numSubpartitions));
    }
    return found;
  }
}
