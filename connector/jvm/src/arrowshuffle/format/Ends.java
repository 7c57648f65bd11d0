package arrowshuffle.format;

import java.util.ArrayList;
import java.util.List;

/** Arrays for the ends of texts and lists, which columns of one chunk after the other use. */
final class Ends {
  private final List<int[]> arrays = new ArrayList<>();
  private int used;

  /** All arrays may be used again. */
  void reset() {
    used = 0;
  }

  /** An array with places for the ends of so many values, the first of which is at 1. */
  int[] of(int count) {
    if (used == arrays.size()) {
      arrays.add(new int[0]);
    }
    if (arrays.get(used).length <= count) {
      arrays.set(used, new int[Math.addExact(count, Math.max(1, count / 4))]);
    }
    return arrays.get(used++);
  }
}
