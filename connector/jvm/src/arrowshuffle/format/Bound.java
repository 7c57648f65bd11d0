package arrowshuffle.format;

/**
 * Bounds of the values of a column, as the version has its type.
 *
 * <p>Values are a Boolean; a Long (integers, dates, times, timestamps, durations); a BigInteger
 * (unsigned integers of 64 bits, decimals without their scale); a Double or Float; a byte[] (text,
 * binary).
 *
 * <p>Both bounds are values of rows, some of which may be masked; but texts and binaries are cut.
 *
 * @param min no value is less; null where there is no lower bound
 * @param max no value is greater; null where there is no upper bound
 * @param nulls how many values are null; where rows are masked, at most so many
 */
public record Bound(Object min, Object max, long nulls) {}
