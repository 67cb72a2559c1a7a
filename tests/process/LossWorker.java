import io.dsgd.DType;
import io.dsgd.Dsgd;
import io.dsgd.DsgdException;
import io.dsgd.Memory;
import io.dsgd.Session;
import io.dsgd.Shard;
import io.dsgd.StepResult;
import java.nio.ByteBuffer;
import java.nio.FloatBuffer;
import java.util.Locale;

/** The worker of loss_worker.c in Java, with its arguments and its output, but without DEATH and SIGTERM. */
public final class LossWorker {
  private static final int DRAWN = 64;

  private static void write(String format, Object... words) {
    System.out.println(String.format(Locale.ROOT, format, words));
    System.out.flush();
  }

  /** Writes the samples of epoch 0; returns their number. */
  private static int draw(Shard shard, int step, int most) {
    long[] indices = shard.epoch() == 0 ? shard.next(most) : new long[0];
    StringBuilder line = new StringBuilder("drew ").append(step);
    for (long index : indices) line.append(' ').append(index);
    write("%s", line);
    return indices.length;
  }

  private static void train(Session session, int number, int steps, int elements, int pause, long samples)
      throws InterruptedException {
    Memory memory = session.addReplica("cpu").alloc(session.addParameter("p", DType.FLOAT32, elements));
    FloatBuffer value = memory.value().asFloatBuffer(), gradient = memory.gradient().asFloatBuffer();
    session.setOptimizer("sgd", "lr=1 momentum=0.5");
    session.start();
    Shard shard = session.shard(samples, 7);
    boolean allDone = false;
    int first = (int) session.info().steps(); // 0, or where the job is that this worker has joined
    for (int step = first; step < steps || (step < elements && !allDone); step++) {
      int drawn = draw(shard, step, step < steps ? 2 : DRAWN);
      for (int i = 0; i < elements; i++) gradient.put(i, 0);
      gradient.put(step, 1 << number);
      float before = value.get(step);
      Thread.sleep(pause / 1000, pause % 1000 * 1000);
      StepResult result = session.step(step < steps || drawn > 0 ? 1 : 0);
      allDone = result.allDone();
      write("step %d %d %d %s %.9g %.6f", step, result.view(), result.size(), result.weight(),
          before - value.get(step), System.nanoTime() * 1e-9);
    }
    while (!allDone) allDone = session.step(0).allDone();
    StringBuilder line = new StringBuilder("values ");
    ByteBuffer bytes = memory.value();
    for (int i = 0; i < elements * Float.BYTES; i++) line.append(String.format("%02x", bytes.get(i)));
    write("%s", line);
  }

  public static void main(String[] words) throws InterruptedException {
    try (Session session = Dsgd.init()) {
      write("joined");
      train(session, Integer.parseInt(words[0]), Integer.parseInt(words[1]), Integer.parseInt(words[2]),
          Integer.parseInt(words[3]), Long.parseLong(words[5]));
    } catch (DsgdException error) {
      write("failed %s %s", error.status(), error.getMessage());
    }
  }
}
