// SPDX-License-Identifier: Apache-2.0

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/**
 * Adds vectors by a JNI library that uses the driver API, in {@code Adds THREADS}
 * threads. Others make garbage meanwhile, so that the collector has all of them
 * stop now and then, wherever they are.
 */
final class Adds {
  static native int open();

  /** All sums of one thread: 0, or the error. */
  static native int run();

  private static volatile boolean over;
  private static volatile byte[] garbage;

  private static void litter() {
    while (!over) {
      garbage = new byte[1 << 18];
    }
  }

  public static void main(String[] args) throws Exception {
    System.load("/clients/libadds.so");
    if (open() != 0) {
      System.exit(1);
    }
    int n = Integer.parseInt(args[0]);
    ExecutorService threads = Executors.newFixedThreadPool(n + 1);
    threads.submit(Adds::litter);
    List<Future<Integer>> all = new ArrayList<>();
    for (int i = 0; i < n; i++) {
      all.add(threads.submit(Adds::run));
    }
    boolean ok = true;
    for (Future<Integer> one : all) {
      ok &= one.get() == 0;
    }
    over = true;
    threads.shutdown();
    String version = System.getProperty("java.specification.version");
    System.out.println("{\"ok\":" + ok + ",\"version\":\"" + version + "\"}");
  }
}
