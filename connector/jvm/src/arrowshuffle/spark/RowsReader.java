package arrowshuffle.spark;

import arrowshuffle.format.Bounds;
import arrowshuffle.format.ChunkRows;
import arrowshuffle.format.CommitLog;
import arrowshuffle.format.CorruptShuffleException;
import arrowshuffle.format.FileReader;
import arrowshuffle.format.PartitionedFile;
import arrowshuffle.format.Shape;
import arrowshuffle.format.Snapshot;
import arrowshuffle.format.Storage;
import java.io.IOException;
import java.util.Arrays;
import java.util.BitSet;
import java.util.List;
import java.util.function.Predicate;
import java.util.stream.IntStream;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.execution.vectorized.OnHeapColumnVector;
import org.apache.spark.sql.execution.vectorized.WritableColumnVector;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Reads the rows of a task as batches of columns: chunk by chunk, file by file. */
final class RowsReader implements PartitionReader<ColumnarBatch> {
  /** Rows of a batch, at most: its columns stay in the cache of a core. */
  private static final int BATCH_ROWS = 8192;

  /** A batch with more of texts and lists ends: each column of them is one array of bytes. */
  private static final long BATCH_BYTES = 8 << 20;

  /** What all tasks of a scan need; Spark sends it to each executor once. */
  static final class Factory implements PartitionReaderFactory {
    private static final long serialVersionUID = 1;

    private final Storage storage;
    private final Shape shape;
    private final long version;
    private final String commitId;
    private final PartitionedFile[] files;
    private final StructType columns;
    private final int[] stored;
    private final boolean checksPlacement;
    private final Condition[] conditions;
    private final int limit;

    /**
     * Makes the factory.
     *
     * @param stored where each of the columns is in the schema of the version; -1: metadata
     * @param checksPlacement whether the hash of the keys must place each row where it lies
     */
    Factory(Storage storage, Snapshot snapshot, List<PartitionedFile> files, StructType columns,
        int[] stored, boolean checksPlacement, List<Condition> conditions, int limit) {
      this.storage = storage;
      this.shape = snapshot.shape();
      this.version = snapshot.version();
      this.commitId = snapshot.commitId();
      this.files = files.toArray(PartitionedFile[] ::new);
      this.columns = columns;
      this.stored = stored.clone();
      this.checksPlacement = checksPlacement;
      this.conditions = conditions.toArray(Condition[] ::new);
      this.limit = limit;
    }

    @Override
    public boolean supportColumnarReads(InputPartition partition) {
      return true;
    }

    @Override
    public PartitionReader<InternalRow> createReader(InputPartition partition) {
      throw new UnsupportedOperationException("rows are read by columns");
    }

    @Override
    public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition partition) {
      return new RowsReader(this, (RangePartition) partition);
    }
  }

  private final Factory scan;
  private final RangePartition task;
  private final DataType[] types;
  private final int[] wanted;
  private final int numWanted; // subpartitions
  private final WritableColumnVector[] vectors;
  private final ColumnarBatch batch;
  private final Vectors copier = new Vectors();
  private final PlacementCheck check;

  private int nextFile;
  private PartitionedFile file;
  private FileReader reader;
  private ChunkRows chunk;
  private int run;
  private int row;
  private int copy;
  private long given;

  private RowsReader(Factory scan, RangePartition task) {
    this.scan = scan;
    this.task = task;
    this.nextFile = task.firstFile;
    this.numWanted = task.among == null ? task.end - task.first
                                        : task.among.get(task.first, task.end).cardinality();
    StructField[] fields = scan.columns.fields();
    types = new DataType[fields.length];
    vectors = new WritableColumnVector[fields.length];
    for (int i = 0; i < fields.length; i++) {
      types[i] = SparkTypes.stored(fields[i].dataType());
      vectors[i] = new OnHeapColumnVector(BATCH_ROWS, types[i]);
    }
    batch = new ColumnarBatch(Arrays.copyOf(vectors, vectors.length, ColumnVector[].class));
    wanted = IntStream.of(scan.stored).filter(at -> at >= 0).toArray();
    check = scan.checksPlacement ? PlacementCheck.of(scan.shape, scan.columns, vectors) : null;
  }

  @Override
  public boolean next() throws IOException {
    if (scan.limit >= 0 && given >= scan.limit) {
      return false;
    }
    for (WritableColumnVector vector : vectors) {
      vector.reset();
    }
    try {
      int rows = 0;
      long most = copier.size() + BATCH_BYTES;
      while (rows < BATCH_ROWS && copier.size() < most && hasRun()) {
        rows += copyRuns(rows);
      }
      checkPlacement();
      batch.setNumRows(rows);
      given += rows;
      return rows > 0;
    } catch (CorruptShuffleException e) {
      throw CommitLog.explain(scan.storage, scan.version, scan.commitId, e);
    }
  }

  /**
   * Copies as many of the next rows of the chunk as the batch has room for, and returns how many
   * these are. Runs that follow each other are copied as one: there may be few rows in each.
   */
  private int copyRuns(int at) throws IOException {
    int begin = row;
    int most = begin + BATCH_ROWS - at;
    while (true) {
      int end = Math.min(chunk.to(run), most);
      place(at + row - begin, at + end - begin, chunk.subpartition(run));
      row = end;
      if (end == most || !isFollowed()) {
        break;
      }
      run++;
    }
    int column = 0;
    for (int i = 0; i < vectors.length; i++) {
      if (scan.stored[i] >= 0) {
        copier.copy(chunk.column(column++), begin, row, vectors[i], at, types[i]);
        refuseNulls(i);
      }
    }
    return row - begin;
  }

  /** Spark tests no value of a column of which the log says that it has no null. */
  private void refuseNulls(int column) throws CorruptShuffleException {
    StructField of = scan.columns.fields()[column];
    if (!of.nullable() && vectors[column].hasNull()) {
      throw new CorruptShuffleException(
          chunk.where() + ": a null in column " + of.name() + ", of which the log counts none");
    }
  }

  /** Whether the next run begins where this one ends; runs of broadcast rows are read apart. */
  private boolean isFollowed() {
    return run + 1 < chunk.numRuns() && chunk.from(run + 1) == chunk.to(run)
        && chunk.subpartition(run) >= 0 && chunk.subpartition(run + 1) >= 0;
  }

  /** Says of rows {@code [from, to)} of the batch where they come from. */
  private void place(int from, int to, int subpartition) {
    for (int i = 0; i < vectors.length; i++) {
      if (scan.stored[i] >= 0) {
        continue;
      }
      if (!scan.columns.fields()[i].name().equals(ShuffleTable.VERSION)) {
        vectors[i].putInts(from, to - from, subpartition >= 0 ? subpartition : nthWanted(copy));
      } else if (file.version() == file.lastVersion()) {
        vectors[i].putLongs(from, to - from, file.version());
      } else {
        vectors[i].putNulls(from, to - from);
      }
    }
    if (check != null) {
      check.add(from, to, subpartition);
    }
  }

  private void checkPlacement() throws CorruptShuffleException {
    if (check != null) {
      check.compare(chunk);
    }
  }

  /** Moves to the next row that is left, in another run, chunk or file if need be. */
  private boolean hasRun() throws IOException {
    while (true) {
      if (chunk != null) {
        if (row < chunk.to(run)) {
          return true;
        }
        if (chunk.subpartition(run) < 0 && ++copy < numWanted) {
          row = chunk.from(run); // every subpartition has these rows
          continue;
        }
        copy = 0;
        if (++run < chunk.numRuns()) {
          row = chunk.from(run);
          continue;
        }
      }
      if (!nextChunk()) {
        return false;
      }
    }
  }

  private boolean nextChunk() throws IOException {
    checkPlacement(); // while the chunk can be named
    while (true) {
      chunk = reader == null ? null : reader.next();
      if (chunk != null) {
        run = 0;
        row = chunk.numRuns() > 0 ? chunk.from(0) : 0;
        if (chunk.numRuns() > 0) {
          return true;
        }
        continue;
      }
      if (!nextFile()) {
        return false;
      }
    }
  }

  private boolean nextFile() throws IOException {
    close(reader);
    reader = null;
    while (nextFile < scan.files.length && !mayHaveRows(scan.files[nextFile])) {
      nextFile += task.fileStep;
    }
    if (nextFile >= scan.files.length) {
      return false;
    }
    file = scan.files[nextFile];
    nextFile += task.fileStep;
    reader = new FileReader(scan.storage, scan.shape, file, wanted, mayMatch());
    reader.select(task.first, task.end, task.among);
    return true;
  }

  /** Whether a file has rows of the task's subpartitions, as far as the log knows. */
  private boolean mayHaveRows(PartitionedFile of) {
    if (numWanted == 0) {
      return false;
    } else if (of.numBroadcastRows() > 0
        || of.numSubpartitions() != scan.shape.numSubpartitions()) {
      return true;
    }
    long first = Math.max(of.first(), task.first);
    long end = Math.min(of.end(), task.end);
    if (task.among == null || first >= end) {
      return first < end;
    }
    int next = task.among.nextSetBit((int) first);
    return 0 <= next && next < end;
  }

  private Predicate<Bounds> mayMatch() {
    if (scan.conditions.length == 0) {
      return null;
    }
    PartitionedFile of = file;
    return rows -> {
      Bounds known = new Condition.OfVersion(rows, of);
      return Arrays.stream(scan.conditions).allMatch(condition -> condition.mayMatch(known));
    };
  }

  private int nthWanted(int nth) {
    if (task.among == null) {
      return task.first + nth;
    }
    BitSet among = task.among;
    int found = among.nextSetBit(task.first);
    for (int i = 0; i < nth; i++) {
      found = among.nextSetBit(found + 1);
    }
    return found;
  }

  @Override
  public ColumnarBatch get() {
    return batch;
  }

  @Override
  public void close() {
    close(reader);
    batch.close();
  }

  private static void close(FileReader reader) {
    if (reader != null) {
      reader.close();
    }
  }
}
