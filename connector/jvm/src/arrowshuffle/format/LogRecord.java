package arrowshuffle.format;

import static arrowshuffle.format.Checks.check;
import static arrowshuffle.format.Checks.newer;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;

/**
 * A file of the log: an entry, or a range; what it says of map outputs, and the state of the log
 * after it.
 */
final class LogRecord {
  private static final Set<String> PUBLISH = Set.of("overwrite", "append", "merge", "delete",
      "upsert", "rollback", "alter", "rescale", "release");
  private static final Set<String> OTHERS =
      Set.of("pending", "pending-overwrite", "fence", "expire", "tag", "erase", "blank");
  private static final Set<String> OF_ONE_JOB =
      Set.of("overwrite", "append", "pending", "pending-overwrite");
  private static final Set<String> REMOVE = Set.of("merge", "delete", "upsert");
  private static final Set<String> FEATURES = Set.of("masks");
  private static final Layout[] REMOVED = {Layout.of(Layout.TEXT)};
  private static final Layout[] TOTALS = {Layout.of(Layout.INT64), Layout.of(Layout.INT64)};

  /** Path of its file, for messages. */
  final String where;

  final long number;
  final String operation;
  final String commitId;
  final long committedAtMs;
  final State state;

  /** It says what the numbers after this one up to its own do. */
  final long after;

  /** Commit id of the number {@link #after}; null where that is 0. */
  final String parent;

  /** Whether nothing before it is left. */
  final boolean clears;

  /** Map outputs from before with this last version or less are gone. */
  final long released;

  final List<MapOutput> added;
  final List<String> removed;

  /** Rows and bytes of each subpartition; empty where it adds none. */
  final long[] totalRows;
  final long[] totalBytes;

  /** Parses the bytes of an entry or a range, and checks it. */
  LogRecord(byte[] file, long expected, boolean isRange, String where) throws IOException {
    this.where = where;
    int end = lineEnd(file, 0);
    int sectionsAt = lineEnd(file, end + 1) + 1;
    String trailer = new String(file, end + 1, sectionsAt - end - 2, StandardCharsets.US_ASCII);
    String sums = String.format("arrow-shuffle-log %d %08x", end, Bytes.crc32(file, 0, end));
    check(trailer.equals(sums), where, "does not match its length and checksum");
    Json head = Json.ofThisVersion(file, 0, end, where);
    number = head.natural("number");
    check(number == expected && head.has("range") == isRange, where,
        "is the " + (head.has("range") ? "range" : "entry") + " of number " + number);
    check(head.has("state"), where, "has no state");
    state = new State(head.inside("state"));
    for (String feature : state.readers) {
      if (!FEATURES.contains(feature)) {
        throw newer(where, "feature " + feature);
      }
    }
    operation = head.text("operation");
    if (!isVersion() && !OTHERS.contains(operation)) {
      throw newer(where, "operation " + operation);
    }
    commitId = head.text("commit_id");
    committedAtMs = head.natural("committed_at_ms");
    Map<String, byte[]> sections = sections(head, file, sectionsAt);
    boolean isRelease = operation.equals("release");
    boolean ends = isRelease && state.released.isTrue("ended");
    if (isRange) {
      Json range = head.inside("range");
      after = range.natural("after");
      parent = range.textOrNull("parent");
      clears = range.isTrue("clears");
      released = range.naturalOr0("released");
    } else {
      after = number - 1;
      parent = head.textOrNull("parent");
      clears = ends || operation.equals("overwrite") || operation.equals("rollback");
      released = isRelease ? state.released.naturalOr0("through") : 0;
    }
    checkState(ends);
    List<MapOutput> outputs = sections.containsKey("added")
        ? MapOutput.decode(sections.get("added"), where + ", section added")
        : List.of();
    checkMasks(outputs);
    removed = sections.containsKey("removed") ? keys(sections.get("removed")) : List.of();
    long[][] totals =
        sections.containsKey("totals") ? totals(sections.get("totals")) : new long[2][0];
    if (!isRange) {
      checkEntry(head, outputs);
      check(!isVersion() || totals[0].length % state.numSubpartitions() == 0, where,
          "totals of " + totals[0].length + " subpartitions");
    }
    // What an entry adds that publishes no version is of none.
    boolean isOfVersion = isRange || isVersion();
    added = isOfVersion ? outputs : List.of();
    totalRows = isOfVersion ? totals[0] : new long[0];
    totalBytes = isOfVersion ? totals[1] : new long[0];
  }

  private int lineEnd(byte[] file, int from) throws CorruptShuffleException {
    int at = from;
    while (at < file.length && file[at] != '\n') {
      at++;
    }
    check(at < file.length, where, "has " + file.length + " bytes, and no trailer");
    return at;
  }

  /** Whether it publishes a version. */
  boolean isVersion() {
    return PUBLISH.contains(operation);
  }

  /** Whether it was made blank: of what it said only the ends of jobs are left. */
  boolean isBlank() {
    return operation.equals("blank");
  }

  private Map<String, byte[]> sections(Json head, byte[] file, int from)
      throws CorruptShuffleException {
    Map<String, byte[]> found = new HashMap<>();
    Set<String> names = new HashSet<>();
    int at = from;
    for (Json.Row row : head.rows("sections", 1, 3)) {
      String name = row.texts()[0];
      long length = row.numbers()[0];
      check(names.add(name), where, "section " + name + " twice");
      check(length <= file.length - at && Bytes.crc32(file, at, (int) length) == row.numbers()[1],
          where, "section " + name + " does not match its length and checksum");
      if (name.equals("added") || name.equals("removed") || name.equals("totals")) {
        byte[] content = ZstdFrames.content(file, at, (int) length, where + ", section " + name);
        check(content.length == row.numbers()[2], where, "section " + name + " has another size");
        found.put(name, content);
      }
      at += (int) length;
    }
    check(at == file.length, where, (file.length - at) + " bytes behind its sections");
    return found;
  }

  private List<String> keys(byte[] section) throws CorruptShuffleException {
    String place = where + ", section removed";
    Column keys = ArrowMessage.rows(section, REMOVED, place)[0];
    Set<String> found = new HashSet<>();
    String[] listed = new String[keys.count];
    for (int i = 0; i < keys.count; i++) {
      listed[i] = new String(keys.getBytes(i), StandardCharsets.UTF_8);
      check(found.add(listed[i]), place, "key " + listed[i] + " twice");
    }
    return List.of(listed);
  }

  private long[][] totals(byte[] section) throws CorruptShuffleException {
    Column[] columns = ArrowMessage.rows(section, TOTALS, where + ", section totals");
    long[][] found = new long[2][columns[0].count];
    for (int i = 0; i < found[0].length; i++) {
      found[0][i] = columns[0].getLong(i);
      found[1][i] = columns[1].getLong(i);
    }
    return found;
  }

  private void checkState(boolean ends) throws CorruptShuffleException {
    check((parent == null) == (after == 0) && after < number, where,
        "it cannot be of the numbers after " + after + ", with parent " + parent);
    check(
        released <= number && state.checkpoint < number, where, "it names numbers behind its own");
    check(state.largest <= Math.max(number, 1), where, "its state has the number " + state.largest);
    check(state.content <= state.changed && state.changed <= state.version, where,
        "the versions of its state contradict each other");
    check(state.base <= state.oldest && state.oldest <= Math.max(state.version, 1), where,
        "version " + state.oldest + " is the oldest of its state, and " + state.version
            + " the newest");
    check((state.version == number) == isVersion(), where,
        "version " + state.version + " cannot be the newest after operation " + operation);
    check((state.ended == number) == ends, where,
        "result " + state.ended + " ended, and not by operation " + operation + " alone");
  }

  private void checkMasks(List<MapOutput> outputs) throws CorruptShuffleException {
    for (MapOutput output : outputs) {
      check(output.lastVersion() <= number, where, "a map output was added after its own entry");
      for (PartitionedFile file : output.files()) {
        check(file.maskRows() == 0
                || state.readers.contains("masks") && file.maskNumber() >= 1
                    && file.maskNumber() <= number,
            where, "rows are masked by no entry up to its own, or without the feature of readers");
      }
    }
  }

  private void checkEntry(Json head, List<MapOutput> outputs) throws CorruptShuffleException {
    long rows = 0;
    long size = 0;
    for (MapOutput output : outputs) {
      for (PartitionedFile file : output.files()) {
        rows += file.numRows();
        size += file.dataBytes();
      }
    }
    check(isBlank()
            || head.naturalOr0("num_outputs") == outputs.size()
                && head.naturalOr0("num_rows") == rows && head.naturalOr0("num_bytes") == size,
        where, "its sums differ from those of its map outputs");
    check(removed.isEmpty() || REMOVE.contains(operation), where,
        "operation " + operation + " removes map outputs");
    if (!OF_ONE_JOB.contains(operation)) {
      return;
    }
    String job = head.textOrNull("job_id");
    long task = -1;
    for (int i = 0; i < outputs.size(); i++) {
      MapOutput of = outputs.get(i);
      check(of.version() == number && of.lastVersion() == number && of.order() == i
              && (of.isTombstones() ? of.mapTask() > task : of.mapTask() == i)
              && of.jobId().equals(job),
          where, "map output " + i + " was added by another entry or job, or in another order");
      task = of.mapTask();
    }
  }

  /** What an entry says of the log as a whole. */
  static final class State {
    final long version;
    final long content;
    final long changed;
    final long ended;
    final long oldest;
    final long base;
    final long checkpoint;
    final long lastColumnId;
    final List<String> readers;
    final Map<String, Long> tags = new TreeMap<>();

    /** The largest number that it names. */
    final long largest;

    /** What was released last; empty where nothing was. */
    final Json released;

    private final Json json;

    private State(Json json) throws CorruptShuffleException {
      this.json = json;
      version = json.naturalOr0("version");
      content = json.naturalOr0("content");
      changed = json.naturalOr0("changed");
      ended = json.naturalOr0("ended");
      oldest = json.has("oldest") ? json.natural("oldest") : 1;
      base = json.naturalOr0("base");
      checkpoint = json.naturalOr0("checkpoint");
      lastColumnId = json.naturalOr0("last_column_id");
      readers = json.texts("readers");
      released = json.inside("released");
      Json named = json.inside("tags");
      long most = Math.max(Math.max(version, ended), Math.max(oldest, checkpoint));
      for (String name : named.keys()) {
        long tagged = named.inside(name).natural("version");
        tags.put(name, tagged);
        most = Math.max(most, tagged);
      }
      largest = most;
    }

    /** Whether the newest result was released as a whole. */
    boolean isEnded() {
      return ended > content;
    }

    /** Number of subpartitions of the newest version; its shape is checked where it is read. */
    private long numSubpartitions() throws CorruptShuffleException {
      return Math.max(1, json.inside("shape").naturalOr0("num_subpartitions"));
    }

    /** The shape of the newest version. */
    Shape shape(String where) throws CorruptShuffleException {
      check(json.has("shape"), where, "its state has no shape");
      return new Shape(json.inside("shape"), lastColumnId, where);
    }
  }
}
