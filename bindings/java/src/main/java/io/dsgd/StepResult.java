package io.dsgd;

/** The result of one step. */
public final class StepResult {
  private final long step;
  private final long view;
  private final int size;
  private final boolean applied;
  private final boolean allDone;
  private final boolean stop;
  private final double weight;
  private final double gradientNorm;

  /** Called from the native code. */
  StepResult(
      long step,
      long view,
      int size,
      boolean applied,
      boolean allDone,
      boolean stop,
      double weight,
      double gradientNorm) {
    this.step = step;
    this.view = view;
    this.size = size;
    this.applied = applied;
    this.allDone = allDone;
    this.stop = stop;
    this.weight = weight;
    this.gradientNorm = gradientNorm;
  }

  /** Index of the step, from 0. */
  public long step() {
    return step;
  }

  /** Number of the view in which it completed. */
  public long view() {
    return view;
  }

  /** Workers in that view. */
  public int size() {
    return size;
  }

  /** Whether values were updated; false when all weights were 0, or see {@link Session#lossScale}. */
  public boolean applied() {
    return applied;
  }

  /** Whether every worker gave weight 0: none has data left. */
  public boolean allDone() {
    return allDone;
  }

  /** Whether some worker asked to stop before this step. */
  public boolean stop() {
    return stop;
  }

  /** Sum of all contribution weights. */
  public double weight() {
    return weight;
  }

  /**
   * L2 norm of the mean gradient before clipping; NaN if all weights were 0, or without {@code
   * gradient_norm}, {@code loss_scale} and the optimizer's {@code clip_norm}.
   */
  public double gradientNorm() {
    return gradientNorm;
  }

  @Override
  public String toString() {
    return "StepResult[step=" + step + ", view=" + view + ", size=" + size + ", applied=" + applied + ", allDone="
        + allDone + ", stop=" + stop + ", weight=" + weight + ", gradientNorm=" + gradientNorm + "]";
  }
}
