package arrowshuffle.format;

import static arrowshuffle.format.Checks.check;
import static arrowshuffle.format.Checks.damage;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Comparator;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.OptionalLong;
import java.util.Set;
import java.util.TreeSet;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * The commit log of a shuffle, as it was when it was opened: its versions. For any threads.
 *
 * <p>A reader lists the log, reads the newest entry, and by that knows what else to read. Garbage
 * collection removes segments meanwhile, and a late writer may put an entry at a number that is
 * free again: so it asks last whether anything that it used was being removed, and begins again if
 * so.
 */
public final class CommitLog {
  private static final String DIRECTORY = "commit_log";
  private static final int SEGMENT_ENTRIES = 512;
  private static final int MOST_READS = 10;

  /** What storages take off the time of a file at most. */
  private static final long ROUNDED_MS = 2_000;

  private static final Pattern SEGMENT = Pattern.compile("[0-9]{18}");
  private static final Pattern FILE = Pattern.compile("([0-9]{20})\\.(entry|range)");

  private final Storage storage;

  /** The newest entry; null of an empty log. */
  private LogRecord last;

  /** The newest range that a listing showed, or the newest entry names. */
  private long checkpoint;

  /** The lowest number that this read used, unless for a tag; 0: none yet. */
  private long lowest;

  private CommitLog(Storage storage) {
    this.storage = storage;
  }

  /** The same log, for another read. */
  private CommitLog(CommitLog of) {
    storage = of.storage;
    last = of.last;
    checkpoint = of.checkpoint;
    lowest = newestNumber();
  }

  /** A read of the log, which may be repeated. */
  private interface Read<T> {
    T of(CommitLog log) throws IOException;
  }

  /**
   * Looks which entry is the newest, and reads it; a log that is empty has no version.
   *
   * @throws CorruptShuffleException where the log is damaged
   * @throws FormatVersionException where a later release wrote it
   */
  public static CommitLog open(Storage shuffle) throws IOException {
    return read(new CommitLog(shuffle), log -> log);
  }

  /**
   * Reads the log, and again where it changed meanwhile.
   *
   * @param first as it was when it was looked at before, if it was
   */
  private static <T> T read(CommitLog first, Read<T> read) throws IOException {
    CommitLog log = new CommitLog(first);
    for (int attempt = 0; attempt < MOST_READS; attempt++) {
      boolean isOld = log.last != null;
      boolean looked = isOld;
      try {
        if (!isOld) {
          log.look();
          looked = true;
        }
        T found = read.of(log);
        if (log.isCurrent()) {
          return found;
        }
      } catch (FileNotFoundException error) {
        // What is still not there, with the same newest entry, is damage.
        if (attempt > 0 && looked && newestOf(log.storage) == log.newestNumber()) {
          throw new CorruptShuffleException(error.getMessage(), error);
        }
      } catch (CorruptShuffleException | FormatVersionException | ShuffleNotFoundException error) {
        // Else it may come of an entry that its writer takes back, or of what is no longer so.
        if (!isOld && log.isCurrent()) {
          throw error;
        }
      }
      log = new CommitLog(first.storage);
    }
    throw damage(first.storage.location(), "the log changes faster than it is read; read again");
  }

  private static long newestOf(Storage shuffle) throws IOException {
    CommitLog log = new CommitLog(shuffle);
    log.look();
    return log.newestNumber();
  }

  // Look

  private void look() throws IOException {
    TreeSet<Long> segments = new TreeSet<>();
    for (String name : storage.list(DIRECTORY)) {
      if (SEGMENT.matcher(name).matches()) {
        segments.add(Long.parseLong(name));
      }
    }
    for (long segment : segments.descendingSet()) {
      TreeSet<Long> entries = new TreeSet<>();
      TreeSet<Long> ranges = new TreeSet<>();
      for (String name : storage.list(DIRECTORY + "/" + nameOf(segment))) {
        Matcher file = FILE.matcher(name);
        // No log is as long as that twenty digits are no long.
        if (file.matches() && file.group(1).startsWith("0")) {
          long number = Long.parseLong(file.group(1));
          (file.group(2).equals("entry") ? entries : ranges).add(number);
        }
      }
      entries.removeIf(number -> number / SEGMENT_ENTRIES != segment);
      if (!entries.isEmpty()) {
        last = entry(entries.last());
        Long shown = ranges.floor(last.number);
        checkpoint = Math.max(last.state.checkpoint, shown == null ? 0 : shown);
        return;
      }
    }
    // The first goes first; a writer may have made the last one, and only begun its put.
    if (!segments.isEmpty() && isRemoved(segments.first())) {
      throw new FileNotFoundException(
          storage.location() + ": all that a listing showed was removed since");
    }
  }

  private static String nameOf(long segment) {
    return String.format("%018d", segment);
  }

  private boolean isRemoved(long segment) throws IOException {
    return storage.exists(DIRECTORY + "/expired/" + nameOf(segment));
  }

  private boolean isCurrent() throws IOException {
    return lowest == 0 || !isRemoved(lowest / SEGMENT_ENTRIES);
  }

  private LogRecord entry(long number) throws IOException {
    use(number);
    LogRecord entry = load(number, false);
    if (entry.isBlank()) {
      throw new FileNotFoundException(
          entry.where + ": was made blank since; its base has what it said");
    }
    return entry;
  }

  private void use(long number) {
    lowest = lowest == 0 ? number : Math.min(lowest, number);
  }

  private LogRecord load(long number, boolean isRange) throws IOException {
    String path = String.format("%s/%s/%020d.%s", DIRECTORY, nameOf(number / SEGMENT_ENTRIES),
        number, isRange ? "range" : "entry");
    String where = storage.location() + "/" + path;
    try {
      return new LogRecord(storage.read(path), number, isRange, where);
    } catch (FileNotFoundException error) {
      FileNotFoundException missing = new FileNotFoundException(where
          + (": is not there, and the log needs it. Restore it from a copy, or give up what "
              + "follows: ")
          + "arrow-shuffle repair " + storage.location());
      missing.initCause(error);
      throw missing;
    }
  }

  private long newestNumber() {
    return last == null ? 0 : last.number;
  }

  // Versions

  /** Whether nothing was ever committed: there is no shuffle. */
  public boolean isEmpty() {
    return last == null;
  }

  /** The newest version; empty where there is none, or the result was released or dropped. */
  public OptionalLong newest() {
    boolean isThere = last != null && last.state.version > 0 && !last.state.isEnded();
    return isThere ? OptionalLong.of(last.state.version) : OptionalLong.empty();
  }

  /** Versions by the names of their tags. */
  public Map<String, Long> tags() {
    return last == null ? Map.of() : Collections.unmodifiableMap(last.state.tags);
  }

  /**
   * The newest version that was committed by a time, in milliseconds since 1970.
   *
   * @throws ShuffleNotFoundException where no version that can be opened was
   */
  public long versionAt(long epochMillis) throws IOException {
    return read(this, log -> log.versionBy(epochMillis));
  }

  private long versionBy(long limitMs) throws IOException {
    refuseEmpty();
    // Times along the log never go back.
    long oldest = last.state.oldest;
    long low = oldest;
    long high = last.number + 1;
    while (low < high) {
      long middle = low + high >>> 1;
      LogRecord entry = entryOrLast(middle);
      if (entry.committedAtMs > limitMs && committedMs(entry) > limitMs) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    long version = low > oldest ? entryOrLast(low - 1).state.version : 0;
    if (version < oldest) {
      throw new ShuffleNotFoundException(storage.location()
          + ": no version that can be opened was committed by " + Instant.ofEpochMilli(limitMs)
          + "; the oldest is " + oldest);
    }
    return version;
  }

  private LogRecord entryOrLast(long number) throws IOException {
    return number == last.number ? last : entry(number);
  }

  /** By its writer's clock, unless that was ahead of the storage's. */
  private long committedMs(LogRecord entry) throws IOException {
    long put = storage.modifiedMs(entry.where.substring(storage.location().length() + 1));
    return put < 0 || entry.committedAtMs <= put + ROUNDED_MS ? entry.committedAtMs : put;
  }

  private void refuseEmpty() throws ShuffleNotFoundException {
    if (last == null) {
      throw new ShuffleNotFoundException(
          storage.location() + ": no shuffle was committed here; its log is empty");
    }
  }

  /**
   * Opens a version; looks again, and reads again, where the log changes meanwhile.
   *
   * @throws ShuffleNotFoundException where there is none, it has expired, or was released
   * @throws CorruptShuffleException where the log is damaged
   * @throws FormatVersionException where a later release wrote it
   */
  public Snapshot snapshot(long version) throws IOException {
    return read(this, log -> log.open(version));
  }

  private Snapshot open(long version) throws IOException {
    refuseEmpty();
    boolean isTagged = version < last.state.oldest && last.state.tags.containsValue(version);
    List<LogRecord> records;
    if (isTagged) {
      LogRecord range = load(version, true);
      check(range.after == 0, range.where, "begins after number " + range.after);
      lowest = 0; // a tagged range stays when its segment is removed
      records = List.of(range);
    } else {
      refuseUnless(version >= 1 && version <= last.state.version, version, "is not there");
      refuseUnless(version >= last.state.oldest, version,
          "has expired and was removed by garbage collection");
      LogRecord own = entryOrLast(version);
      refuseUnless(own.isVersion(), version, "is not there: that number has another operation");
      records = collect(own);
    }
    LogRecord own = records.get(0);
    if (own.state.isEnded()) {
      Json released = own.state.released;
      throw new ShuffleNotFoundException(storage.location() + ": the result was released ("
          + released.textOrNull("by") + "); version " + released.naturalOr0("through")
          + (" was its last. Write it again, or keep it: resultType BLOCKING_PERSISTENT is "
              + "released ")
          + "by name alone");
    }
    return joined(records);
  }

  private void refuseUnless(boolean holds, long version, String problem)
      throws ShuffleNotFoundException {
    if (!holds) {
      throw new ShuffleNotFoundException(storage.location() + ": version " + version + " " + problem
          + "; there are versions " + last.state.oldest + " to " + last.state.version
          + (last.state.tags.isEmpty() ? "" : ", and by tags " + last.state.tags));
    }
  }

  /** What says what the numbers up to that of an entry do, the newest first. */
  private List<LogRecord> collect(LogRecord own) throws IOException {
    List<LogRecord> found = new ArrayList<>();
    long base = last.state.base;
    long known = checkpoint <= own.number ? checkpoint : 0;
    long number = own.number;
    while (number > 0) {
      LogRecord next = range(number, known, base);
      if (next != null) {
        known = next.after;
      } else {
        next = number == own.number ? own : entry(number);
        known = Math.max(known < number ? known : 0, next.state.checkpoint);
      }
      LogRecord before = found.isEmpty() ? null : found.get(found.size() - 1);
      String expected = before == null ? own.commitId : before.parent;
      check(next.commitId.equals(expected), next.where,
          "is not the one before that of a number behind it. Restore the entries from one copy");
      found.add(next);
      number = next.after;
      if (next.clears) {
        break;
      }
    }
    return found;
  }

  /** The range of a number, where there is one that can be used. */
  private LogRecord range(long number, long known, long base) throws IOException {
    if (number == base) {
      use(number);
      LogRecord range = load(number, true);
      check(range.after == 0, range.where, "begins after number " + range.after);
      return range;
    } else if (number != known) {
      return null;
    }
    try {
      use(number);
      LogRecord range = load(number, true);
      // One that begins before the base is built on what may have been removed.
      return range.after == 0 || range.after >= base ? range : null;
    } catch (FileNotFoundException error) {
      return null; // who should have put it died, or it was deleted: the entries say the same
    }
  }

  /** The version of records, the newest first, of which at most the last clears what is before. */
  private Snapshot joined(List<LogRecord> records) throws IOException {
    LogRecord own = records.get(0);
    Shape shape = own.state.shape(own.where);
    int n = shape.numSubpartitions();
    List<MapOutput> outputs = new ArrayList<>();
    Set<String> removed = new HashSet<>();
    Set<String> keys = new HashSet<>();
    long released = 0;
    long[] numRows = new long[n];
    long[] numBytes = new long[n];
    for (LogRecord record : records) {
      for (MapOutput output : record.added) {
        if (!removed.contains(output.key()) && output.lastVersion() > released) {
          if (!keys.add(output.key())) {
            throw damage(record.where, "map output " + output.key() + " twice");
          }
          outputs.add(output);
        }
      }
      removed.addAll(record.removed);
      released = Math.max(released, record.released);
      for (int i = 0; i < record.totalRows.length; i++) {
        numRows[i % n] += record.totalRows[i];
        numBytes[i % n] += record.totalBytes[i];
      }
    }
    outputs.sort(Comparator.comparingLong(MapOutput::version).thenComparingLong(MapOutput::order));
    List<PartitionedFile> files = new ArrayList<>();
    long rows = 0;
    long size = 0;
    for (MapOutput output : outputs) {
      if (output.isTombstones()) {
        continue; // which only upserts look at, and totals do not count
      }
      for (PartitionedFile file : output.files()) {
        long m = file.numSubpartitions();
        if (m % n != 0 || m != n && file.numBroadcastRows() > 0) {
          throw damage(own.where,
              "file " + file.path() + " of " + m + " subpartitions, in a version of " + n);
        }
        rows += file.numRows() + (n - 1) * file.numBroadcastRows();
        size += file.dataBytes();
        files.add(file);
      }
    }
    check(sum(numRows) == rows && sum(numBytes) == size, own.where,
        "the totals of version " + own.number + " are not those of its map outputs");
    return new Snapshot(own.number, own.commitId, shape, List.copyOf(files), numRows, numBytes);
  }

  private static long sum(long[] numbers) {
    long sum = 0;
    for (long number : numbers) {
      sum += number;
    }
    return sum;
  }

  /**
   * Why a file of a version that was opened is damaged or not there: the version may have expired,
   * or another shuffle be at its place.
   *
   * @return the error to be thrown: ShuffleNotFoundException, or a damage
   */
  public static IOException explain(
      Storage shuffle, long version, String commitId, CorruptShuffleException damage) {
    String where = shuffle.location() + ": version " + version;
    try {
      CommitLog log = open(shuffle);
      if (log.last == null) {
        return new ShuffleNotFoundException(where + " is not there; the shuffle was removed");
      }
      boolean isTagged = log.last.state.tags.containsValue(version);
      if (version < log.last.state.oldest && !isTagged) {
        return new ShuffleNotFoundException(where
            + " has expired and was removed by garbage collection while it was read; nothing is "
            + ("damaged. Open the newest version, and collect with a retention longer than "
                + "reading ")
            + "takes");
      }
      if (!isTagged && !log.snapshot(version).commitId().equals(commitId)) {
        return new CorruptShuffleException(where
                + (" is another one than when the read was planned; the directory was replaced. "
                    + "Read it ")
                + "again",
            damage);
      }
    } catch (IOException error) {
      damage.addSuppressed(error);
    }
    return damage;
  }
}
