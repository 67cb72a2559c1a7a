import io.dsgd.DType;
import io.dsgd.Dsgd;
import io.dsgd.Memory;
import io.dsgd.Replica;
import io.dsgd.Session;
import java.nio.FloatBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;

/**
 * Measures what a step costs besides the gradients; see README.md. The same program as step.c.
 *
 * <p>{@code Step [--steps N]}: timed steps (default 2000); as many go before them to warm up. Rank 0 prints CSV:
 * language,workers,median_us,p10_us,p90_us.
 */
public final class Step {
  private record Tensor(String name, long... shape) {}

  private static final List<Tensor> TENSORS = List.of(new Tensor("hidden.weight", 64, 128),
      new Tensor("hidden.bias", 128), new Tensor("output.weight", 128, 10), new Tensor("output.bias", 10));

  private static double percentile(double[] ordered, int percent) { // nearest rank
    return ordered[Math.max((ordered.length * percent + 99) / 100 - 1, 0)];
  }

  public static void main(String[] args) throws InterruptedException {
    if (args.length != 0 && !(args.length == 2 && args[0].equals("--steps"))) {
      System.err.println("Step [--steps N]");
      System.exit(2);
    }
    int steps = args.length == 2 ? Integer.parseInt(args[1]) : 2000;

    try (Session session = Dsgd.init()) {
      Replica replica = session.addReplica("cpu");
      List<FloatBuffer> values = new ArrayList<>();
      for (Tensor tensor : TENSORS) {
        Memory memory = replica.alloc(session.addParameter(tensor.name(), DType.FLOAT32, tensor.shape()));
        FloatBuffer gradient = memory.gradient().asFloatBuffer();
        for (int i = 0; i < gradient.capacity(); i++) gradient.put(i, 1);
        values.add(memory.value().asFloatBuffer());
      }
      session.setOptimizer("sgd", "lr=0.0009765625"); // a power of two: the values can be told exactly
      session.start();

      double[] times = new double[2 * steps];
      for (int i = 0; i < times.length; i++) {
        long began = System.nanoTime();
        session.step(1);
        times[i] = (System.nanoTime() - began) * 1e-3;
      }

      float expected = -2f * steps / 1024;
      for (FloatBuffer value : values) {
        for (int i = 0; i < value.capacity(); i++) {
          if (value.get(i) != expected) {
            throw new IllegalStateException("wrong value: " + value.get(i) + " instead of " + expected);
          }
        }
      }
      if (session.rank() == 0) {
        double[] timed = Arrays.copyOfRange(times, steps, times.length);
        Arrays.sort(timed);
        System.out.println("language,workers,median_us,p10_us,p90_us");
        System.out.printf(Locale.ROOT, "java,%d,%.2f,%.2f,%.2f%n", session.size(), percentile(timed, 50),
            percentile(timed, 10), percentile(timed, 90));
      }
    }
  }
}
