package arrowshuffle.format;

import static arrowshuffle.format.Checks.check;
import static arrowshuffle.format.Checks.malformed;
import static arrowshuffle.format.Checks.newer;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.StreamReadConstraints;
import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;

/** An object of JSON, with the rules that the format has for it. */
final class Json {
  /** The version of the format that is known. */
  private static final long FORMAT_VERSION = 1;

  private static final long LARGEST = (1L << 62) - 1;

  private static final ObjectMapper MAPPER =
      new ObjectMapper(
          JsonFactory.builder()
              .streamReadConstraints(
                  StreamReadConstraints.builder().maxStringLength(Integer.MAX_VALUE).build())
              .build())
          .enable(DeserializationFeature.FAIL_ON_TRAILING_TOKENS);

  private static final ObjectNode EMPTY = MAPPER.createObjectNode();

  private final JsonNode node;
  private final String where;

  private Json(JsonNode node, String where) {
    this.node = node;
    this.where = where;
  }

  /** One object in UTF-8. */
  static Json object(byte[] bytes, int at, int length, String where)
      throws CorruptShuffleException {
    try {
      // Of bytes, Jackson would guess the encoding.
      String text =
          StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(bytes, at, length)).toString();
      JsonNode node = MAPPER.readTree(text);
      check(node instanceof ObjectNode, where, "is no object of JSON");
      return new Json(node, where);
    } catch (CorruptShuffleException error) {
      throw error;
    } catch (IOException error) {
      throw malformed(where, error);
    }
  }

  /** The same, of a version of the format that is known. */
  static Json ofThisVersion(byte[] bytes, int at, int length, String where) throws IOException {
    Json json = object(bytes, at, length, where);
    long version = json.natural("format_version");
    check(version >= 1, where, "format_version " + version);
    if (version > FORMAT_VERSION) {
      throw newer(where, "version " + version + " of the format");
    }
    return json;
  }

  /** Whether a key is there, and not null. */
  boolean has(String key) {
    return node.hasNonNull(key);
  }

  /** The integer of a key, from 0 to 2^62 - 1. */
  long natural(String key) throws CorruptShuffleException {
    return natural(node.get(key), key);
  }

  /** The same; 0 where the key is missing. */
  long naturalOr0(String key) throws CorruptShuffleException {
    return node.has(key) ? natural(key) : 0;
  }

  private long natural(JsonNode of, String key) throws CorruptShuffleException {
    boolean isNumber = of != null && of.isIntegralNumber() && of.canConvertToLong();
    check(isNumber && of.longValue() >= 0 && of.longValue() <= LARGEST, where,
        key + " is not an integer from 0 to 2^62 - 1, but " + of);
    return of.longValue();
  }

  /** The text of a key. */
  String text(String key) throws CorruptShuffleException {
    return text(node.get(key), key);
  }

  /** The same; null where the key is null or missing. */
  String textOrNull(String key) throws CorruptShuffleException {
    return has(key) ? text(key) : null;
  }

  /** The bytes of a key in base64. */
  byte[] octets(String key) throws CorruptShuffleException {
    try {
      return Base64.getDecoder().decode(text(key));
    } catch (IllegalArgumentException error) {
      throw malformed(where + ", " + key, error);
    }
  }

  private String text(JsonNode of, String key) throws CorruptShuffleException {
    check(of != null && of.isTextual(), where, key + " is no text, but " + of);
    return of.textValue();
  }

  /** Whether a key is true; false where it is missing. */
  boolean isTrue(String key) throws CorruptShuffleException {
    JsonNode of = node.get(key);
    check(of == null || of.isBoolean(), where, key + " is neither true nor false, but " + of);
    return of != null && of.booleanValue();
  }

  /** The object of a key, empty where it is missing. */
  Json inside(String key) throws CorruptShuffleException {
    JsonNode of = has(key) ? node.get(key) : EMPTY;
    check(of instanceof ObjectNode, where, key + " is no object, but " + of);
    return new Json(of, where);
  }

  /** The keys of an object. */
  List<String> keys() {
    List<String> names = new ArrayList<>();
    node.fieldNames().forEachRemaining(names::add);
    return names;
  }

  /**
   * The items of the list of a key, which {@link #naturals} and others take; none where it is
   * missing.
   */
  private List<JsonNode> items(JsonNode of, String key) throws CorruptShuffleException {
    check(of == null || of.isNull() || of.isArray(), where, key + " is no list, but " + of);
    List<JsonNode> items = new ArrayList<>();
    if (of != null) {
      of.forEach(items::add);
    }
    return items;
  }

  /** A list of texts; empty where it is missing. */
  List<String> texts(String key) throws CorruptShuffleException {
    List<String> found = new ArrayList<>();
    for (JsonNode item : items(node.get(key), key)) {
      found.add(text(item, key));
    }
    return found;
  }

  /** A list of integers. */
  long[] naturals(String key) throws CorruptShuffleException {
    return naturals(node.get(key), key);
  }

  private long[] naturals(JsonNode of, String key) throws CorruptShuffleException {
    List<JsonNode> items = items(of, key);
    long[] found = new long[items.size()];
    for (int i = 0; i < found.length; i++) {
      found[i] = natural(items.get(i), key);
    }
    return found;
  }

  /** A list of lists of so many texts, then so many integers; empty where it is missing. */
  List<Row> rows(String key, int numTexts, int numNumbers) throws CorruptShuffleException {
    List<Row> found = new ArrayList<>();
    for (JsonNode item : items(node.get(key), key)) {
      List<JsonNode> values = items(item, key);
      check(values.size() == numTexts + numNumbers, where, key + " has " + item);
      String[] texts = new String[numTexts];
      long[] numbers = new long[numNumbers];
      for (int i = 0; i < values.size(); i++) {
        if (i < numTexts) {
          texts[i] = text(values.get(i), key);
        } else {
          numbers[i - numTexts] = natural(values.get(i), key);
        }
      }
      found.add(new Row(texts, numbers));
    }
    return found;
  }

  /** A list in a list. */
  record Row(String[] texts, long[] numbers) {}

  @Override
  public String toString() {
    return node.toString();
  }
}
