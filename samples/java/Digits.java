import io.dsgd.Config;
import io.dsgd.DType;
import io.dsgd.Dsgd;
import io.dsgd.DsgdException;
import io.dsgd.Memory;
import io.dsgd.Replica;
import io.dsgd.Session;
import io.dsgd.Shard;
import io.dsgd.Status;
import java.io.IOException;
import java.nio.FloatBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Random;

/**
 * Trains a small network on handwritten digits, together with any number of other workers in any language.
 *
 * <p>Copy this file to begin a trainer of your own. The code for dsgd is in {@link #main} and {@code train}; the network (64 inputs, 128 hidden
 * units with ReLU, 10 classes, softmax cross-entropy) is above it. Run it by itself or under {@code dsgd run}:
 *
 * <pre>
 *   java -cp dsgd.jar:. Digits --data digits.csv --epochs 40
 *   dsgd run -n 4 -- java -cp dsgd.jar:. Digits --data digits.csv --epochs 40
 * </pre>
 */
public final class Digits {
  private static final int INPUTS = 64, HIDDEN = 128, CLASSES = 10;

  // ---- Data: every fifth row is for the test, the others for training.

  private static final class Data {
    final List<float[]> pixels = new ArrayList<>();
    final List<Integer> labels = new ArrayList<>();
  }

  private static void read(Path path, Data train, Data test) throws IOException {
    int row = 0;
    for (String line : Files.readAllLines(path)) {
      String[] words = line.split(",");
      float[] pixels = new float[INPUTS];
      for (int i = 0; i < INPUTS; i++) pixels[i] = Integer.parseInt(words[i]) / 16f;
      Data set = row++ % 5 == 0 ? test : train;
      set.pixels.add(pixels);
      set.labels.add(Integer.parseInt(words[INPUTS]));
    }
  }

  // ---- Network. Values and gradients lie in buffers of dsgd.

  private record Tensors(FloatBuffer w1, FloatBuffer b1, FloatBuffer w2, FloatBuffer b2) {}

  private final float[] hidden = new float[HIDDEN];
  private final float[] probability = new float[CLASSES];
  private Tensors value, gradient;

  private void initialise(long seed) { // uniform, He et al. 2015
    Random random = new Random(seed);
    float bound1 = (float) Math.sqrt(6.0 / INPUTS), bound2 = (float) Math.sqrt(6.0 / HIDDEN);
    for (int i = 0; i < INPUTS * HIDDEN; i++) value.w1.put(i, bound1 * (2 * random.nextFloat() - 1));
    for (int i = 0; i < HIDDEN * CLASSES; i++) value.w2.put(i, bound2 * (2 * random.nextFloat() - 1));
  }

  private void forward(float[] pixels) {
    value.b1.get(0, hidden);
    for (int i = 0; i < INPUTS; i++) {
      if (pixels[i] == 0) continue;
      for (int j = 0; j < HIDDEN; j++) hidden[j] += pixels[i] * value.w1.get(i * HIDDEN + j);
    }
    value.b2.get(0, probability);
    for (int j = 0; j < HIDDEN; j++) {
      hidden[j] = Math.max(hidden[j], 0);
      for (int c = 0; c < CLASSES; c++) probability[c] += hidden[j] * value.w2.get(j * CLASSES + c);
    }
    float largest = Float.NEGATIVE_INFINITY, sum = 0;
    for (float score : probability) largest = Math.max(largest, score);
    for (int c = 0; c < CLASSES; c++) sum += probability[c] = (float) Math.exp(probability[c] - largest);
    for (int c = 0; c < CLASSES; c++) probability[c] /= sum;
  }

  private static void add(FloatBuffer buffer, int index, float term) {
    buffer.put(index, buffer.get(index) + term);
  }

  private static void clear(FloatBuffer buffer) {
    for (int i = 0; i < buffer.capacity(); i++) buffer.put(i, 0);
  }

  /** Writes the mean gradient of a batch; returns the sum of the losses. */
  private double backward(Data data, long[] rows) {
    clear(gradient.w1);
    clear(gradient.b1);
    clear(gradient.w2);
    clear(gradient.b2);
    double loss = 0;
    for (long row : rows) {
      float[] pixels = data.pixels.get((int) row);
      int label = data.labels.get((int) row);
      forward(pixels);
      loss -= Math.log(Math.max(probability[label], 1e-30));
      float[] error = probability;
      error[label] -= 1;
      for (int c = 0; c < CLASSES; c++) add(gradient.b2, c, error[c] /= rows.length);
      for (int j = 0; j < HIDDEN; j++) {
        if (hidden[j] == 0) continue;
        float back = 0;
        for (int c = 0; c < CLASSES; c++) {
          add(gradient.w2, j * CLASSES + c, hidden[j] * error[c]);
          back += value.w2.get(j * CLASSES + c) * error[c];
        }
        add(gradient.b1, j, back);
        for (int i = 0; i < INPUTS; i++) add(gradient.w1, i * HIDDEN + j, pixels[i] * back);
      }
    }
    return loss;
  }

  private double accuracy(Data test) {
    int right = 0;
    for (int n = 0; n < test.labels.size(); n++) {
      forward(test.pixels.get(n));
      int best = 0;
      for (int c = 1; c < CLASSES; c++) best = probability[c] > probability[best] ? c : best;
      if (best == test.labels.get(n)) right++;
    }
    return 100.0 * right / test.labels.size();
  }

  // ---- dsgd

  private static final List<String> OPTIONS =
      List.of("--data", "--epochs", "--batch", "--seed", "--optimizer", "--optimizer-options",
          "--checkpoint");

  private static String option(String[] args, String name, String otherwise) {
    for (int i = 0; i + 1 < args.length; i++) if (args[i].equals(name)) return args[i + 1];
    return otherwise;
  }

  private static void loadNewest(Session session) throws InterruptedException {
    while (true) {
      try {
        session.loadCheckpoint(null);
        return;
      } catch (DsgdException error) {
        if (error.status() == Status.NOT_FOUND) return; // there is none
        if (error.status() != Status.VIEW_CHANGED) throw error; // else a worker has joined or was lost: all load again
      }
    }
  }

  private void train(Session session, Data train, Data test, String[] args) throws InterruptedException {
    int epochs = Integer.parseInt(option(args, "--epochs", "40"));
    int batch = Integer.parseInt(option(args, "--batch", "16"));
    long seed = Long.parseLong(option(args, "--seed", "1"));

    // The model: four tensors, one copy of them on this worker's CPU.
    Replica replica = session.addReplica("cpu");
    Memory w1 = replica.alloc(session.addParameter("hidden.weight", DType.FLOAT32, INPUTS, HIDDEN));
    Memory b1 = replica.alloc(session.addParameter("hidden.bias", DType.FLOAT32, HIDDEN));
    Memory w2 = replica.alloc(session.addParameter("output.weight", DType.FLOAT32, HIDDEN, CLASSES));
    Memory b2 = replica.alloc(session.addParameter("output.bias", DType.FLOAT32, CLASSES));
    value = new Tensors(w1.value().asFloatBuffer(), b1.value().asFloatBuffer(), w2.value().asFloatBuffer(),
        b2.value().asFloatBuffer());
    gradient = new Tensors(w1.gradient().asFloatBuffer(), b1.gradient().asFloatBuffer(), w2.gradient().asFloatBuffer(),
        b2.gradient().asFloatBuffer());
    session.setOptimizer(option(args, "--optimizer", "sgd"), option(args, "--optimizer-options", "lr=0.1 momentum=0.9"));
    initialise(seed);
    session.start(); // from here on all workers hold rank 0's values

    Shard shard = session.shard(train.labels.size(), seed);
    if (option(args, "--checkpoint", null) != null) {
      loadNewest(session); // go on from the newest checkpoint, also with another number of workers
    }
    int first = Math.max((int) shard.epoch(), 1); // of the checkpoint, or of a running job that this worker has joined
    for (int epoch = first; epoch <= epochs; epoch++) {
      if (shard.epoch() != epoch) shard.epoch(epoch); // else it goes on within the epoch
      long began = System.nanoTime();
      double loss = 0;
      boolean allDone = false;
      while (!allDone) { // a worker that has no data left goes on with weight 0 until nobody has
        long[] rows = shard.next(batch);
        if (rows.length > 0) loss += backward(train, rows);
        allDone = session.step(rows.length).allDone();
      }
      double seconds = (System.nanoTime() - began) * 1e-9;
      System.out.printf(Locale.ROOT,
          "{\"epoch\": %d, \"loss\": %.6f, \"accuracy\": %.4f, \"samples_per_second\": %.1f}%n", epoch,
          loss / shard.size(), accuracy(test), shard.size() / seconds);
    }
    System.out.printf(Locale.ROOT,
        "{\"done\": true, \"rank\": %d, \"language\": \"java\", \"accuracy\": %.4f, \"digest\": \"%016x\"}%n",
        session.rank(), accuracy(test), session.digest());
  }

  public static void main(String[] args) throws IOException, InterruptedException {
    for (int i = 0; i < args.length; i += 2) {
      if (!OPTIONS.contains(args[i]) || i + 1 == args.length) {
        System.err.println("digits: unknown option '" + args[i] + "', or its value is missing; options: " + OPTIONS);
        System.exit(2);
      }
    }
    try {
      Data train = new Data(), test = new Data();
      read(Path.of(option(args, "--data", "digits.csv")), train, test);
      try (Config config = new Config()) { // DSGD_* variables, for example from `dsgd run`
        String folder = option(args, "--checkpoint", null);
        if (folder != null) { // dsgd saves by itself; DSGD_CHECKPOINT_INTERVAL changes how often
          config.set("checkpoint_dir", folder);
          if (config.get("checkpoint_interval").equals("0")) config.set("checkpoint_interval", 100);
        }
        // An exception aborts the job.
        Dsgd.run(config, session -> new Digits().train(session, train, test, args));
      }
    } catch (DsgdException error) {
      System.err.println("digits: " + error.getMessage());
      System.exit(1);
    }
  }
}
