import arrowshuffle.format.Bound;
import arrowshuffle.format.ChunkRows;
import arrowshuffle.format.Column;
import arrowshuffle.format.CommitLog;
import arrowshuffle.format.CorruptShuffleException;
import arrowshuffle.format.FileReader;
import arrowshuffle.format.FormatVersionException;
import arrowshuffle.format.LocalStorage;
import arrowshuffle.format.PartitionedFile;
import arrowshuffle.format.Shape;
import arrowshuffle.format.ShuffleNotFoundException;
import arrowshuffle.format.Snapshot;
import arrowshuffle.format.SortKey;
import arrowshuffle.format.Storage;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.Deque;
import java.util.List;
import java.util.stream.IntStream;
import org.apache.arrow.vector.types.pojo.ArrowType;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.arrow.vector.types.pojo.Schema;

/**
 * The reader of the format in Java, as the kit asks it; see {@code integration/readers/serve.py}.
 */
public final class Kit {
  private static final Bound NO_BOUND = new Bound(null, null, Long.MAX_VALUE);
  private static final ObjectMapper JSON = new ObjectMapper();

  private Kit() {}

  /** Answers the lines of standard input until it ends. */
  public static void main(String[] arguments) throws IOException {
    BufferedReader in =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    boolean inPieces = List.of(arguments).contains("pieces");
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      JsonNode asked = JSON.readTree(line);
      ObjectNode said = JSON.createObjectNode();
      try {
        read(new LocalStorage(asked.get("shuffle").asText()), asked.get("version").asLong(),
            Path.of(asked.get("rows").asText()), inPieces);
        said.put("answer", "rows");
      } catch (CorruptShuffleException error) {
        said.put("answer", "damage").put("why", error.toString());
      } catch (FormatVersionException error) {
        said.put("answer", "newer").put("why", error.toString());
      } catch (ShuffleNotFoundException error) {
        said.put("answer", "absent").put("why", error.toString());
      } catch (IOException | RuntimeException | OutOfMemoryError error) {
        said.put("answer", "untyped")
            .put("why", error + " at " + Arrays.toString(error.getStackTrace()));
      }
      out.println(JSON.writeValueAsString(said));
    }
  }

  private static void read(Storage shuffle, long version, Path rows, boolean inPieces)
      throws IOException {
    Snapshot snapshot = CommitLog.open(shuffle).snapshot(version);
    Shape shape = snapshot.shape();
    List<Field> fields = shape.schema().getFields();
    List<Values> columns = new ArrayList<>(fields.stream().map(Values::new).toList());
    Field number = Field.notNullable("_subpartition", new ArrowType.Int(32, true));
    Values subpartition = new Values(number);
    try {
      for (PartitionedFile file : snapshot.files()) {
        if (inPieces) {
          readPieces(shuffle, shape, file, columns, subpartition);
        } else {
          readWhole(shuffle, shape, file, columns, subpartition);
        }
      }
    } catch (CorruptShuffleException error) {
      throw CommitLog.explain(shuffle, version, snapshot.commitId(), error);
    }
    Values[] keys = shape.sortBy()
                        .stream()
                        .map(key -> columns.get(indexOf(fields, key)))
                        .toArray(Values[] ::new);
    Integer[] order = IntStream.range(0, subpartition.count()).boxed().toArray(Integer[] ::new);
    Arrays.sort(order, (a, b) -> {
      int sign = subpartition.compare(a, b);
      for (int i = 0; sign == 0 && i < keys.length; i++) {
        SortKey key = shape.sortBy().get(i);
        boolean isNull = keys[i].isNull(a);
        if (isNull || keys[i].isNull(b)) {
          sign = isNull && keys[i].isNull(b) ? 0 : isNull == key.nullsFirst() ? -1 : 1;
        } else {
          sign = keys[i].compare(a, b) * (key.descending() ? -1 : 1);
        }
      }
      return sign;
    });
    List<Field> all = new ArrayList<>(fields);
    all.add(number);
    columns.add(subpartition);
    List<Values> sorted = new ArrayList<>();
    for (int i = 0; i < all.size(); i++) {
      Values values = new Values(all.get(i));
      for (int row : order) {
        values.add(columns.get(i), row);
      }
      sorted.add(values);
    }
    ArrowFile.write(rows, new Schema(all), sorted, order.length);
  }

  private static int indexOf(List<Field> fields, SortKey key) {
    return IntStream.range(0, fields.size())
        .filter(i -> fields.get(i).getName().equals(key.column()))
        .findFirst()
        .getAsInt();
  }

  private static void readWhole(Storage shuffle, Shape shape, PartitionedFile file,
      List<Values> columns, Values subpartition) throws IOException {
    int n = shape.numSubpartitions();
    int[] wanted = IntStream.range(0, columns.size()).toArray();
    try (FileReader reader = new FileReader(shuffle, shape, file, wanted, null)) {
      reader.select(0, n, null);
      for (ChunkRows rows = reader.next(); rows != null; rows = reader.next()) {
        for (int run = 0; run < rows.numRuns(); run++) {
          int[] of = subpartitions(rows.subpartition(run), 0, n, null);
          for (int i = 0; i < wanted.length; i++) {
            add(rows, run, i, of.length, columns.get(i));
          }
          addNumbers(rows, run, of, subpartition);
        }
      }
    }
  }

  /** Subpartitions among those selected that have the rows of a run. */
  private static int[] subpartitions(int of, int first, int end, BitSet among) {
    return of >= 0
        ? new int[] {of}
        : IntStream.range(first, end).filter(s -> among == null || among.get(s)).toArray();
  }

  private static void add(ChunkRows rows, int run, int column, int times, Values to)
      throws IOException {
    Column from = rows.column(column);
    for (int k = 0; k < times; k++) {
      for (int row = rows.from(run); row < rows.to(run); row++) {
        to.add(from, row);
      }
    }
  }

  private static void addNumbers(ChunkRows rows, int run, int[] of, Values to) {
    for (int s : of) {
      for (int row = rows.from(run); row < rows.to(run); row++) {
        to.addNumber(s);
      }
    }
  }

  /** Reads thirds of the subpartitions, even ones and odd ones apart, and each column alone. */
  private static void readPieces(Storage shuffle, Shape shape, PartitionedFile file,
      List<Values> columns, Values subpartition) throws IOException {
    int n = shape.numSubpartitions();
    for (int i = -1; i < columns.size(); i++) {
      int[] wanted = i < 0 ? new int[0] : new int[] {i};
      int id = i < 0 ? 0 : shape.columnId(i);
      // Those of chunks in the order in which these are read, of which some have no rows left.
      Deque<Bound> bounds = new ArrayDeque<>();
      try (FileReader reader = new FileReader(shuffle, shape, file, wanted, of -> {
        bounds.add(of.of(id) == null ? NO_BOUND : of.of(id));
        return true;
      })) {
        for (int third = 0; third < 3; third++) {
          int first = (int) ((long) n * third / 3);
          int end = (int) ((long) n * (third + 1) / 3);
          for (int odd = 0; odd < 2; odd++) {
            BitSet among = new BitSet();
            for (int s = first; s < end; s++) {
              among.set(s, s % 2 == odd);
            }
            if (among.isEmpty()) {
              continue;
            }
            reader.select(first, end, among);
            for (ChunkRows rows = reader.next(); rows != null; rows = reader.next()) {
              Bound bound = bounds.remove();
              for (int run = 0; run < rows.numRuns(); run++) {
                int[] of = subpartitions(rows.subpartition(run), first, end, among);
                if (i < 0) {
                  addNumbers(rows, run, of, subpartition);
                } else {
                  int before = columns.get(i).count();
                  add(rows, run, 0, of.length, columns.get(i));
                  columns.get(i).checkBound(bound, before, rows.where());
                  columns.get(i).checkBound(file.bounds(shape).of(id), before, rows.where());
                }
              }
            }
          }
        }
      }
    }
  }
}
