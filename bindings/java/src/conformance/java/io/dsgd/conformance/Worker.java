package io.dsgd.conformance;

import io.dsgd.Config;
import io.dsgd.DType;
import io.dsgd.Dsgd;
import io.dsgd.DsgdException;
import io.dsgd.Operation;
import io.dsgd.Reduction;
import io.dsgd.Session;
import io.dsgd.Shard;
import io.dsgd.SharedObject;
import io.dsgd.StepResult;
import java.io.IOException;
import java.nio.Buffer;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Set;
import java.util.function.Supplier;
import java.util.stream.Collectors;

/**
 * The Java worker of the conformance run: Worker SCRIPT RESULT. The contract is in
 * tests/conformance/README.md.
 */
public final class Worker {
  /** Commands that one worker executes; the first word after them is its rank. */
  private static final Set<String> OF_ONE_RANK =
      Set.of("replica_weight", "absent", "stop", "put", "put_array");

  private final Config config = new Config();
  private final Model model = new Model();
  private final StringBuilder results = new StringBuilder();
  private Session session;

  public static void main(String[] arguments) throws IOException, InterruptedException {
    if (arguments.length != 2) {
      System.err.println("usage: Worker SCRIPT RESULT");
      System.exit(2);
    }
    Worker worker = new Worker();
    worker.run(Files.readAllLines(Path.of(arguments[0])));
    Files.writeString(Path.of(arguments[1]), worker.results);
  }

  private void run(List<String> script) throws InterruptedException {
    for (int i = 0; i < script.size(); i++) {
      String line = script.get(i);
      try {
        if (line.startsWith("async ")) {
          int count = Integer.parseInt(line.substring(6));
          async(i + 2, script.subList(i + 1, i + 1 + count));
          i += count;
        } else if (!line.isEmpty() && !line.startsWith("#")) {
          write(i + 1, execute(line, false));
        }
      } catch (RuntimeException e) {
        throw new IllegalStateException("line " + (i + 1) + ", " + line + ": " + e, e);
      }
    }
  }

  private void write(int line, String words) {
    if (!words.isEmpty()) {
      results.append(line).append(' ').append(words).append('\n');
    }
  }

  /** Begins all of them before it waits for the first. */
  private void async(int firstLine, List<String> lines) throws InterruptedException {
    List<Operation<Void>> operations = new ArrayList<>();
    List<Supplier<String>> words = new ArrayList<>();
    for (String line : lines) {
      Collective collective = collective(line.split(" "));
      operations.add(collective.begin.get());
      words.add(collective.words);
    }
    for (int i = 0; i < operations.size(); i++) {
      operations.get(i).join();
      write(firstLine + i, words.get(i).get());
    }
  }

  private String execute(String line, boolean trying) throws InterruptedException {
    String[] word = line.split(" ");
    if (OF_ONE_RANK.contains(word[0]) && session.rank() != Integer.parseInt(word[1])) {
      return "";
    }
    switch (word[0]) {
      case "try" -> {
        return attempt(line.substring(4));
      }
      case "config" -> config.set(word[1], rest(line, 2));
      case "init" -> {
        session = Dsgd.init(config);
        return "rank=" + session.rank() + " size=" + session.size();
      }
      case "replica" -> model.add(session.addReplica("cpu"));
      case "parameter" -> {
        DType type = type(word[2]);
        model.add(
            word[4].equals("trained")
                ? session.addParameter(word[1], type, longs(word[3]))
                : session.addUntrained(word[1], type, longs(word[3])));
      }
      case "parameter_set" -> model.parameter(word[1]).set(rest(line, 2));
      case "optimizer" -> session.setOptimizer(word[1], rest(line, 2));
      case "strategy" -> session.setStrategy(word[1], rest(line, 2));
      case "alloc" -> model.alloc();
      case "bind" -> model.bind();
      case "fill" -> model.fillValues(session, seed(word[1]));
      case "start" -> session.start();
      case "rate" -> session.setLearningRate(Double.parseDouble(word[1]));
      case "replica_weight" -> model.replica(Integer.parseInt(word[2])).setWeight(Double.parseDouble(word[3]));
      case "absent" -> model.absent(word[2]);
      case "stop" -> session.requestStop();
      case "step" -> {
        if (!model.gradients().isEmpty()) {
          model.fillGradients(session, seed(word[1]));
        }
        return words(session.step(weight(word[2])));
      }
      case "overlap" -> {
        Operation<StepResult> step = session.beginStep(weight(word[2]));
        model.readyGradients(session, seed(word[1]));
        return words(step.join());
      }
      case "values" -> {
        return "digest=" + Pattern.digest(model.values());
      }
      case "gradients" -> {
        return "digest=" + Pattern.digest(model.gradients());
      }
      case "digest" -> {
        return "digest=" + Pattern.hex(session.digest());
      }
      case "put" ->
          session.putObject(
              word[2], Pattern.of(DType.UINT8, Integer.parseInt(word[3]), seed(word[4]), 0));
      case "get" -> {
        SharedObject object = session.getObject(word[1], trying ? Duration.ZERO : null);
        ByteBuffer data = object.data();
        return "nbytes=" + data.capacity() + " digest=" + Pattern.digest(List.of(data));
      }
      case "put_array" -> {
        DType type = type(word[3]);
        long[] shape = longs(word[4]);
        int count = (int) Arrays.stream(shape).reduce(1, (a, b) -> a * b);
        session.putObject(word[2], Pattern.of(type, count, seed(word[5]), 0), type, shape);
      }
      case "get_array" -> {
        SharedObject object = session.getObject(word[1]);
        String shape =
            Arrays.stream(object.shape()).mapToObj(Long::toString).collect(Collectors.joining(","));
        return "dtype=%d shape=%s digest=%s"
            .formatted(
                object.dtype().ordinal(),
                shape.isEmpty() ? "-" : shape,
                Pattern.digest(List.of(object.data())));
      }
      case "shard" -> {
        return shard(word);
      }
      case "close" -> session.close();
      default -> {
        Collective collective = collective(word);
        collective.block.run();
        return collective.words.get();
      }
    }
    return "";
  }

  private String attempt(String line) throws InterruptedException {
    try {
      execute(line, true);
    } catch (DsgdException e) {
      return "error=" + e.code();
    }
    throw new IllegalStateException("it did not fail");
  }

  private interface Call {
    void run() throws InterruptedException;
  }

  private record Collective(
      Call block, Supplier<Operation<Void>> begin, Supplier<String> words) {}

  private Collective collective(String[] word) throws InterruptedException {
    if (word[0].equals("barrier")) {
      return new Collective(session::barrier, session::barrierAsync, () -> "");
    }
    DType type = type(word[1]);
    switch (word[0]) {
      case "allreduce" -> {
        ByteBuffer data = pattern(type, Long.parseLong(word[2]), word[4]);
        Buffer typed = Pattern.typed(data, type);
        Reduction reduction = reduction(word[3]);
        return new Collective(
            () -> session.allReduce(typed, reduction),
            () -> session.allReduceAsync(typed, reduction),
            digest(data));
      }
      case "broadcast" -> {
        ByteBuffer data = pattern(type, Long.parseLong(word[2]), word[4]);
        Buffer typed = Pattern.typed(data, type);
        int root = Integer.parseInt(word[3]);
        return new Collective(
            () -> session.broadcast(typed, root),
            () -> session.broadcastAsync(typed, root),
            digest(data));
      }
      case "allgather" -> {
        Parts parts = parts(word[2]);
        Buffer send = Pattern.typed(pattern(type, parts.mine, word[3]), type);
        ByteBuffer data = Pattern.buffer(type, Math.toIntExact(parts.all));
        Buffer receive = Pattern.typed(data, type);
        return new Collective(
            () -> session.allGather(send, receive, parts.counts),
            () -> session.allGatherAsync(send, receive, parts.counts),
            digest(data));
      }
      case "reduce_scatter" -> {
        Parts parts = parts(word[2]);
        Reduction reduction = reduction(word[3]);
        Buffer send = Pattern.typed(pattern(type, parts.all, word[4]), type);
        ByteBuffer data = Pattern.buffer(type, Math.toIntExact(parts.mine));
        Buffer receive = Pattern.typed(data, type);
        return new Collective(
            () -> session.reduceScatter(send, receive, reduction, parts.counts),
            () -> session.reduceScatterAsync(send, receive, reduction, parts.counts),
            digest(data));
      }
      default -> throw new IllegalArgumentException("operation " + word[0] + " is not known");
    }
  }

  /** Elements of this rank, of all, and what the call is given. */
  private record Parts(long mine, long all, long[] counts) {}

  private Parts parts(String list) {
    long[] counts = longs(list);
    if (list.contains(",")) {
      return new Parts(counts[session.rank()], Arrays.stream(counts).sum(), counts);
    }
    return new Parts(counts[0], counts[0] * session.size(), new long[0]);
  }

  private ByteBuffer pattern(DType type, long count, String seed) {
    return Pattern.of(type, Math.toIntExact(count), seed(seed), session.rank());
  }

  private static Supplier<String> digest(ByteBuffer data) {
    return () -> "digest=" + Pattern.digest(List.of(data));
  }

  private String shard(String[] word) {
    boolean shuffle = (Integer.parseInt(word[3]) & 1) == 0;
    List<ByteBuffer> batches = new ArrayList<>();
    try (Shard shard = session.shard(Long.parseLong(word[1]), seed(word[2]), shuffle)) {
      shard.epoch(Long.parseLong(word[4]));
      long[] indices = new long[Integer.parseInt(word[5])];
      for (int count = shard.next(indices); count > 0; count = shard.next(indices)) {
        ByteBuffer batch = ByteBuffer.allocate(8 * count).order(ByteOrder.LITTLE_ENDIAN);
        batch.asLongBuffer().put(indices, 0, count);
        batches.add(batch);
      }
      return "size=" + shard.size() + " digest=" + Pattern.digest(batches);
    }
  }

  private static String words(StepResult step) {
    return "step=%d size=%d applied=%d all_done=%d stop=%d weight=%016x"
        .formatted(
            step.step(),
            step.size(),
            step.applied() ? 1 : 0,
            step.allDone() ? 1 : 0,
            step.stop() ? 1 : 0,
            Double.doubleToRawLongBits(step.weight()));
  }

  private double weight(String list) {
    return Double.parseDouble(list.split(",")[session.rank()]);
  }

  private static long seed(String number) {
    return Long.parseUnsignedLong(number);
  }

  private static long[] longs(String list) {
    return list.equals("-")
        ? new long[0]
        : Arrays.stream(list.split(",")).mapToLong(Long::parseLong).toArray();
  }

  private static DType type(String name) {
    return DType.valueOf(name.toUpperCase(Locale.ROOT));
  }

  private static Reduction reduction(String name) {
    return Reduction.valueOf(name.toUpperCase(Locale.ROOT));
  }

  /** The line from its word `index` on; null if there is none. */
  private static String rest(String line, int index) {
    String[] words = line.split(" ", index + 1);
    return words.length > index ? words[index] : null;
  }
}
