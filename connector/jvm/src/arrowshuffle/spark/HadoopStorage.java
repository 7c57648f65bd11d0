package arrowshuffle.spark;

import arrowshuffle.format.LocalStorage;
import arrowshuffle.format.Storage;
import java.io.EOFException;
import java.io.File;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutionException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileRange;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.spark.util.SerializableConfiguration;

/** Objects and files by Hadoop's {@code FileSystem}, ranges of them by vectored reads. */
final class HadoopStorage implements Storage {
  private static final long serialVersionUID = 1;

  private final String location;
  private final SerializableConfiguration configuration;

  private HadoopStorage(String location, Configuration configuration) {
    this.location = location;
    this.configuration = new SerializableConfiguration(configuration);
  }

  /**
   * Returns the storage of a shuffle: files of this machine, by a path or as {@code file:}, without
   * Hadoop, all else by the {@code FileSystem} of its scheme.
   */
  static Storage of(String location, Configuration configuration) {
    Path path = new Path(location);
    String scheme = path.toUri().getScheme();
    if (scheme == null ? isLocal(configuration) : scheme.equals("file")) {
      // Absolute: executors may work in other directories.
      return new LocalStorage(new File(path.toUri().getPath()).getAbsolutePath());
    }
    return new HadoopStorage(location, configuration);
  }

  private static boolean isLocal(Configuration configuration) {
    return "file".equals(FileSystem.getDefaultUri(configuration).getScheme());
  }

  @Override
  public String location() {
    return location;
  }

  private Path path(String path) {
    if (path.isEmpty()) {
      return new Path(location); // Hadoop refuses an empty child
    }
    return path.startsWith("/") ? new Path(path) : new Path(location, path);
  }

  private FileSystem system(Path path) throws IOException {
    return path.getFileSystem(configuration.value());
  }

  @Override
  public byte[] read(String path) throws IOException {
    Path whole = path(path);
    FileStatus found = system(whole).getFileStatus(whole);
    if (found.isDirectory()) {
      throw new FileNotFoundException(whole + " is a directory");
    }
    if (found.getLen() > Integer.MAX_VALUE - 8) {
      throw new IOException(whole + " has " + found.getLen() + " bytes, more than can be read");
    }
    byte[] bytes = new byte[(int) found.getLen()];
    try (FSDataInputStream in = open(whole, "whole-file")) {
      in.readFully(0, bytes);
    }
    return bytes;
  }

  @Override
  public byte[][] read(String path, long[] offsets, int[] lengths) throws IOException {
    List<FileRange> ranges = new ArrayList<>(offsets.length);
    for (int i = 0; i < offsets.length; i++) {
      ranges.add(FileRange.createFileRange(offsets[i], lengths[i]));
    }
    byte[][] found = new byte[offsets.length][];
    try (FSDataInputStream in = open(path(path), "vector, random")) {
      in.readVectored(ranges, ByteBuffer::allocate);
      for (int i = 0; i < found.length; i++) {
        ByteBuffer bytes = done(ranges.get(i).getData());
        if (bytes.remaining() != lengths[i]) {
          throw new EOFException(path(path) + " ends before " + (offsets[i] + lengths[i]));
        }
        found[i] = new byte[lengths[i]];
        bytes.get(found[i]);
      }
    }
    return found;
  }

  private FSDataInputStream open(Path path, String policy) throws IOException {
    return done(system(path).openFile(path).opt("fs.option.openfile.read.policy", policy).build());
  }

  private static <T> T done(java.util.concurrent.Future<T> future) throws IOException {
    try {
      return future.get();
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
      throw(IOException) new InterruptedIOException("a read was interrupted").initCause(e);
    } catch (ExecutionException e) {
      throw e.getCause() instanceof IOException cause ? cause : new IOException(e.getCause());
    }
  }

  @Override
  public List<String> list(String path) throws IOException {
    List<String> names = new ArrayList<>();
    try {
      Path directory = path(path);
      for (FileStatus found : system(directory).listStatus(directory)) {
        names.add(found.getPath().getName());
      }
    } catch (FileNotFoundException e) {
      return List.of();
    }
    return names;
  }

  @Override
  public boolean exists(String path) throws IOException {
    Path file = path(path);
    return system(file).exists(file);
  }

  /** Stores and HDFS have no links that {@code FileSystem} would follow unasked. */
  @Override
  public void refuseLinks(String path, int depth) {}

  @Override
  public long modifiedMs(String path) throws IOException {
    Path file = path(path);
    return system(file).getFileStatus(file).getModificationTime();
  }
}
