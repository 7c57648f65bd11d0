package arrowshuffle.format;

import java.io.EOFException;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.NoSuchFileException;
import java.nio.file.NotDirectoryException;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.List;
import java.util.stream.Stream;

/** Files of this machine. */
public final class LocalStorage implements Storage {
  private static final long serialVersionUID = 1;

  /** What one read asks for at most: it is copied through memory that each thread keeps. */
  private static final int MOST_BYTES = 1 << 20;

  private final String directory;

  /** Of a shuffle's directory, an absolute path or one relative to the working directory. */
  public LocalStorage(String directory) {
    this.directory = directory;
  }

  private Path path(String path) {
    return Path.of(directory).resolve(path);
  }

  @Override
  public String location() {
    return directory;
  }

  @Override
  public byte[] read(String path) throws IOException {
    try {
      return Files.readAllBytes(path(path));
    } catch (NoSuchFileException error) {
      throw notThere(path, error);
    }
  }

  @Override
  public byte[][] read(String path, long[] offsets, int[] lengths) throws IOException {
    try (FileChannel file = FileChannel.open(path(path), StandardOpenOption.READ)) {
      byte[][] found = new byte[offsets.length][];
      for (int i = 0; i < found.length; i++) {
        found[i] = new byte[lengths[i]];
        for (int at = 0; at < lengths[i];) {
          int most = Math.min(lengths[i] - at, MOST_BYTES);
          int count = file.read(ByteBuffer.wrap(found[i], at, most), offsets[i] + at);
          if (count < 0) {
            throw new EOFException(path(path) + ": ends before byte " + (offsets[i] + lengths[i]));
          }
          at += count;
        }
      }
      return found;
    } catch (NoSuchFileException error) {
      throw notThere(path, error);
    }
  }

  private FileNotFoundException notThere(String path, IOException cause) {
    FileNotFoundException error = new FileNotFoundException(path(path) + ": is not there");
    error.initCause(cause);
    return error;
  }

  @Override
  public List<String> list(String path) throws IOException {
    try (Stream<Path> files = Files.list(path(path))) {
      return files.map(file -> file.getFileName().toString()).toList();
    } catch (NoSuchFileException | NotDirectoryException error) {
      return List.of();
    }
  }

  @Override
  public boolean exists(String path) {
    return Files.exists(path(path));
  }

  @Override
  public long modifiedMs(String path) throws IOException {
    try {
      return Files.getLastModifiedTime(path(path)).toMillis();
    } catch (NoSuchFileException error) {
      return -1;
    }
  }

  @Override
  public void refuseLinks(String path, int depth) throws IOException {
    Path place = path(path);
    for (int i = 0; i < depth; i++, place = place.getParent()) {
      if (Files.exists(place, LinkOption.NOFOLLOW_LINKS) && Files.isSymbolicLink(place)) {
        throw new CorruptShuffleException(place + ": is a symbolic link");
      }
    }
  }
}
