package arrowshuffle.format;

import static arrowshuffle.format.Checks.check;
import static arrowshuffle.format.Checks.damage;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.apache.arrow.vector.types.pojo.ArrowType;

/** A map output as the log has it. */
record MapOutput(long version, long order, long lastVersion, String jobId, long mapTask,
    List<PartitionedFile> files) {
  private static final long MOST_SUBPARTITIONS = 1_000_000;
  private static final long REGION_ROWS = 1L << 31;
  private static final Layout NUMBER = Layout.of(Layout.INT64);
  private static final Layout TEXT = Layout.of(Layout.TEXT);
  private static final Layout BINARY = Layout.of(Layout.BINARY);
  private static final Layout BOUND = Layout.nullable(Layout.BINARY);
  private static final Layout FLAG = Layout.of(new ArrowType.Bool());
  private static final Layout ID = Layout.of(new ArrowType.Int(32, true));
  private static final Layout FILE =
      Layout.structOf(TEXT, BINARY, NUMBER, NUMBER, NUMBER, NUMBER, NUMBER, NUMBER, NUMBER, NUMBER,
          NUMBER, NUMBER, NUMBER, Layout.listOf(Layout.structOf(NUMBER, BOUND, BOUND, NUMBER)),
          FLAG, NUMBER, NUMBER, NUMBER, NUMBER, NUMBER, TEXT, BINARY);
  private static final Layout[] ADDED = {
      NUMBER, NUMBER, NUMBER, TEXT, NUMBER, NUMBER, Layout.listOf(ID), Layout.listOf(FILE)};

  /** What names it in a version. */
  String key() {
    return jobId + "/" + mapTask;
  }

  /** Whether no row is left of its files. */
  boolean isTombstones() {
    return !files.isEmpty() && files.stream().allMatch(file -> file.numRows() == 0);
  }

  /** Map outputs of a section. */
  static List<MapOutput> decode(byte[] content, String where) throws CorruptShuffleException {
    Column[] columns = ArrowMessage.rows(content, ADDED, where);
    List<MapOutput> found = new ArrayList<>();
    Set<String> keys = new HashSet<>();
    Set<String> places = new HashSet<>();
    Column ids = columns[6];
    Column files = columns[7];
    for (int i = 0; i < columns[0].count; i++) {
      Cursor of = new Cursor(columns, i, where);
      long version = of.natural();
      long order = of.natural();
      long last = of.natural();
      String job = of.text();
      long task = of.natural();
      long attempt = of.natural();
      if (!isName(job) || version < 1 || version > last) {
        throw damage(where, "a map output of job " + job + " and version " + version);
      }
      int[] columnIds = new int[ids.ends[i + 1] - ids.ends[i]];
      for (int k = 0; k < columnIds.length; k++) {
        columnIds[k] = (int) ids.children[0].getLong(ids.ends[i] + k);
      }
      List<PartitionedFile> ofOutput = new ArrayList<>();
      for (int k = files.ends[i]; k < files.ends[i + 1]; k++) {
        Cursor row = new Cursor(files.children[0].children, k, where);
        PartitionedFile file = file(row, version, order, last, job, task, attempt, columnIds);
        String problem = problemOf(file);
        if (problem == null && !places.add(normal(file.root()) + "|" + file.path())) {
          problem = "is there twice";
        }
        if (problem != null) {
          throw damage(where + ", file " + file.path(), problem);
        }
        ofOutput.add(file);
      }
      MapOutput output = new MapOutput(version, order, last, job, task, ofOutput);
      if (!keys.add(output.key())) {
        throw damage(where, "map output " + output.key() + " twice");
      }
      found.add(output);
    }
    return found;
  }

  private static PartitionedFile file(Cursor of, long version, long order, long last, String job,
      long task, long attempt, int[] columnIds) throws CorruptShuffleException {
    return new PartitionedFile(version, order, last, job, task, attempt, columnIds, of.text(),
        of.text(), of.natural(), of.natural(), of.natural(), of.natural(), of.natural(),
        of.natural(), of.natural(), of.natural(), of.natural(), of.natural(), of.natural(),
        of.statistics(), of.flag(), of.natural(), of.natural(), of.natural(), of.natural(),
        of.natural(), of.text(), of.binary());
  }

  /** What is wrong with a file; null: nothing. */
  private static String problemOf(PartitionedFile file) {
    String root = file.root();
    long n = file.numSubpartitions();
    long rows = file.storedRows();
    long regions = file.numRegions();
    if (!isPath(file.path())) {
      return "its path would lead elsewhere";
    } else if (!root.isEmpty()
        && (!root.startsWith("/") || root.indexOf('\0') >= 0 || root.contains("://"))) {
      return "its root is no absolute directory: " + root;
    } else if (n < 1 || n > MOST_SUBPARTITIONS) {
      return n + " subpartitions";
    } else if (file.first() > file.end() || file.first() == file.end() && rows > 0) {
      return "rows in no subpartition";
    } else if (regions > rows || file.numBroadcastRows() > rows
        || rows / REGION_ROWS >= Math.max(1, regions)) {
      return rows + " rows cannot be in " + regions + " regions";
    }
    Set<Integer> ids = new HashSet<>();
    for (FileBounds bounds : file.statistics()) {
      if (!ids.add(bounds.columnId()) || bounds.nulls() > rows) {
        return "bounds of column " + bounds.columnId() + " twice, or more nulls than rows";
      }
    }
    boolean isElsewhere = !file.maskPath().isEmpty();
    boolean isOnce = isElsewhere ? file.mask().length == 0 && isPath(file.maskPath())
                                 : file.mask().length == file.maskLength();
    return file.maskRows() == 0 || isOnce && file.maskLength() > 0 ? null
                                                                   : "its mask is not in one place";
  }

  /** Whether a path is below a directory, in its one spelling. */
  private static boolean isPath(String path) {
    int begin = 0;
    for (int end = 0; end <= path.length(); end++) {
      if (end == path.length() || path.charAt(end) == '/') {
        String part = path.substring(begin, end);
        if (part.isEmpty() || part.equals(".") || part.equals("..")) {
          return false;
        }
        begin = end + 1;
      } else if (!isNamed(path.charAt(end)) && path.charAt(end) != '.') {
        return false;
      }
    }
    return true;
  }

  private static boolean isName(String name) {
    return !name.isEmpty() && name.length() <= 100 && name.chars().allMatch(MapOutput::isNamed);
  }

  /** Whether names may have a character. */
  private static boolean isNamed(int of) {
    return of >= 'a' && of <= 'z' || of >= '0' && of <= '9' || of >= 'A' && of <= 'Z' || of == '-'
        || of == '_';
  }

  /** One spelling of a directory. */
  private static String normal(String root) {
    if (root.isEmpty()) {
      return root;
    }
    List<String> parts = new ArrayList<>();
    for (String part : root.split("/")) {
      if (part.equals("..") && !parts.isEmpty()) {
        parts.remove(parts.size() - 1);
      } else if (!part.isEmpty() && !part.equals(".") && !part.equals("..")) {
        parts.add(part);
      }
    }
    return String.join("/", parts);
  }

  /** Values of a row, one column after the other. */
  private static final class Cursor {
    private final Column[] columns;
    private final int row;
    private final String where;
    private int next;

    Cursor(Column[] columns, int row, String where) {
      this.columns = columns;
      this.row = row;
      this.where = where;
    }

    long natural() throws CorruptShuffleException {
      long number = columns[next++].getLong(row);
      if (number < 0 || number >= 1L << 62) {
        throw damage(where, "the number " + number);
      }
      return number;
    }

    boolean flag() {
      return columns[next++].getLong(row) != 0;
    }

    byte[] binary() {
      return columns[next++].getBytes(row);
    }

    String text() {
      return new String(binary(), StandardCharsets.UTF_8);
    }

    List<FileBounds> statistics() throws CorruptShuffleException {
      Column list = columns[next++];
      List<FileBounds> found = new ArrayList<>();
      Column[] of = list.children[0].children;
      for (int i = list.ends[row]; i < list.ends[row + 1]; i++) {
        long id = of[0].getLong(i);
        long nulls = of[3].getLong(i);
        check(id >= 0 && id <= Integer.MAX_VALUE && nulls >= 0, where, "bounds of column " + id);
        found.add(new FileBounds((int) id, of[1].isNull(i) ? null : of[1].getBytes(i),
            of[2].isNull(i) ? null : of[2].getBytes(i), nulls));
      }
      return found;
    }
  }
}
