import com.google.flatbuffers.FlatBufferBuilder;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.List;
import org.apache.arrow.flatbuf.Buffer;
import org.apache.arrow.flatbuf.FieldNode;
import org.apache.arrow.flatbuf.Message;
import org.apache.arrow.flatbuf.MessageHeader;
import org.apache.arrow.flatbuf.MetadataVersion;
import org.apache.arrow.flatbuf.RecordBatch;
import org.apache.arrow.vector.ipc.WriteChannel;
import org.apache.arrow.vector.ipc.message.ArrowBlock;
import org.apache.arrow.vector.ipc.message.ArrowFooter;
import org.apache.arrow.vector.ipc.message.MessageSerializer;
import org.apache.arrow.vector.types.pojo.Schema;

/** An Arrow IPC file of one batch, of all types: Arrow's own vectors lack some. */
final class ArrowFile {
  private static final byte[] MAGIC = "ARROW1".getBytes(StandardCharsets.US_ASCII);

  private ArrowFile() {}

  static void write(Path path, Schema schema, List<Values> columns, long rows) throws IOException {
    try (FileChannel file =
             FileChannel.open(path, StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE);
        WriteChannel out = new WriteChannel(file)) {
      out.write(MAGIC);
      out.align();
      MessageSerializer.serialize(out, schema);
      ArrowBlock block = writeBatch(out, columns, rows);
      out.writeIntLittleEndian(-1);
      out.writeIntLittleEndian(0);
      FlatBufferBuilder builder = new FlatBufferBuilder();
      builder.finish(new ArrowFooter(schema, List.of(), List.of(block)).writeTo(builder));
      int size = builder.dataBuffer().remaining();
      out.write(builder.dataBuffer());
      out.writeIntLittleEndian(size);
      out.write(MAGIC);
    }
  }

  private static ArrowBlock writeBatch(WriteChannel out, List<Values> columns, long rows)
      throws IOException {
    List<byte[]> buffers = new ArrayList<>();
    List<Values> nodes = new ArrayList<>();
    for (Values of : columns) {
      of.buffers(buffers);
      addNodes(of, nodes);
    }
    FlatBufferBuilder builder = new FlatBufferBuilder();
    RecordBatch.startNodesVector(builder, nodes.size());
    for (int i = nodes.size() - 1; i >= 0; i--) {
      FieldNode.createFieldNode(builder, nodes.get(i).count(), nodes.get(i).nulls());
    }
    int nodesAt = builder.endVector();
    long body = buffers.stream().mapToLong(ArrowFile::padded).sum();
    RecordBatch.startBuffersVector(builder, buffers.size());
    long end = body;
    for (int i = buffers.size() - 1; i >= 0; i--) {
      end -= padded(buffers.get(i));
      Buffer.createBuffer(builder, end, buffers.get(i).length);
    }
    int buffersAt = builder.endVector();
    int batch = RecordBatch.createRecordBatch(builder, rows, nodesAt, buffersAt, 0, 0);
    builder.finish(Message.createMessage(
        builder, MetadataVersion.V5, MessageHeader.RecordBatch, batch, body, 0));
    ByteBuffer metadata = builder.dataBuffer();
    long start = out.getCurrentPosition();
    int size = (metadata.remaining() + 7) / 8 * 8;
    out.writeIntLittleEndian(-1);
    out.writeIntLittleEndian(size);
    out.write(metadata);
    out.align();
    for (byte[] buffer : buffers) {
      out.write(buffer);
      out.align();
    }
    return new ArrowBlock(start, size + 8, body);
  }

  private static void addNodes(Values of, List<Values> to) {
    to.add(of);
    for (Values inside : of.inside) {
      addNodes(inside, to);
    }
  }

  private static long padded(byte[] buffer) {
    return (buffer.length + 7L) / 8 * 8;
  }
}
